"""Prints a summary as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

import numpy as np

from benchmarks.search_quality import summary
from benchmarks.search_quality.regret import BETWEEN, NUM_BUDGETS, Floats
from benchmarks.search_quality.summary import Compared, Interval

BASELINE, REFERENCE = "one-epoch", "ray:asha+random"
SIGNIFICANT = 0.05


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
            yield f"\n{_workers(each)}: no table has finished searches of all methods."
            continue
        yield from _of_workers(each, budgets_of[each.workers], full_s)
    yield from _against_baseline(all_compared)


def _of_workers(each: Compared, budgets_of: dict[str, Floats], full_s: dict[str, float]) -> Iterator[str]:
    repeats = [len(regrets) for regrets in each.regrets.values()]
    number = f"{min(repeats)}" if min(repeats) == max(repeats) else f"{min(repeats)} to {max(repeats)}"
    yield f"\n### {_workers(each)}, tables: {len(each.tables)}, repeats: {number}"
    relative = np.array([budgets_of[table][::BETWEEN] / full_s[table] for table in each.tables])
    heads = [f"{budget:.3g}" for budget in np.exp(np.log(relative).mean(axis=0))]
    rank, regret = summary.intervals(each)
    note = "Columns are budgets in full trainings a worker (geometric mean over tables)."
    marks = "**Bold**: the best; *italic*: within the best one's interval."
    for title, digits, interval in (("Mean rank", 1, rank), ("Mean normalised regret", 3, regret)):
        yield f"\n{title} [95 % interval]. {note} {marks}\n"
        yield from _table(each, heads, interval, digits)
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


def _table(each: Compared, heads: list[str], interval: Interval, digits: int) -> Iterator[str]:
    yield f"| method | {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * len(heads)}"
    best = interval.mean.argmin(axis=0)
    for place, name in enumerate(each.methods):
        cells = []
        for at in range(len(heads)):
            mean, low, high = (float(values[place, at]) for values in (interval.mean, interval.low, interval.high))
            tied = mean <= interval.high[best[at], at]
            mark = "**" if place == best[at] else "*" if tied else ""
            cells.append(f"{mark}{mean:.{digits}f}{mark} [{low:.{digits}f}, {high:.{digits}f}]")
        yield f"| {name} | {' | '.join(cells)} |"


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
