"""Says at each rung how well the metric of --prune-by, which the rungs compare, predicts the searched metric."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, StatisticsError, correlation

from tuner.errors import printable
from tuner.record.columns import column
from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.search_stats import RungKey
from tuner.record.texts import counted
from tuner.spec.metrics import Goal

MAX_NAMED_RUNGS = 4  # in a sentence about the rungs
MIN_TRIALS = 4  # minimum number of trials; the interval of fewer is unknown
LEVEL = 0.95
AT_END = "rank correlation of the value at the rung with the best value, completed trials (95 % interval)"
Pair = tuple[float, float]


@dataclass(frozen=True)
class Correlation:
    """Spearman's rank correlation over `trials` trials, and the limits of its 95 % interval; None if unknown.

    It is 1 if both metrics order the trials alike, 0 if one says nothing about the other, and -1 if the trial that is
    better by one metric is always worse by the other.
    """

    trials: int
    value: float | None = None
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        number = counted(self.trials, "trial")
        if self.value is None:
            return f"unknown from {number}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f}) from {number}"


@dataclass(frozen=True)
class PredictionRow:
    """How well the compared metric at one rung of one bracket predicts the searched metric.

    `at_rung` is over all trials that report both metrics at the rung. `at_end` compares the value at the rung with the
    best searched value of the same trial, over the trials that completed. The rule has chosen these trials for their
    value at the rung, so `at_end` is usually nearer to 0 than it would be over all trials.
    """

    rung: float = column()
    bracket: int | None = column()
    band: int | None = column()
    at_rung: Correlation = column("rank correlation at the rung (95 % interval)", look="")
    at_end: Correlation = column(AT_END, look="")


@kept
def prediction(record: ExperimentRecord) -> list[PredictionRow]:
    """Returns a row for each rung that a trial reached; none if the rungs compare the searched metric itself."""
    compared, wanted = record.experiment.compared, record.experiment.wanted
    if compared == wanted or record.refused:
        return []
    pairs: dict[RungKey, tuple[list[Pair], list[Pair]]] = {}
    for trial, at_rungs in zip(record.trials, record.stats.at_rungs, strict=True):
        best = trial.best_value(record.experiment.aim) if trial.status == "completed" else None
        for key, at in at_rungs.items():
            for some, value in zip(pairs.setdefault(key, ([], [])), (_at(trial, at.epoch, wanted), best), strict=True):
                if at.value is not None and value is not None:
                    some.append((compared.sign * at.value, wanted.sign * value))
    keys = ((rung.band, rung.bracket, rung.rung) for rung in record.stats.rungs)
    return [PredictionRow(key[2], key[1], key[0], *map(rank_correlation, pairs[key])) for key in keys]


def _at(trial: TrialRecord, epoch: int, goal: Goal) -> float | None:
    place = bisect_left(trial.reports, epoch, key=lambda report: report.epoch)
    found = place < len(trial.reports) and trial.reports[place].epoch == epoch
    return finite(goal.value(trial.reports[place].metrics)) if found else None


def rank_correlation(pairs: Sequence[Pair]) -> Correlation:
    """Returns Spearman's correlation; equal values share their mean rank.

    The interval is Fisher's z transform with the standard error of Bonett and Wright, "Sample size requirements for
    estimating Pearson, Kendall and Spearman correlations", Psychometrika 65 (2000): sqrt((1 + r**2 / 2) / (n - 3)).
    This error is 0 for a perfect order. Its nearer limit is then 1, and the other that of the order with one exchanged
    pair of neighbours.
    """
    n = len(pairs)
    if n < MIN_TRIALS:
        return Correlation(n)
    try:
        value = correlation(*(_ranks(column) for column in zip(*pairs, strict=True)))
    except StatisticsError:  # all values of a metric are equal
        return Correlation(n)
    most = 1 - 12 / (n * (n * n - 1))
    inner = max(-most, min(most, value))
    width = NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt((1 + inner**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(inner) + sign * width) for sign in (-1, 1))
    return Correlation(n, value, min(low, value), max(high, value))


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value)) / 2 for value in values]


def described(record: ExperimentRecord) -> str:
    """Returns a sentence about the first MAX_NAMED_RUNGS rungs with a known correlation; empty without one."""
    rungs = []
    for row in prediction(record):
        where = f"{row.rung:g}" + (f" of bracket {row.bracket}" if row.bracket else "")
        both = {"there": row.at_rung, "that completed": row.at_end}
        known = " and ".join(f"{each} {which}" for which, each in both.items() if each.value is not None)
        rungs += [f"at rung {where}, {known}"] if known else []
    names = (printable(goal.metric)[:40] for goal in (record.experiment.compared, record.experiment.wanted))
    about = f"Rank correlation of {' with '.join(names)} (1 = the same order, best first; 95 % interval)"
    return f"{about}: {'; '.join(rungs[:MAX_NAMED_RUNGS])}." if rungs else ""
