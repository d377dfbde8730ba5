"""Builds an experiment's tables as rows of plain data; the service's JSON has NaN and infinity as strings."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from tuner.core.events import Decision
from tuner.record.records import TrialRecord, finite
from tuner.record.report_keys import SPEED, USAGE
from tuner.record.results import ExperimentRecord
from tuner.record.search_stats import RungKey
from tuner.record.texts import formatted
from tuner.rules.asha import cutoff
from tuner.spec.metrics import is_number
from tuner.views.figures.values import MOST_METRICS, numbers_of

Number = float | Literal["nan", "inf", "-inf"]


@dataclass(frozen=True)
class BestRow:
    """The winner so far: its trial, the epoch of its best value, that value, and its parameters."""

    trial: str
    epoch: int
    value: float
    config: dict[str, Any]


@dataclass(frozen=True)
class FrontRow:
    """A point of the Pareto front, as `load_best` numbers it: its trial, the epoch, its metrics, and its parameters."""

    point: int
    trial: str
    epoch: int
    values: dict[str, float]
    config: dict[str, Any]


@dataclass(frozen=True)
class TrialRow:
    """One trial. `best` and `last` are values of the search's metric; `status` is one of `search_stats.STATUSES`.

    `reason` says why the trial ended, or what it waits for while it is paused. `seconds` is its time on workers,
    `cpu_hours` and `gpu_hours` are its CPUs and GPUs times that time. `rung` is the rung, in epochs, at which a rule
    stopped it; None if no rule did. `attempts` counts its starts, without the returns of a paused trial; `seconds` are
    those of all attempts. `metrics` maps each other metric to its values in the best report and at last.
    """

    trial: str
    status: str
    epochs: int
    best: Number | None
    best_epoch: int | None
    last: Number | None
    seconds: float
    rung: float | None
    reason: str
    config: dict[str, Any]
    resources: dict[str, Any]
    node: str
    errors: list[str]
    cpu_hours: float
    gpu_hours: float
    attempts: int
    metrics: dict[str, list[Number | None]]


@dataclass(frozen=True)
class RungRow:
    """A `RungSummary`, with the rung's best value and asha's present cutoff there."""

    rung: float
    bracket: int | None
    band: int | None
    reached: int
    continued: int
    stopped: int
    waiting: int
    best: Number | None
    cutoff_then: Number | None
    cutoff_now: Number | None  # asha's, from all values at the rung; None for other rules and without values
    would_pass_now: int | None  # how many values reach it
    would_survive: int | None  # how many of them are of pruned trials


@dataclass(frozen=True)
class DecisionRow:
    """One decision of the scheduler; `margin` = |value - cutoff|, None if either is missing or not finite.

    `value` is the value that the scheduler compared: for the median rule, the trial's best. `outcome` says what became
    of the trial: continued, paused or pruned, or, if it ended by itself, completed or failed.
    """

    trial: str
    epoch: int
    rung: float | None
    bracket: int | None
    value: Number | None
    cutoff: Number | None
    margin: float | None
    recorded: int
    action: str
    reason: str
    band: int | None
    outcome: str


def best_row(record: ExperimentRecord) -> BestRow | None:
    """Returns the winner by `experiment.BEST_RULE`; None if no trial has a finite metric, or the search was refused."""
    if (best := record.best()) is None:
        return None
    trial, report = best
    return BestRow(trial.id, report.epoch, report.metrics[record.experiment.wanted.metric], trial.config)


def best_metrics(record: ExperimentRecord) -> dict[str, Number]:
    """Returns the metrics of the best report, at most MOST_METRICS, without resource usage and speed."""
    best = record.best()
    metrics = best[1].metrics if best else {}
    known = ((name, value) for name, value in metrics.items() if is_number(value) and name not in USAGE | SPEED)
    return dict(islice(known, MOST_METRICS))


def front_rows(record: ExperimentRecord) -> list[FrontRow]:
    """Returns the Pareto front, its knee first; empty with one metric."""
    goals, rows = record.experiment.aim.goals, []
    for point, (trial, report) in enumerate(record.front() if record.experiment.aim.several else ()):
        values = {goal.metric: report.metrics[goal.metric] for goal in goals}
        rows.append(FrontRow(point, trial.id, report.epoch, values, trial.config))
    return rows


def changed_since(record: ExperimentRecord, since: int) -> Sequence[TrialRecord]:
    """Returns the trials with an event after line `since` of the journal, in order; all trials if `since` is 0."""
    return record.trials if since == 0 else [trial for trial in record.trials if trial.changed_at > since]


def trial_rows(record: ExperimentRecord, trials: Iterable[TrialRecord] | None = None) -> list[TrialRow]:
    """Returns one row for each of `trials`; by default for all trials, in the order in which they were suggested."""
    return [_trial_row(record, trial) for trial in (record.trials if trials is None else trials)]


def _trial_row(record: ExperimentRecord, trial: TrialRecord) -> TrialRow:
    metric = record.experiment.wanted.metric
    best = trial.best(record.experiment.aim)
    others = [name for name in numbers_of(trial) if name != metric]
    stops = [decision for decision in trial.decisions if decision.action == "stop"]
    return TrialRow(
        trial=trial.id,
        status=trial.status,
        epochs=trial.last_epoch,
        best=best.metrics[metric] if best else None,
        best_epoch=best.epoch if best else None,
        last=_number(trial.last(metric)),
        seconds=trial.seconds,
        rung=stops[-1].rung if stops else None,
        reason=trial.reason,
        config=trial.config,
        resources=trial.resources,
        node=trial.node,
        errors=list(trial.errors),
        cpu_hours=trial.cpu_hours,
        gpu_hours=trial.gpu_hours,
        attempts=trial.attempts,
        metrics={
            each: [_number(best.metrics.get(each)) if best else None, _number(trial.last(each))] for each in others
        },
    )


def _number(value: Any) -> Any:
    return value if is_number(value) else None


def rung_rows(record: ExperimentRecord, limit: int | None = None) -> list[RungRow]:
    """Returns one row for each rung that a trial reached, ordered by band, bracket and rung; `limit` rows at most."""
    rows, e, sign = [], record.experiment, -record.experiment.compared.sign
    is_asha = e.scheduler == "asha" or bool(record.changed)
    pruned: dict[RungKey, list[float]] = defaultdict(list)
    for trial in record.stats.stopped:
        last = trial.decisions[-1]
        if (value := finite(last.compared_value)) is not None and last.rung is not None:
            pruned[last.band, last.bracket, last.rung].append(sign * value)
    for at in record.stats.rungs[:limit]:
        now = cutoff(at.scores, e.reduction_factor) if is_asha else None
        passing = None if now is None else len(at.scores) - bisect_left(at.scores, now)
        surviving = None if now is None else sum(score >= now for score in pruned[at.band, at.bracket, at.rung])
        best, then = sign * at.scores[-1] if at.scores else None, at.cutoff_then
        rows.append(RungRow(*at[:7], best, then, None if now is None else sign * now, passing, surviving))
    return rows


def notices(record: ExperimentRecord) -> list[str]:
    """Returns notes for the reader: the data's notice, and which better report has lost its checkpoint."""
    notice = (record.facts.get("data") or {}).get("notice")
    notices, first, best = [notice] if notice else [], record.best_journaled, record.best()
    if first and best and first[1] is not best[1]:
        trial, report = first
        value = f"{record.experiment.wanted.metric} {formatted(report.metrics[record.experiment.wanted.metric])}"
        what = f"trial {trial.id} reported {value} at epoch {report.epoch}, but its checkpoint is gone"
        notices.append(f"The best shown is the best with a checkpoint left: {what}.")
    return notices


