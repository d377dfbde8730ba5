"""Which value of each trial the figures compare: its best, its last, or its value at an epoch that trials share."""

from __future__ import annotations

import math
from bisect import bisect_left

from tuner.errors import RequestError, nearest
from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.spec.constraints import Aim

BEST, LAST = "best", "last"
PATTERN = "^(best|last|[1-9][0-9]{0,8})?$"  # what a choice must look like, for the service
ABOUT = (
    "which value of each trial to compare: best, last, or an epoch's number; empty = the last epoch that nine of ten "
    "trials reached if trials were pruned by this metric, else best"
)
MISSING = 10  # the default epoch is the last epoch that all but 1 in MISSING trials have reached
MOST_EPOCHS = 12  # maximum number of rungs' epochs that are offered


@kept
def offered(record: ExperimentRecord) -> list[str]:
    """Returns the choices: `best`, `last`, and, as text, epochs of rungs and the epoch of `shared_epoch`."""
    rungs = sorted({math.ceil(rung.rung) for rung in record.stats.rungs})
    epochs = {*rungs[:: math.ceil(len(rungs) / MOST_EPOCHS) or 1], shared_epoch(record)}
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
    """Returns the choice, or the default if it is empty; raises RequestError for a text that is no choice."""
    if choice and choice not in (BEST, LAST) and not (choice.isdecimal() and choice.isascii()):
        raise RequestError(f"values {choice!r}: must be {BEST}, {LAST} or an epoch{nearest(choice, (BEST, LAST))}")
    return choice or default(record)


def values_of(record: ExperimentRecord, choice: str) -> list[float | None]:
    """Returns each trial's `value_of`; None for all trials if the search was refused."""
    experiment = record.experiment
    values = record.stats.by_trial(value_of, experiment.aim, choice)
    return [None] * len(values) if record.refused else values


def value_of(trial: TrialRecord, aim: Aim, choice: str) -> float | None:
    """Returns the chosen value; None if missing or not finite. If an epoch has no report, the next report counts."""
    metric = aim.goals[0].metric
    if choice == BEST:
        best: float | None = trial.best_value(aim)
        return best
    if choice == LAST:
        return finite(trial.last(metric))
    place = bisect_left(trial.reports, int(choice), key=lambda report: report.epoch)
    return finite(trial.reports[place].metrics.get(metric)) if place < len(trial.reports) else None


def title_of(metric: str, choice: str) -> str:
    """Names the compared values as an axis does: `best loss`, `loss at epoch 4`."""
    return f"{choice} {metric}" if choice in (BEST, LAST) else f"{metric} at epoch {choice}"
