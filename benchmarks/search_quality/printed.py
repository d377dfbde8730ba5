"""Prints a summary as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from benchmarks.search_quality import summary
from benchmarks.search_quality.regret import BETWEEN, NUM_BUDGETS, Floats
from benchmarks.search_quality.summary import Compared, Interval

BASELINE, REFERENCE = "one-epoch", "ray:asha+random"
SIGNIFICANT = 0.05
BRIEF = [0, 2, 4, 6, 9]  # the budgets of a short summary


def lines(
    all_compared: list[Compared], budgets_of: dict[int, dict[str, Floats]], full_s: dict[str, float]
) -> Iterator[str]:
    """Yields the lines of the whole summary.

    Args:
        budgets_of: number of workers -> table -> budgets in seconds.
        full_s: table -> the seconds of a full training.
    """
    for each in all_compared:
        if not each.tables:
            yield f"\n{_workers(each)}: no table is large enough and has finished searches of all methods."
            continue
        yield from _of_workers(each, budgets_of[each.workers], full_s)
    yield from _against_baseline(all_compared)


def brief_lines(
    all_compared: list[Compared], budgets_of: dict[int, dict[str, Floats]], full_s: dict[str, float]
) -> Iterator[str]:
    """Yields a short summary: half of the budgets, no intervals, and on which tables the first method is not the best.

    Args: as of `lines`.
    """
    for each in filter(lambda each: each.tables, all_compared):
        heads = _heads(each, budgets_of[each.workers], full_s)
        yield f"\n{_workers(each)}, tables: {len(each.tables)}, repeats: {_repeats(each)}\n"
        rank, regret = summary.intervals(each)
        cells = _marked(rank, 1)
        for place, at in np.ndindex(cells.shape):
            cells[place, at] += f" ({regret.mean[place, at]:.3f})"
        yield from _rows(each, [heads[at] for at in BRIEF], cells[:, BRIEF])
        yield ""
        own, near = each.methods[0], _tied(rank)[0]
        yield f"* `{own}` best, or within the best one's interval: at {near.sum()} of {len(near)} budgets"
        if REFERENCE in each.methods:
            reached = summary.shares(each, REFERENCE, budgets_of[each.workers])[own]
            num = sum(map(math.isfinite, reached))
            yield f"* share of `{REFERENCE}`: {_share(statistics.median(reached))}; {num} of {len(reached)} tables"
        worse = list(_not_best(each))
        yield f"* `{own}` not the best at the end: {', '.join(worse) or 'nowhere'}"
    yield from _against_baseline(all_compared)


def _not_best(each: Compared) -> Iterator[str]:
    for table, values in zip(each.tables, each.means()[:, :, -1], strict=True):
        best = int(values.argmin())
        if values[0] > values[best]:
            yield f"`{table}` ({values[0]:.3f}, `{each.methods[best]}` {values[best]:.3f})"


def _heads(each: Compared, budgets_of: dict[str, Floats], full_s: dict[str, float]) -> list[str]:
    """Returns the ten budgets in full trainings a worker."""
    return [f"{budget:.3g}" for budget in summary.relative(each, budgets_of, full_s)[::BETWEEN]]


def _repeats(each: Compared) -> str:
    repeats = [len(regrets) for regrets in each.regrets.values()]
    return f"{min(repeats)}" if min(repeats) == max(repeats) else f"{min(repeats)} to {max(repeats)}"


def _of_workers(each: Compared, budgets_of: dict[str, Floats], full_s: dict[str, float]) -> Iterator[str]:
    yield f"\n### {_workers(each)}, tables: {len(each.tables)}, repeats: {_repeats(each)}"
    heads = _heads(each, budgets_of, full_s)
    rank, regret = summary.intervals(each)
    note = "Columns are budgets in full trainings a worker (geometric mean over tables)."
    marks = "**Bold**: the best; *italic*: within the best one's interval."
    for title, digits, interval in (("Mean rank", 1, rank), ("Mean normalised regret", 3, regret)):
        yield f"\n{title} [95 % interval]. {note} {marks}\n"
        cells = _marked(interval, digits)
        for place, at in np.ndindex(cells.shape):
            cells[place, at] += f" [{interval.low[place, at]:.{digits}f}, {interval.high[place, at]:.{digits}f}]"
        yield from _rows(each, heads, cells)
    yield "\nMean normalised regret at the last budget, table by table\n"
    yield from _by_table(each)
    if REFERENCE in each.methods:
        yield f"\nShare of the last budget at which a method has the last mean regret of {REFERENCE}\n"
        yield "| method | median table | worst table | tables that reach it |"
        yield "| --- | ---: | ---: | ---: |"
        for name, reached in summary.shares(each, REFERENCE, budgets_of).items():
            num = sum(map(math.isfinite, reached))
            median, worst = _share(statistics.median(reached)), _share(max(reached))
            yield f"| {name} | {median} | {worst} | {num} of {len(reached)} |"


def _workers(each: Compared) -> str:
    return f"{each.workers} worker{'s' if each.workers > 1 else ''}"


def _share(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "not reached"


def _marked(interval: Interval, digits: int) -> npt.NDArray[np.object_]:
    """Returns the means as texts; the best of a budget is bold, and those within its interval are italic."""
    cells = np.empty(interval.mean.shape, dtype=object)
    best, tied = interval.mean.argmin(axis=0), _tied(interval)
    for place, at in np.ndindex(cells.shape):
        mark = "**" if place == best[at] else "*" if tied[place, at] else ""
        cells[place, at] = f"{mark}{interval.mean[place, at]:.{digits}f}{mark}"
    return cells


def _tied(interval: Interval) -> npt.NDArray[np.bool_]:
    """Returns for each method and budget whether the mean is within the best one's interval."""
    best = interval.mean.argmin(axis=0)
    return interval.mean <= interval.high[best, np.arange(len(best))]