def decision_rows(
    record: ExperimentRecord, offset: int = 0, limit: int | None = None, since: int = 0
) -> list[DecisionRow]:
    """Returns at most `limit` decisions from `offset` on, by ascending margin; decisions without a margin come last.

    With `since`, only decisions of the trials of `changed_since` are returned, in the order of the trials.
    """
    changed = ((trial, decision) for trial in changed_since(record, since) for decision in trial.decisions)
    places = ((record.trials[index], number) for _, index, number in record.stats.ranked_decisions)
    ranked = ((trial, trial.decisions[number]) for trial, number in places)
    end = None if limit is None else offset + limit
    return [decision_row(*each) for each in islice(changed if since else ranked, offset, end)]


def decision_row(trial: TrialRecord, d: Decision) -> DecisionRow:
    margin, of_rung = d.margin if math.isfinite(d.margin) else None, (d.rung, d.bracket, d.compared_value, d.cutoff)
    outcome = {"continue": "continued", "pause": "paused", "stop": "pruned"}.get(d.action, d.action)
    if d.action == "stop" and trial.status in ("completed", "failed") and d is trial.decisions[-1]:
        outcome = trial.status
    return DecisionRow(trial.id, d.epoch, *of_rung, margin, d.recorded, d.action, d.reason, d.band, outcome)
