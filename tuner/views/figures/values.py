"""Which value of each trial the figures compare: its best, last, or value at a shared epoch, of any metric."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import chain, islice

from tuner.errors import RequestError, nearest
from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.trial_row import numbers_of
from tuner.spec.constraints import Aim
from tuner.spec.metrics import usual_mode

BEST, LAST = "best", "last"
PATTERN = "^(best|last|[1-9][0-9]{0,8})?(:.{1,200})?$"  # what a choice must look like, for the service
ABOUT = (
    "which value of each trial to compare: best, last, or an epoch's number; empty = the last epoch that nine of ten "
    "trials reached if trials were pruned by this metric, else best. `:METRIC` behind it chooses another metric; its "
    "`best` is the value in the trial's best report"
)
MISSING = 10  # the default epoch is the last epoch that all but 1 in MISSING trials have reached
MAX_OFFERED_EPOCHS = 12  # maximum number of rungs' epochs that are offered
MOST_METRICS, MOST_NAME = 100, 200  # maximum number of metrics that are offered, and of a name's characters


def split(choice: str, metric: str) -> tuple[str, str]:
    """Splits a choice into `best`, `last` or an epoch, and its metric; `metric` is that of a choice without one."""
    at, _, other = choice.partition(":")
    return at, other or metric


@kept
def metrics_of(record: ExperimentRecord) -> list[str]:
    """Returns the metrics that trials have reported as numbers, the searched ones first."""
    goals = [goal.metric for goal in record.experiment.aim.goals]
    reported = chain.from_iterable(dict.fromkeys(record.stats.by_trial(numbers_of)))  # most trials are alike
    names = (name for name in dict.fromkeys(chain(goals, reported)) if len(name) <= MOST_NAME)
    return list(islice(names, MOST_METRICS))


def mode_of(record: ExperimentRecord, metric: str) -> str:
    """Returns a metric's direction: that of the search, else what its name suggests; empty if that is unknown."""
    goals = (*record.experiment.aim.goals, record.experiment.compared)
    return next((goal.mode for goal in goals if goal.metric == metric), usual_mode(metric))


@kept
def offered(record: ExperimentRecord) -> list[str]:
    """Returns the choices: `best`, `last`, and, as text, epochs of rungs and the epoch of `shared_epoch`."""
    rungs = sorted({math.ceil(rung.rung) for rung in record.stats.rungs})
    epochs = {*rungs[:: math.ceil(len(rungs) / MAX_OFFERED_EPOCHS) or 1], shared_epoch(record)}
    return [BEST, LAST, *(str(epoch) for epoch in sorted(epochs) if epoch)]


@kept
def default(record: ExperimentRecord) -> str:
    """Returns the choice for a request that names none: `shared_epoch` if trials were pruned, else the best value.

    With --prune-by, it is the best value, because reports may lack the metric.
    """
    if record.experiment.compared != record.experiment.wanted or not record.stats.counts["pruned"]:
        return BEST
    return str(shared_epoch(record) or BEST)


@kept
def shared_epoch(record: ExperimentRecord) -> int:
    """Returns the last epoch that nine of ten trials with a finite value reached; 0 if no trial has one."""
    lasts = zip(record.stats.by_trial(getattr, "last_epoch"), values_of(record, BEST), strict=True)
    reached = sorted(last for last, best in lasts if best is not None)
    return reached[len(reached) // MISSING] if reached else 0


def chosen(record: ExperimentRecord, choice: str) -> str:
    """Returns the choice, completed by the default; raises RequestError for a text that is no choice."""
    at, metric = split(choice, "")
    if at and at not in (BEST, LAST) and not (at.isdecimal() and at.isascii()):
        raise RequestError(f"values {at!r}: must be {BEST}, {LAST} or an epoch{nearest(at, (BEST, LAST))}")
    return (at or default(record)) + of_metric(record, metric, record.experiment.wanted.metric)


def of_metric(record: ExperimentRecord, metric: str, usual: str) -> str:
    """Returns `:METRIC`, or an empty text for the usual metric; raises RequestError if no trial reports the metric."""
    if metric in ("", usual):
        return ""
    if metric not in (known := metrics_of(record)):
        raise RequestError(f"metric {metric!r}: must be one that trials report{nearest(metric, known)}")
    return f":{metric}"


def values_of(record: ExperimentRecord, choice: str) -> list[float | None]:
    """Returns each trial's `value_of`; None for all trials if the search was refused."""
    aim = record.experiment.aim
    if record.refused:
        return [None] * len(record.trials)
    # `by_trial` keeps its values until the search ends. Readers may ask for any epoch of any metric.
    if choice in (BEST, LAST) or choice in offered(record):
        return record.stats.by_trial(value_of, aim, choice)
    return [value_of(trial, aim, choice) for trial in record.trials]


def value_of(trial: TrialRecord, aim: Aim, choice: str) -> float | None:
    """Returns the chosen value; None if missing or not finite. If an epoch has no report, the next report counts."""
    at, metric = split(choice, aim.goals[0].metric)
    if at == BEST:
        best = trial.best(aim)
        return finite(best.metrics.get(metric)) if best else None
    if at == LAST:
        return finite(trial.last(metric))
    place = bisect_left(trial.reports, int(at), key=lambda report: report.epoch)
    return finite(trial.reports[place].metrics.get(metric)) if place < len(trial.reports) else None


def title_of(metric: str, choice: str) -> str:
    """Names the compared values as an axis does: `best loss`, `accuracy at the best epoch`, `loss at epoch 4`."""
    at, other = split(choice, metric)
    if at == BEST and other != metric:
        return f"{other} at the best epoch"
    return f"{at} {other}" if at in (BEST, LAST) else f"{other} at epoch {at}"