def _rows(each: Compared, heads: list[str], cells: npt.NDArray[np.object_]) -> Iterator[str]:
    yield f"| method | {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * len(heads)}"
    for name, texts in zip(each.methods, cells, strict=True):
        yield f"| `{name}` | {' | '.join(texts)} |"


def _by_table(each: Compared) -> Iterator[str]:
    last = each.means()[:, :, -1]
    yield f"| table | {' | '.join(each.methods)} |"
    yield f"| --- |{' ---: |' * len(each.methods)}"
    for at, table in enumerate(each.tables):
        cells = [f"**{value:.3f}**" if value == last[at].min() else f"{value:.3f}" for value in last[at]]
        yield f"| {table} | {' | '.join(cells)} |"


def _against_baseline(all_compared: list[Compared]) -> Iterator[str]:
    methods = list(dict.fromkeys(name for each in all_compared if BASELINE in each.methods for name in each.methods))
    others = [name for name in methods if name != BASELINE]
    if not others:
        return
    yield f"\n### Against {BASELINE}: Wilcoxon's signed ranks, paired over tables, one-sided, Holm-corrected\n"
    yield "A family is a method's budgets (1 to 10) at all numbers of workers. Cells are workers:budget.\n"
    yield f"| method | least p worse | worse (p < {SIGNIFICANT}) | least p better | better (p < {SIGNIFICANT}) |"
    yield "| --- | ---: | --- | ---: | --- |"
    for name in others:
        found = summary.tests_against(all_compared, name, BASELINE)
        cells = []
        for side in ("worse", "better"):
            least = min((p for *_, p in found[side]), default=1.0)
            where = [f"{workers}:{at}" for workers, at, p in found[side] if p < SIGNIFICANT]
            cells += [f"{least:.2g}", _listed(where, len(found[side]))]
        yield f"| {name} | {' | '.join(cells)} |"


def _listed(where: list[str], total: int) -> str:
    if not where:
        return "nowhere"
    return f"{len(where)} of {total}: {', '.join(where)}" if len(where) <= NUM_BUDGETS else f"{len(where)} of {total}"
