"""Events folded into frozen records: what the journal says of each trial. Pure: no files, no clock."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.experiment import Experiment
from tuner.journal import Event


@dataclass(frozen=True)
class Report:
    """One line of metrics: after `epoch` epochs; `checkpoint` is relative to the experiment's folder."""

    epoch: int
    metrics: dict[str, Any]
    checkpoint: str | None
    time: float


@dataclass(frozen=True)
class Decision:
    """What the scheduler said of a report, and why; `value` and `cutoff` in the metric's own units and sign."""

    epoch: int
    rung: int | None
    bracket: int | None
    value: float | None
    cutoff: float | None
    recorded: int
    action: str
    reason: str


@dataclass(frozen=True)
class TrialRecord:
    """One trial as the journal has it.

    `status` is suggested, running, completed, pruned, failed or interrupted; `reason` says why it ended.
    """

    id: str
    config: dict[str, Any]
    status: str = "suggested"
    reason: str = ""
    reports: tuple[Report, ...] = ()
    decisions: tuple[Decision, ...] = ()
    errors: tuple[str, ...] = ()
    resources: dict[str, Any] = field(default_factory=dict)
    node: str = ""
    seconds: float = 0.0  # from its start, or its last restart, to its last event; all restarts added

    def best(self, metric: str, mode: str, only_saved: Path | None = None) -> Report | None:
        """The report with the best finite value, the earlier of equal ones; None where there is none.

        With `only_saved` (the experiment's folder), of the reports whose checkpoint is there.
        """
        found: Report | None = None
        sign = 1 if mode == "min" else -1
        for report in self.reports:
            value = report.metrics.get(metric)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                continue
            if only_saved and not (report.checkpoint and (only_saved / report.checkpoint).is_dir()):
                continue
            if found is None or sign * value < sign * found.metrics[metric]:
                found = report
        return found


def best_of(
    trials: Iterable[TrialRecord], experiment: Experiment, only_saved: Path | None
) -> tuple[TrialRecord, Report] | None:
    """The best report of all trials with its trial, the earlier of equal ones; None where none is finite."""
    sign = 1 if experiment.mode == "min" else -1
    found = [(t, r) for t in trials if (r := t.best(experiment.metric, experiment.mode, only_saved))]
    return min(found, key=lambda pair: (sign * pair[1].metrics[experiment.metric], pair[1].time), default=None)


def records_of(events: Iterable[Event]) -> list[TrialRecord]:
    """Folds events into one record a trial, in the order in which the trials were first seen."""
    building: dict[str, _Building] = {}
    for event in events:
        if "trial" in event:
            building.setdefault(event["trial"], _Building(event["trial"])).add(event)
    return [trial.record() for trial in building.values()]


class _Building:
    """A trial's record while its events are read; lists here, so that n reports cost n and not n squared."""

    def __init__(self, trial_id: str) -> None:
        self.fields: dict[str, Any] = {"id": trial_id, "config": {}}
        self.reports: dict[int, Report] = {}
        self.decisions: list[Decision] = []
        self.errors: list[str] = []
        self.seconds, self.since = 0.0, math.nan

    def add(self, event: Event) -> None:
        kind = event["event"]
        if "config" in event:
            self.fields["config"] = event["config"]
        if kind == "trial_started":
            self.since = event["time"]
            self.fields.update(status="running", reason="", resources=event["resources"], node=event["node"])
        elif kind == "report":
            # By epoch: a restart that had no checkpoint reports the same epochs again, and the later one counts.
            self.reports[event["epoch"]] = Report(
                event["epoch"], event["metrics"], event.get("checkpoint"), event["time"]
            )
        elif kind == "decision":
            self.decisions.append(Decision(**{k: event[k] for k in Decision.__dataclass_fields__}))
        elif kind == "trial_failed":
            self.errors.append(event["error"])
        elif kind == "trial_ended":
            self.fields.update(status=event["status"], reason=event["reason"])
        if not math.isnan(self.since) and kind in ("report", "trial_ended", "trial_failed"):
            self.seconds += event["time"] - self.since
            self.since = event["time"] if kind == "report" else math.nan

    def record(self) -> TrialRecord:
        return TrialRecord(
            **self.fields,
            reports=tuple(self.reports.values()),
            decisions=tuple(self.decisions),
            errors=tuple(self.errors),
            seconds=round(self.seconds, 3),
        )
