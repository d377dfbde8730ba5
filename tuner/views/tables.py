"""Builds an experiment's tables as rows of plain data; the service's JSON has NaN and infinity as strings."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tuner.core.events import Decision
from tuner.core.rules.asha import cutoff
from tuner.record.columns import column
from tuner.record.records import TrialRecord, finite
from tuner.record.report_keys import SPEED, USAGE
from tuner.record.results import ExperimentRecord
from tuner.record.search_stats import RungKey
from tuner.record.texts import formatted
from tuner.record.trial_row import Number, TrialRow, trial_row
from tuner.spec.metrics import is_number
from tuner.views.figures.values import MOST_METRICS

SURVIVE = "pruned trials whose value at the rung is at least as good as the cutoff with all results"
OUTCOMES = "continued, paused, pruned; completed or failed if the trial ended by itself"
MARGIN = "distance between value and cutoff; 0 and continued: the trial's own value is the cutoff"


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

    point: int = column("", "as load_best(..., point=N) numbers them; 0 is the knee")
    trial: str = column("", "", "trial")
    epoch: int = column()
    values: dict[str, float] = column("metrics", "", "parameters")
    config: dict[str, Any] = column("parameters", "", "parameters")


@dataclass(frozen=True)
class RungRow:
    """A `RungSummary`, with the rung's best value and asha's present cutoff there."""

    rung: float = column("", "epochs at which the scheduler compares trials")
    bracket: int | None = column(spare=True)
    band: int | None = column("", "hyperband and bohb have several brackets in each band", spare=True)
    reached: int = column("", "trials that reached the rung")
    continued: int = column("", "of them, those that trained on")
    stopped: int = column("pruned")
    waiting: int = column("paused")
    best: Number | None = column("best value")
    cutoff_then: Number | None = column("last cutoff used", "the cutoff when the last trial was compared")
    # asha's, from all values at the rung; None for other rules and without values
    cutoff_now: Number | None = column("cutoff with all results", "the cutoff over all trials that reached the rung")
    would_pass_now: int | None = column(shown="")  # how many values reach it
    would_survive: int | None = column("would survive today", SURVIVE)


@dataclass(frozen=True)
class DecisionRow:
    """One decision of the scheduler; `margin` = |value - cutoff|, None if either is missing or not finite.

    `value` is the value that the scheduler compared: for the median rule, the trial's best.
    """

    trial: str = column("", "", "trial")
    outcome: str = column("", OUTCOMES, "status")
    epoch: int = column()
    rung: float | None = column()
    bracket: int | None = column(shown="page", spare=True)
    band: int | None = column(shown="page", spare=True)
    value: Number | None = column()
    cutoff: Number | None = column()
    margin: float | None = column("", MARGIN)
    recorded: int = column("compared with", "number of other trials that had a value at the rung by then", shown="page")
    reason: str = column("", "", "text")
    action: str = column(shown="")


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
    return [trial_row(record, trial) for trial in (record.trials if trials is None else trials)]


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
    margin = d.margin if math.isfinite(d.margin) else None
    of_rung = d.rung, d.bracket, d.band, d.compared_value, d.cutoff, margin, d.recorded
    outcome = {"continue": "continued", "pause": "paused", "stop": "pruned"}.get(d.action, d.action)
    if d.action == "stop" and trial.status in ("completed", "failed") and d is trial.decisions[-1]:
        outcome = trial.status
    return DecisionRow(trial.id, outcome, d.epoch, *of_rung, d.reason, d.action)
