"""Builds one frozen record per trial, and the state of the search, from events. Reads no files and no clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from tuner.core.events import (
    Beginning,
    Decision,
    Event,
    ExperimentFinished,
    GraceLearned,
    LengthLearned,
    Report,
    SchedulerChanged,
    StoodStill,
    TrialEnded,
    TrialEvent,
    TrialFailed,
    TrialStarted,
    TrialSuggested,
    shown_status,
)
from tuner.core.timing import Pace, Sessions
from tuner.spec.constraints import Aim
from tuner.spec.metrics import Goal, keeps_last
from tuner.spec.metrics import finite as finite

Function = TypeVar("Function", bound=Callable[..., Any])


def kept(function: Function) -> Function:
    """Caches a function's result inside the record that is its first argument; callers must not change the result.

    Without the cache the dashboard takes 1.2 s to draw 10,000 trials, and it draws them again after each event.
    """

    @wraps(function)
    def once(record: Any, /, *args: Any) -> Any:
        results: dict[object, Any] = record.__dict__.setdefault("_kept", {})
        key = function, args
        if key not in results:
            results[key] = function(record, *args)
        return results[key]

    return once  # type: ignore[return-value]


@dataclass(frozen=True)
class TrialRecord:
    """One trial, built from its events in the journal.

    Attributes:
        status: suggested, running, paused, completed, pruned, failed or interrupted.
        reason: why the trial ended, or what it waits for while it is paused; empty otherwise.
        order, changed_at: the numbers of the trial's first and last events in the journal.
        cpu_hours, gpu_hours: its CPUs and GPUs times its hours on workers.
        epoch_seconds: mean seconds from a report to the next of the same attempt, without pauses and what the search
            stood still; None if unknown.
        spans: start and end of each time span on a worker, in unix seconds.
        failure: the kind of its last failure: oom, cuda, user or worker_lost; empty if it never failed.
        pid: the process id of its worker; None if it has no worker, or if the journal does not record the id.
        repeated: earlier reports of epochs that the trial trained again, after a restart or from a copied state.
        confirms, seed: the trial whose setting this one trains again, and its own seed; empty and 0 in the search.
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
    seconds: float = 0.0  # on workers: sum of the trial's runs, each from its start to its last report, failure or end
    order: int = 0
    changed_at: int = 0
    spans: tuple[tuple[float, float], ...] = ()
    repeated: tuple[Report, ...] = ()
    epoch_seconds: float | None = None
    pid: int | None = None
    confirms: str = ""
    seed: int = 0
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    failure: str = ""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last of `reports`, where a repeated epoch keeps its place; 0 without reports."""
        return self.reports[-1].epoch if self.reports else 0

    def length(self, compared: Goal, wanted: Goal) -> int:
        """Returns how many epochs the trial trained: its last epoch without the reports of the wanted metric alone."""
        if compared == wanted:
            return self.last_epoch
        return self.last_epoch - sum(keeps_last(compared, wanted, report.metrics) for report in self.reports)

    def last(self, metric: str) -> Any:
        """Returns the metric's value in the last report that has one; None if no report has."""
        return next((v for r in reversed(self.reports) if (v := r.metrics.get(metric)) is not None), None)

    def trained_s(self, time: float) -> float:
        """Returns the seconds that the trial was on workers up to a unix time."""
        return sum(min(end, time) - start for start, end in self.spans if start < time)

    @property
    def attempts(self) -> int:
        """How many times the trial was started from its beginning or, after a failure, from its last checkpoint."""
        return 0 if self.status == "suggested" else len(self.errors[: -1 if self.status == "failed" else None]) + 1

    @property
    def is_stopped(self) -> bool:
        """Whether a rule stopped the trial. A trial that diverged is pruned, but no rule stopped it."""
        last = self.decisions[-1] if self.decisions else None
        return self.status == "pruned" and last is not None and last.action == "stop" and last.rung is not None

    @property
    def shown_status(self) -> str:
        return shown_status(self.status, self.reason)

    @kept
    def best(self, aim: Aim) -> Report | None:
        """Returns the report that stands for the trial (`best_of`); None if no report has a finite value."""
        return best_of(self.reports, aim)

    def best_value(self, aim: Aim) -> Any:
        """Returns the best finite value, of the first metric; None without one."""
        best = self.best(aim)
        return best.metrics[aim.goals[0].metric] if best else None

    def best_saved(self, aim: Aim, saved: Container[str] | None) -> Report | None:
        """Returns the best report whose checkpoint is in `saved`; if `saved` is None, the best with any checkpoint."""
        named = (report for report in self.reports if report.checkpoint)
        return best_of((r for r in named if saved is None or r.checkpoint in saved), aim)

    @kept
    def violation(self, aim: Aim) -> float:
        """Returns by how much the trial breaks the constraints at its end, by the last value of each; 0 if it does not.

        A metric that the trial has never reported counts as infinitely broken.
        """
        return aim.violation({each.metric: self.last(each.metric) for each in aim.constraints}, unknown=math.inf)

    def broken(self, aim: Aim, report: Report) -> str:
        """Says which constraints the trial breaks at its end, or else in a report; empty if it keeps them all."""
        last = {each.metric: self.last(each.metric) for each in aim.constraints}
        missing = [f"{name} was never reported" for name, value in last.items() if value is None]
        return " and ".join([*filter(None, [aim.broken_by(last)]), *missing]) or aim.broken_by(report.metrics)


def best_of(reports: Iterable[Report], aim: Aim) -> Report | None:
    """Returns the last report that no earlier one equals or beats: with one metric, the first with the best value.

    None if no report has finite values. A report that breaks a constraint is worse than one that does not.
    """
    best, found = math.inf, None
    for report in reports:
        improves, best = aim.improved(best, report.metrics)
        found = report if improves else found
    return found


