"""What a set of finished searches says: mean ranks, mean regrets, and shares of the budget, printed and drawn."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.search_quality.runs import BETWEEN, Key, Outcome
from benchmarks.search_quality.simulate import Floats

REFERENCE = "ray:asha+random"  # the method whose last regret the shares of the budget are of
NUM_BOOTSTRAPS = 1000
LEVEL = 0.95
RANDOM_SEED = 0  # of the bootstrap: the same results print the same intervals
PRINTED = [0, 2, 4, 6, 9]  # of the ten budgets
LAST = 3  # budgets whose mean regret is compared in pairs
OURS_WIDTH, WIDTH = 2.5, 1.2  # of the plot's lines


@dataclass(frozen=True)
class Compared:
    """The methods' regrets at one number of workers, on the tables that all of them have finished searches of.

    Args:
        budgets: for each table, the recorded budgets in full trainings a worker.
        regrets: for each table and method, the repeats' regrets at the recorded budgets, shape (repeats, budgets).
        distances: for each method, the mean distance of a setting from the row that answered it.
    """

    workers: int
    tables: list[str]
    methods: list[str]
    budgets: Mapping[str, Floats]
    regrets: Mapping[tuple[str, str], Floats]
    distances: Mapping[str, float]

    def means(self) -> Floats:
        """The mean regret over repeats, shape (tables, methods, budgets)."""
        return np.array([[self.regrets[table, name].mean(axis=0) for name in self.methods] for table in self.tables])

    def mean_budgets(self) -> Floats:
        """The recorded budgets in full trainings a worker, as geometric means over the tables."""
        return np.exp(np.log([self.budgets[table] for table in self.tables]).mean(axis=0))


def compared(
    outcomes: Mapping[Key, Outcome],
    methods: list[str],
    workers: int,
    repeats: int,
    budgets: Mapping[str, Floats],
    suffix: str = "",
) -> Compared:
    """Gathers the searches of some methods: of the methods that have any, those that all of them have finished.

    The searches are those whose method's name ends with the suffix, without which the method is named here.
    """
    gathered: dict[tuple[str, str], dict[int, Outcome]] = defaultdict(dict)
    named = {name + suffix: name for name in methods}
    for key, outcome in outcomes.items():
        if key.workers == workers and key.method in named and key.repeat < repeats and key.table in budgets:
            gathered[key.table, named[key.method]][key.repeat] = outcome
    present = [name for name in methods if any(method == name for _, method in gathered)]
    finished: dict[str, list[int]] = {}
    for table in sorted({table for table, _ in gathered}):
        if common := set.intersection(*(set(gathered[table, name]) for name in present)):
            finished[table] = sorted(common)  # the bootstrap draws by place; the file's order is by chance
    searches = {
        (table, name): [gathered[table, name][repeat] for repeat in common]
        for table, common in finished.items()
        for name in present
    }
    regrets = {each: np.array([outcome.regrets for outcome in found]) for each, found in searches.items()}
    distances = {
        name: statistics.fmean(outcome.distance for table in finished for outcome in searches[table, name])
        for name in present
        if finished
    }
    return Compared(workers, list(finished), present, budgets, regrets, distances)


def ranks(each: Compared) -> tuple[Floats, Floats]:
    """Returns the mean rank of each method at the ten budgets, and the upper end of its 95 % bootstrap interval.

    In each table, methods are ranked by their mean regret over repeats; 1 is the best, equal ones share their mean.
    Each resample draws tables with replacement, and for each table and method repeats with replacement.
    """
    means = each.means()[:, :, ::BETWEEN]
    random = np.random.default_rng(RANDOM_SEED)
    resampled = np.empty((NUM_BOOTSTRAPS, *means.shape))
    for at_table, table in enumerate(each.tables):
        for at_method, method in enumerate(each.methods):
            regrets = each.regrets[table, method][:, ::BETWEEN]
            drawn = random.integers(len(regrets), size=(NUM_BOOTSTRAPS, len(regrets)))
            resampled[:, at_table, at_method] = regrets[drawn].mean(axis=1)
    drawn = random.integers(len(each.tables), size=(NUM_BOOTSTRAPS, len(each.tables)))
    weights = np.stack([np.bincount(tables, minlength=len(each.tables)) for tables in drawn]) / len(each.tables)
    of_resamples = np.einsum("btmk,bt->bmk", stats.rankdata(resampled, axis=2), weights)
    high: Floats = np.quantile(of_resamples, (1 + LEVEL) / 2, axis=0)
    return stats.rankdata(means, axis=1).mean(axis=0), high


def shares(each: Compared, name: str) -> list[float]:
    """Returns for each table the share of the last budget at which a method has the reference's last mean regret.

    The regret between two recorded budgets is interpolated over the logarithm of the budget; infinite = not reached.
    """
    means = each.means()
    own, goals = means[:, each.methods.index(name)], means[:, each.methods.index(REFERENCE), -1]
    return [
        _reached(own[at], goals[at], each.budgets[table] / each.budgets[table][-1])
        for at, table in enumerate(each.tables)
    ]


def _reached(regrets: Floats, goal: float, share: Floats) -> float:
    below = np.flatnonzero(regrets <= goal)
    if not len(below):
        return math.inf
    at = int(below[0])
    if at == 0:
        return float(share[0])
    part = (regrets[at - 1] - goal) / (regrets[at - 1] - regrets[at])
    return float(share[at - 1] * (share[at] / share[at - 1]) ** part)


def lines(each: Compared) -> Iterator[str]:
    """Yields a table of mean ranks and regrets at five budgets, and on which tables the first method is not the best.

    Bold is the best mean rank of a budget; those within the best one's interval are italic.
    """
    workers = f"{each.workers} worker{'s' if each.workers > 1 else ''}"
    if not each.tables:
        yield f"\n{workers}: no table is large enough and has finished searches of all methods."
        return
    repeats = sorted({len(regrets) for regrets in each.regrets.values()})
    counts = str(repeats[0]) if len(repeats) == 1 else f"{repeats[0]} to {repeats[-1]}"
    yield f"\n{workers}, tables: {len(each.tables)}, repeats: {counts}"
    yield "Mean rank (mean normalised regret); columns are budgets in full trainings a worker.\n"
    rank, high = ranks(each)
    best = rank.argmin(axis=0)
    tied = rank <= high[best, np.arange(len(best))]
    means = each.means()
    regret = means.mean(axis=0)[:, ::BETWEEN]
    heads = each.mean_budgets()[::BETWEEN][PRINTED]
    yield f"| method | {' | '.join(f'{budget:.3g}' for budget in heads)} | distance to the row |"
    yield f"| --- |{' ---: |' * (len(heads) + 1)}"
    for place, name in enumerate(each.methods):
        cells = []
        for at in PRINTED:
            mark = "**" if place == best[at] else "*" if tied[place, at] else ""
            cells.append(f"{mark}{rank[place, at]:.1f}{mark} ({regret[place, at]:.3f})")
        yield f"| `{name}` | {' | '.join(cells)} | {each.distances[name]:.3f} |"
    yield from _pairs(each)
    own = each.methods[0]
    yield f"\n* `{own}` best, or within the best one's interval: at {tied[0].sum()} of {len(best)} budgets"
    if REFERENCE in each.methods:
        reached = shares(each, own)
        median = statistics.median(reached)
        text = f"{median:.2f}" if math.isfinite(median) else "not reached"
        yield f"* share of `{REFERENCE}`: {text}; {sum(map(math.isfinite, reached))} of {len(reached)} tables"
    last = means[:, :, -1]
    worse = [
        f"`{table}` ({values[0]:.3f}, `{each.methods[values.argmin()]}` {values.min():.3f})"
        for table, values in zip(each.tables, last, strict=True)
        if values[0] > values.min()
    ]
    yield f"* `{own}` not the best at the end: {', '.join(worse) or 'nowhere'}"


def _pairs(each: Compared) -> Iterator[str]:
    """Yields a table of the mean regret at the last budgets by family of tables, with Wilcoxon's test of differences.

    A table's family is its name up to the first `_`. A pair is a search with the first method and one with another, of
    the same table and repeat. Searches of a table are more alike than the test assumes, so p is a little too small.
    """
    own, *others = each.methods
    if not others:
        return
    yield f"\nMean regret at the last {LAST} budgets; in brackets, that of `{own}` minus this one, and Wilcoxon's p.\n"
    yield f"| tables | `{own}` | {' | '.join(f'`{name}`' for name in others)} |"
    yield f"| --- |{' ---: |' * len(each.methods)}"
    families = sorted({table.partition("_")[0] for table in each.tables})
    for family in families + ["all"] * (len(families) > 1):
        tables = [table for table in each.tables if family in ("all", table.partition("_")[0])]
        last = {
            name: np.concatenate([each.regrets[table, name][:, ::BETWEEN][:, -LAST:].mean(axis=1) for table in tables])
            for name in each.methods
        }
        cells = [f"{last[own].mean():.3f}"]
        for name in others:
            more = last[own] - last[name]
            p = f"{stats.wilcoxon(more).pvalue:.2g}" if more.any() else "-"
            cells.append(f"{last[name].mean():.3f} ({more.mean():+.3f}, {p})")
        yield f"| {family} ({len(tables)}) | {' | '.join(cells)} |"


def draw(all_compared: list[Compared], path: Path) -> None:
    """Draws the mean regret over the budget, a panel for each number of workers; the ending chooses the format."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    drawn = [each for each in all_compared if each.tables]
    size = (2 + 4 * len(drawn), 4)
    figure, panels = pyplot.subplots(1, len(drawn), figsize=size, squeeze=False, layout="constrained")
    for panel, each in zip(panels.flat, drawn, strict=True):
        for name, regrets in zip(each.methods, each.means().mean(axis=0), strict=True):
            width = OURS_WIDTH if name.startswith("ours:") else WIDTH
            panel.plot(each.mean_budgets(), regrets, label=name, linewidth=width)
        panel.set(xscale="log", yscale="log", title=f"workers: {each.workers}")
        panel.set(xlabel="full trainings a worker", ylabel="mean normalised regret")
    panel.legend(fontsize="small")
    figure.savefig(path)
    pyplot.close(figure)
