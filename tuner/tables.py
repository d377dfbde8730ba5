"""An experiment's tables as rows of plain data: summary, trials, rungs, decisions. Pure: no files, no clock.

Rows are what the service sends and the report prints. A float may be nan or infinite; JSON has the string then.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tuner.experiment import Experiment
from tuner.kept import kept
from tuner.records import Decision, TrialRecord
from tuner.results import ExperimentRecord

Number = float | Literal["nan", "inf", "-inf"]


@dataclass(frozen=True)
class BestRow:
    """The winner so far: its trial, the epoch of its best value, the value, and its setting."""

    trial: str
    epoch: int
    value: float
    config: dict[str, Any]


@dataclass(frozen=True)
class TrialRow:
    """One trial. `best` and `last` are the search metric's; `seconds` of training, restarts added; `rung` an epoch."""

    trial: str
    status: str
    epochs: int
    best: Number | None
    best_epoch: int | None
    last: Number | None
    seconds: float
    rung: int | None
    reason: str
    config: dict[str, Any]
    resources: dict[str, Any]
    node: str
    errors: list[str]


@dataclass(frozen=True)
class RungRow:
    """One rung of one bracket: `came` trials, of which so many went on, were stopped, or wait there.

    `cutoff_then` is the last that a trial was held against; `cutoff_now` and `would_pass_now` judge all who came by
    all who came, and are None where the scheduler's rule is not a percentile of the rung (all but asha).
    """

    rung: int
    bracket: int | None
    came: int
    went_on: int
    stopped: int
    waiting: int
    best: Number | None
    cutoff_then: Number | None
    cutoff_now: Number | None
    would_pass_now: int | None


@dataclass(frozen=True)
class DecisionRow:
    """One decision; `margin` = |value - cutoff|, None where either is missing or not finite."""

    trial: str
    epoch: int
    rung: int | None
    bracket: int | None
    value: Number | None
    cutoff: Number | None
    margin: float | None
    recorded: int
    action: str
    reason: str


def counts(trials: Iterable[TrialRecord]) -> dict[str, int]:
    """Status -> number of trials, for all six statuses."""
    found = Counter(trial.status for trial in trials)
    return {name: found[name] for name in ("suggested", "running", "completed", "pruned", "failed", "interrupted")}


def best_row(record: ExperimentRecord) -> BestRow | None:
    """The winner by `experiment.BEST_RULE`; None where no trial has a finite metric."""
    found = record.best()
    if found is None:
        return None
    trial, report = found
    return BestRow(trial.id, report.epoch, report.metrics[record.experiment.metric], trial.config)


def trial_rows(record: ExperimentRecord) -> list[TrialRow]:
    """One row a trial, in the order in which they were suggested."""
    metric, mode = record.experiment.metric, record.experiment.mode
    return [trial_row(trial, metric, mode) for trial in record.trials]


@kept
def trial_row(trial: TrialRecord, metric: str, mode: str) -> TrialRow:
    """One trial's row."""
    best = trial.best(metric, mode)
    stops = [decision for decision in trial.decisions if decision.action == "stop"]
    return TrialRow(
        trial=trial.id,
        status=trial.status,
        epochs=trial.reports[-1].epoch if trial.reports else 0,
        best=best.metrics[metric] if best else None,
        best_epoch=best.epoch if best else None,
        last=_number(trial.reports[-1].metrics.get(metric)) if trial.reports else None,
        seconds=trial.seconds,
        rung=stops[-1].rung if stops else None,
        reason=trial.reason,
        config=trial.config,
        resources=trial.resources,
        node=trial.node,
        errors=list(trial.errors),
    )


def rung_rows(record: ExperimentRecord) -> list[RungRow]:
    """One row a rung and bracket that a trial came to, the lowest bracket and rung first."""
    came: dict[tuple[int | None, int], dict[str, list[Decision]]] = defaultdict(lambda: defaultdict(list))
    for trial in record.trials:
        for decision in trial.decisions:
            if decision.rung is not None:
                came[decision.bracket, decision.rung][trial.id].append(decision)
    reached = {trial.id: trial.reports[-1].epoch for trial in record.trials if trial.reports}
    places = sorted(came, key=lambda place: (-1 if place[0] is None else place[0], place[1]))
    return [_rung_row(place, came[place], reached, record.experiment) for place in places]


def _rung_row(
    place: tuple[int | None, int], came: dict[str, list[Decision]], reached: dict[str, int], experiment: Experiment
) -> RungRow:
    actions = Counter(decisions[-1].action for decisions in came.values())
    # A trial that was paused goes on without another decision: its reports say that it did.
    waiting = sum(d[-1].action == "pause" and reached.get(t, 0) <= d[-1].epoch for t, d in came.items())
    # A trial is at a rung once: where a restart came again, the later value counts.
    values = [v for decisions in came.values() if (v := decisions[-1].value) is not None and math.isfinite(v)]
    held = [d for decisions in came.values() for d in decisions if d.cutoff is not None]
    now = cutoff_of(values, experiment) if experiment.scheduler == "asha" else None
    sign = 1 if experiment.mode == "min" else -1
    return RungRow(
        rung=place[1],
        bracket=place[0],
        came=len(came),
        went_on=actions["continue"] + actions["pause"] - waiting,
        stopped=actions["stop"],
        waiting=waiting,
        best=sign * min(sign * value for value in values) if values else None,
        cutoff_then=max(held, key=lambda d: d.recorded).cutoff if held else None,
        cutoff_now=now,
        would_pass_now=None if now is None else sum(sign * value <= sign * now for value in values),
    )


def cutoff_of(values: list[float], experiment: Experiment) -> float | None:
    """What asha asks of the next trial at a rung where `values` are recorded, as Ray's `_Bracket.cutoff` has it."""
    if not values:
        return None
    sign = 1 if experiment.mode == "max" else -1
    share = (1 - 1 / experiment.reduction_factor) * 100
    return sign * float(np.percentile([sign * value for value in values], share))


def decision_rows(record: ExperimentRecord) -> list[DecisionRow]:
    """Every decision, close calls first; those that compared nothing come last, in the order of the trials."""
    rows = [row for trial in record.trials for row in _decision_rows(trial)]
    return sorted(rows, key=lambda row: math.inf if row.margin is None else row.margin)


@kept
def _decision_rows(trial: TrialRecord) -> list[DecisionRow]:
    return [decision_row(trial.id, decision) for decision in trial.decisions]


def decision_row(trial: str, d: Decision) -> DecisionRow:
    """One decision's row."""
    known = d.value is not None and d.cutoff is not None and math.isfinite(d.value) and math.isfinite(d.cutoff)
    margin = abs(d.value - d.cutoff) if known else None  # type: ignore[operator]
    return DecisionRow(trial, d.epoch, d.rung, d.bracket, d.value, d.cutoff, margin, d.recorded, d.action, d.reason)


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