MOST_CHANGED = 1000  # maximum characters of a reason in `search["changed"]`


class Folding:
    """Builds the records event by event; rebuilds only the records that events have changed."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.search: dict[str, Any] = {"state": "running"}
        self.sessions = Sessions()
        self.num_events = 0
        self.first: Beginning | None = None  # the event that began the search
        self._building: dict[str, _Building] = {}
        self._made: dict[str, TrialRecord] = {}  # in the order of the trials' first events
        self._changed: dict[str, _Building] = {}
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        self.num_events += 1
        self._note(event)
        self.sessions.apply(event)
        if isinstance(event, TrialEvent):
            if event.trial not in self._building:
                self._building[event.trial] = _Building(event.trial, self.num_events)
            self._building[event.trial].add(event, self.num_events)
            self._changed[event.trial] = self._building[event.trial]

    def _note(self, event: Event) -> None:
        if isinstance(event, Beginning):
            self.first = self.first or event
            self.search |= {"state": "running", "reason": "", "refused": False, "out_of_time": False}
        elif isinstance(event, StoodStill):
            for building in self._building.values():
                building.pace.still_s += event.seconds
        elif isinstance(event, SchedulerChanged):
            self.search["changed"] = event.reason[:MOST_CHANGED]
        elif isinstance(event, LengthLearned):
            self.search["length"] = event.epochs
        elif isinstance(event, GraceLearned):
            self.search["grace"] = event.grace_period
        elif isinstance(event, ExperimentFinished):
            state, refused = "failed" if event.refused else event.state, event.refused
            self.search |= {"state": state, "reason": event.reason, "refused": refused}
            self.search |= {"out_of_time": event.out_of_time, "unchecked": event.unchecked or {}}
        if isinstance(event, Beginning | ExperimentFinished):  # at these events, no trial has a worker
            self._changed |= {trial: each for trial, each in self._building.items() if each.fields.pop("pid", None)}

    def records(self) -> list[TrialRecord]:
        """Returns one record per trial, in the order of the trials' first events."""
        self._made |= {trial: building.record() for trial, building in self._changed.items()}
        self._changed.clear()
        return list(self._made.values())

    def fields(self) -> dict[str, Any]:
        """Returns what the events say about the search and its trials, as fields of `results.ExperimentRecord`."""
        own = {"trials": tuple(self.records()), "sessions": tuple(self.sessions), "took_s": self.sessions.took_s}
        return self.search | own | {"updated": self.sessions.updated, "lines": self.num_events}


class _Building:
    """Collects a trial's events in lists; extending a record's tuples instead takes quadratic time."""

    def __init__(self, trial_id: str, order: int) -> None:
        self.fields: dict[str, Any] = {"id": trial_id, "config": {}, "order": order}
        self.reports: dict[int, Report] = {}
        self.repeated: list[Report] = []
        self.decisions: list[Decision] = []
        self.errors: list[str] = []
        self.pace = Pace()
        self.spans: list[tuple[float, float]] = []
        self.held: list[dict[str, Any]] = []  # the resources during each span
        self.changed_at = order

    def add(self, event: TrialEvent, order: int) -> None:
        self.changed_at = order
        match event:
            case Report():
                # A restart reports the epochs after its checkpoint again; the later report of an epoch counts.
                if event.epoch in self.reports:
                    self.repeated.append(self.reports[event.epoch])
                self.reports[event.epoch] = event
            case Decision():
                self.decisions.append(event)
                if event.action == "pause":
                    self.pace.since = math.nan  # a paused trial gives up its worker
                    self.fields.update(status="paused", reason=event.reason, pid=None)
                elif event.action == "continue" and self.fields.get("status") == "paused":
                    self.fields["reason"] = f"waits for a worker: {event.reason}"
            case TrialSuggested():
                self.fields["config"] = event.config
                if event.confirms is not None:
                    self.fields.update(confirms=event.confirms, seed=event.seed or 0)
            case TrialStarted():
                self.pace.start(event.time)
                self.spans.append((event.time, event.time))
                self.held.append(event.resources)
                self.fields.update(status="running", reason="", config=event.config)
                self.fields["pid"] = event.pid if type(event.pid) is int else None
                self.fields.update(resources=event.resources, node=event.node)
            case TrialFailed():
                self.errors.append(event.error)
                self.fields.update(failure=event.kind, pid=None)
            case TrialEnded():
                self.fields.update(status=event.status, reason=event.reason, pid=None)
        if isinstance(event, Report | TrialFailed | TrialEnded) and not math.isnan(self.pace.since):
            self.pace.reach(event.time, reports=isinstance(event, Report))
            self.spans[-1] = self.spans[-1][0], event.time

    def hours(self, resource: str) -> float:
        held = zip(self.spans, self.held, strict=True)
        amounts = ((end - start) * (finite(each.get(resource)) or 0.0) for (start, end), each in held)
        return round(sum(amounts) / 3600, 6)

    def record(self) -> TrialRecord:
        return TrialRecord(
            **self.fields,
            reports=tuple(self.reports.values()),
            decisions=tuple(self.decisions),
            errors=tuple(self.errors),
            seconds=round(sum(end - start for start, end in self.spans), 3),
            cpu_hours=self.hours("CPU"),
            gpu_hours=self.hours("GPU"),
            changed_at=self.changed_at,
            spans=tuple(self.spans),
            repeated=tuple(self.repeated),
            epoch_seconds=self.pace.between_s / self.pace.gaps if self.pace.gaps else None,
        )
