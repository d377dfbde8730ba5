"""What a set of finished searches says: mean ranks and regrets with their intervals, and tests against a method."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.search_quality.regret import BETWEEN, Floats
from benchmarks.search_quality.results import Row

NUM_BOOTSTRAPS = 1000
LEVEL = 0.95
RANDOM_SEED = 0  # of the bootstrap: the same results print the same intervals


@dataclass(frozen=True)
class Interval:
    """A mean at each budget with the ends of its 95 % interval; each has shape (methods, budgets)."""

    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class Compared:
    """The methods' regrets at one number of workers, on the tables that all of them have finished searches of.

    Args:
        regrets: for each table and method, the repeats' regrets at all recorded budgets, shape (repeats, budgets).
    """

    workers: int
    tables: list[str]
    methods: list[str]
    regrets: dict[tuple[str, str], Floats]

    def means(self) -> Floats:
        """The mean regret over repeats at all recorded budgets, shape (tables, methods, budgets)."""
        return np.array([[self.regrets[table, name].mean(axis=0) for name in self.methods] for table in self.tables])


def compared(rows: Iterable[Row], methods: list[str], workers: int) -> Compared:
    """Gathers the rows of some methods; leaves out methods without any row, then tables that a method lacks."""
    gathered: dict[tuple[str, str], list[Floats]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.key):  # the bootstrap draws by place; the file's order is by chance
        if row.key.workers == workers and row.key.method in methods:
            gathered[row.key.table, row.key.method].append(row.regrets)
    present = [name for name in methods if any(method == name for _, method in gathered)]
    tables = sorted({table for table, _ in gathered})
    tables = [table for table in tables if all((table, name) in gathered for name in present)]
    kept = {(table, name): np.array(gathered[table, name]) for table in tables for name in present}
    return Compared(workers, tables, present, kept)


def relative(each: Compared, budgets_of: dict[str, Floats], full_s: dict[str, float]) -> Floats:
    """Returns the recorded budgets in full trainings a worker, as geometric means over the tables."""
    in_trainings = np.array([budgets_of[table] / full_s[table] for table in each.tables])
    return np.asarray(np.exp(np.log(in_trainings).mean(axis=0)))


def ranks(means: Floats) -> Floats:
    """Ranks the methods of each table and budget by their mean regret; 1 is the best, equal ones share their mean."""
    return stats.rankdata(means, axis=1)


def intervals(each: Compared) -> tuple[Interval, Interval]:
    """Returns the mean rank and the mean regret at the ten budgets, with intervals by a bootstrap.

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
    ranked = stats.rankdata(resampled, axis=2)
    return _interval(ranks(means), ranked, weights), _interval(means, resampled, weights)


def _interval(values: Floats, resampled: Floats, weights: Floats) -> Interval:
    of_resamples = np.einsum("btmk,bt->bmk", resampled, weights)
    low, high = np.quantile(of_resamples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Interval(values.mean(axis=0), low, high)


def holm(p_values: list[float]) -> list[float]:
    """Corrects p-values for their number by Holm's method."""
    order = np.argsort(p_values)
    corrected, largest = [0.0] * len(p_values), 0.0
    for place, at in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[at]))
        corrected[at] = largest
    return corrected


def tests_against(all_compared: list[Compared], method: str, base: str) -> dict[str, list[tuple[int, int, float]]]:
    """Tests where a method is worse, and where better, than another, by Wilcoxon's signed ranks paired over tables.

    Returns:
        For "worse" and for "better" each (workers, number of the budget from 1, corrected p-value). Each of the two is
        a family of one-sided tests, corrected by Holm's method over its budgets and numbers of workers.
    """
    found: dict[str, list[tuple[int, int, float]]] = {}
    for name, alternative in (("worse", "greater"), ("better", "less")):
        cells, p_values = [], []
        for each in all_compared:
            if not each.tables or method not in each.methods or base not in each.methods:
                continue
            means = each.means()[:, :, ::BETWEEN]
            differences = means[:, each.methods.index(method)] - means[:, each.methods.index(base)]
            for at in range(differences.shape[1]):
                cells.append((each.workers, at + 1))
                p_values.append(_wilcoxon(differences[:, at], alternative))
        found[name] = [(*cell, p) for cell, p in zip(cells, holm(p_values), strict=True)]
    return found


def _wilcoxon(differences: Floats, alternative: str) -> float:
    if not differences.any():
        return 1.0
    return float(stats.wilcoxon(differences, alternative=alternative).pvalue)


def shares(each: Compared, base: str, budgets_of: dict[str, Floats]) -> dict[str, list[float]]:
    """Returns for each method and table the share of the last budget at which it has the other's last mean regret.

    The regret between two recorded budgets is interpolated over the logarithm of the budget; infinite = not reached.
    """
    means = each.means()
    goals = means[:, each.methods.index(base), -1]
    return {
        name: [
            _reached(means[at, place], goals[at], budgets_of[table] / budgets_of[table][-1])
            for at, table in enumerate(each.tables)
        ]
        for place, name in enumerate(each.methods)
    }


def _reached(regrets: Floats, goal: float, share: Floats) -> float:
    below = np.flatnonzero(regrets <= goal)
    if not len(below):
        return math.inf
    at = int(below[0])
    if at == 0:
        return float(share[0])
    part = (regrets[at - 1] - goal) / (regrets[at - 1] - regrets[at])
    return float(share[at - 1] * (share[at] / share[at - 1]) ** part)
