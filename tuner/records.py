"""Events folded into frozen records: what the journal says of each trial. Pure: no files, no clock."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.experiment import Experiment
from tuner.journal import Event
from tuner.kept import kept


@dataclass(frozen=True, slots=True)
class Report:
    """One line of metrics: after `epoch` epochs; `checkpoint` is relative to the experiment's folder.

    `order` is its place among the events: the order in which reports arrived, where `time` is too coarse to tell.
    """

    epoch: int
    metrics: dict[str, Any]
    checkpoint: str | None
    time: float
    order: int = 0


@dataclass(frozen=True, slots=True)
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

    `status` is suggested, running, completed, pruned, failed or interrupted; `reason` says why it ended; `order` is
    the place of its first event among all; `spans` are its sessions on a worker, in unix seconds; `repeated` are
    reports of epochs that a restart trained again.
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
    order: int = 0
    spans: tuple[tuple[float, float], ...] = ()
    repeated: tuple[Report, ...] = ()

    def best(self, metric: str, mode: str, only_saved: Path | None = None) -> Report | None:
        """The report with the best finite value, the earlier of equal ones; None where there is none.

        With `only_saved` (the experiment's folder), of the reports whose checkpoint is there.
        """
        for report in self._best_first(metric, mode):
            if only_saved is None or (report.checkpoint and (only_saved / report.checkpoint).is_dir()):
                return report
        return None

    @kept
    def _best_first(self, metric: str, mode: str) -> list[Report]:
        sign = 1 if mode == "min" else -1
        known = [r for r in self.reports if _is_finite(r.metrics.get(metric))]
        return sorted(known, key=lambda report: sign * report.metrics[metric])


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def best_of(
    trials: Iterable[TrialRecord], experiment: Experiment, only_saved: Path | None
) -> tuple[TrialRecord, Report] | None:
    """The best report of all trials with its trial, the earlier of equal ones; None where none is finite."""
    metric, mode = experiment.metric, experiment.mode
    sign = 1 if mode == "min" else -1

    def rank(report: Report) -> tuple[float, float]:
        return sign * report.metrics[metric], report.time

    found: tuple[TrialRecord, Report] | None = None
    candidates = [(t, r) for t in trials if (r := t.best(metric, mode))]
    for trial, at_most in sorted(candidates, key=lambda pair: rank(pair[1])):
        if found and rank(at_most) > rank(found[1]):
            break  # no later one can be better, so their checkpoints are not looked for on the disk
        report = trial.best(metric, mode, only_saved)
        if report and (found is None or rank(report) < rank(found[1])):
            found = trial, report
    return found


def records_of(events: Iterable[Event]) -> list[TrialRecord]:
    """Folds events into one record a trial, in the order in which the trials were first seen."""
    folding = Folding()
    for event in events:
        folding.add(event)
    return folding.records()


class Folding:
    """Trials' records while their events come in; a record is made anew only for a trial that had one since."""

    def __init__(self) -> None:
        self._building: dict[str, _Building] = {}
        self._made: dict[str, TrialRecord] = {}
        self._count = 0

    def add(self, event: Event) -> None:
        """Takes in the next event."""
        self._count += 1
        trial = event.get("trial")
        if trial is None:
            return
        building = self._building.get(trial)
        if building is None:
            building = self._building[trial] = _Building(trial, self._count)
        building.add(event, self._count)
        self._made.pop(trial, None)

    def records(self) -> list[TrialRecord]:
        """One a trial, in the order in which they were first seen."""
        for trial, building in self._building.items():
            if trial not in self._made:
                self._made[trial] = building.record()
        return [self._made[trial] for trial in self._building]


class _Building:
    """A trial's record while its events are read; lists here, so that n reports cost n and not n squared."""

    def __init__(self, trial_id: str, order: int) -> None:
        self.fields: dict[str, Any] = {"id": trial_id, "config": {}, "order": order}
        self.reports: dict[int, Report] = {}
        self.repeated: list[Report] = []
        self.decisions: list[Decision] = []
        self.errors: list[str] = []
        self.seconds, self.since = 0.0, math.nan
        self.spans: list[tuple[float, float]] = []

    def add(self, event: Event, order: int) -> None:
        kind, time = event["event"], event["time"]
        if "config" in event:
            self.fields["config"] = event["config"]
        if kind == "trial_started":
            self.since = time
            self.spans.append((time, time))
            self.fields.update(status="running", reason="", resources=event["resources"], node=event["node"])
        elif kind == "report":
            self._report(event, order)
        elif kind == "decision":
            self.decisions.append(Decision(*(event[name] for name in _DECIDED)))
        elif kind == "trial_failed":
            self.errors.append(event["error"])
        elif kind == "trial_ended":
            self.fields.update(status=event["status"], reason=event["reason"])
        if not math.isnan(self.since) and kind in ("report", "trial_ended", "trial_failed"):
            self.seconds += time - self.since
            self.since = time if kind == "report" else math.nan
            self.spans[-1] = self.spans[-1][0], time

    def _report(self, event: Event, order: int) -> None:
        epoch = event["epoch"]
        # By epoch: a restart that had no checkpoint reports the same epochs again, and the later one counts.
        if epoch in self.reports:
            self.repeated.append(self.reports[epoch])
        # A metric's name is kept once, not once a report: half of what 100,000 reports take.
        metrics = {sys.intern(name): value for name, value in event["metrics"].items()}
        self.reports[epoch] = Report(epoch, metrics, event.get("checkpoint"), event["time"], order)

    def record(self) -> TrialRecord:
        return TrialRecord(
            **self.fields,
            reports=tuple(self.reports.values()),
            decisions=tuple(self.decisions),
            errors=tuple(self.errors),
            seconds=round(self.seconds, 3),
            spans=tuple(self.spans),
            repeated=tuple(self.repeated),
        )


_DECIDED = tuple(Decision.__dataclass_fields__)
