"""Follows a search's events: the status of each trial, the best value of all sessions, and the failures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tuner.engine.controller.failures import likeness
from tuner.record.events import BEGINNINGS, Event
from tuner.record.records import ENDED, finite
from tuner.spec.experiment import Experiment
from tuner.spec.metrics import all_diverged, keeps_last, one_value, without_metric

ENDINGS = ("pruned", "diverged", "completed", "failed")  # as users see them: `Tracked.shown_status`
FIRST = 8  # after this many trials ended without failing, it warns if all diverged or all reported values are equal
NONE: Mapping[str, Any] = MappingProxyType({})
ALIKE = 3  # the search stops if the session's first 3 failures are alike and no trial has succeeded


@dataclass(slots=True)  # with as little in it as possible, since a search may have 100,000 trials
class Tracked:
    """One trial in the journal: its status, the reason of its end, its highest epoch, its last failure."""

    status: str = "suggested"
    reason: str = ""
    epoch: int = 0
    value: float | None = None  # the last value of what the scheduler compares; None if it is not finite
    best: float | None = None  # of the searched metric
    loss: float = math.inf  # the best value of the reports without a checkpoint, as a loss
    loss_saved: float = math.inf  # that of the reports with one
    limited: Mapping[str, Any] = field(default_factory=lambda: NONE)  # the last values of the constraints' metrics
    failure: Mapping[str, Any] = field(default_factory=lambda: NONE)
    stopped: bool = False  # whether the search ended the trial at its last report
    confirms: bool = False  # whether it is a trial of --confirm, whose value alone is no answer

    @property
    def shown_status(self) -> str:
        """The status as users see it: `diverged` if the trial was stopped because its last value was not finite."""
        return "diverged" if self.status == "pruned" and self.epoch and self.value is None else self.status


class Tracker:
    """Follows a search through `hear`, which must get each event once; an event takes constant time."""

    def __init__(self, experiment: Experiment, history: Iterable[Event] = ()) -> None:
        self._wanted, self._compared, self._aim = experiment.wanted, experiment.compared, experiment.aim
        self._sign = self._wanted.sign
        self._best: dict[bool, tuple[float, str]] = {}  # saved a checkpoint? -> best value (as a loss), its trial
        self._hopeful = False  # whether a trial has completed, in any session
        self.trials: dict[str, Tracked] = {}
        self.on_end: Callable[[str], None] = lambda trial_id: None  # called when a trial is pruned, completed or failed
        self.on_retry: Callable[[str], None] = lambda trial_id: None
        self.on_notice: Callable[[str], None] = lambda text: None  # called with a text to print now
        self._first: list[str] = []  # the first FIRST trials that had reported and ended without failing
        self._values: set[float | None] = set()  # the values reported so far (None = not finite), at most two
        self._names: set[str] = set()  # the metrics of all reports
        self._left_out: set[str] = set()  # the metrics of which a notice has said that they cannot be kept
        self._doubted = False  # whether a notice has said that checkpoints lack state
        self._begin()
        for event in history:
            self.hear(event)
        self._begin()

    def _begin(self) -> None:
        # For this session: start, failed trials, start of the first trial, ended trials, and number of reports.
        self.began, self._failed = time.monotonic(), list[str]()
        self.started: float | None = None
        self.ended, self.num_reports = set[str](), 0
        self._silent = list[str]()  # completed trials that never reported a finite value of the searched metric

    def hear(self, event: Event) -> None:
        kind, trial_id = event["event"], event.get("trial")
        if kind in BEGINNINGS:
            self._begin()
        if kind in ("scheduler_changed", "length_learned", "grace_learned"):
            self.on_notice(event.get("reason", ""))
        if trial_id is None:
            return
        trial = self.trials.setdefault(trial_id, Tracked())
        if kind == "trial_suggested":
            trial.confirms = "confirms" in event
        elif kind == "trial_started":
            trial.status, trial.stopped = "running", False
            self.started = self.started or time.monotonic()
        elif kind == "report":
            trial.epoch = max(trial.epoch, event["epoch"])
            self._report(trial_id, trial, event["metrics"], bool(event.get("checkpoint")))
            for name, reason in event.get("left_out", {}).items():
                if name not in self._left_out:
                    self._left_out.add(name)
                    self.on_notice(f"trial {trial_id}: its metric {name!r} is left out: {reason}")
            if "doubt" in event and not self._doubted:
                self._doubted = True
                self.on_notice(f"trial {trial_id}: {event['doubt']}")
        elif kind == "decision":
            trial.stopped = event["action"] == "stop"
            trial.status = "paused" if event["action"] == "pause" else trial.status
        elif kind == "trial_failed":
            trial.failure = event
            if event.get("will_retry"):
                self.on_retry(trial_id)
        elif kind == "trial_ended":
            trial.status, trial.reason = event["status"], event["reason"]
            if trial.status in ENDED:
                self.ended.add(trial_id)
                is_first, self._hopeful = not self._hopeful, self._hopeful or trial.status == "completed"
                self._failed += [trial_id] if trial.status == "failed" else []
                self.on_end(trial_id)
                self._notice_alike(trial_id, trial)
                if trial.status == "completed" and trial.best is None and trial.value is not None:
                    self._silent.append(trial_id)
                    if len(self._silent) == 1:
                        self.on_notice(without_metric(f"trial {trial_id}", self._wanted.metric, self._names))
                if trial.status == "completed" and is_first:
                    for name in sorted({each.metric for each in self._aim.constraints} - trial.limited.keys()):
                        self.on_notice(without_metric(f"trial {trial_id}", name, self._names))

    def _notice_alike(self, trial_id: str, trial: Tracked) -> None:
        """Prints a notice when FIRST trials have ended and not failed, if all diverged or all values are equal."""
        if trial.status == "failed" or not trial.epoch or len(self._first) >= FIRST:
            return
        self._first.append(trial_id)
        if len(self._first) < FIRST:
            return
        if all(self.trials[each].value is None for each in self._first):
            self.on_notice(all_diverged(f"the first {FIRST} trials", self._compared.metric))
        elif len(self._values) == 1 and (value := next(iter(self._values))) is not None and not self._aim.several:
            self.on_notice(one_value(f"the first {FIRST} trials", self._compared.metric, value))

    def _report(self, trial_id: str, trial: Tracked, metrics: dict[str, Any], saved: bool) -> None:
        value = finite(self._wanted.value(metrics))
        if not keeps_last(self._compared, self._wanted, metrics):
            trial.value = finite(self._compared.value(metrics))
        self.num_reports += 1
        self._names |= metrics.keys()
        limited = {each.metric: metrics.get(each.metric) for each in self._aim.constraints}
        if limited := {name: each for name, each in limited.items() if each is not None}:
            trial.limited = {**trial.limited, **limited}
        if self._aim.several and self._aim.losses(metrics) is None:
            trial.value = None
        if len(self._first) < FIRST and len(self._values) < 2:
            self._values.add(trial.value)
        if value is not None and (trial.best is None or self._sign * value < self._sign * trial.best):
            trial.best = value
        if value is not None and not self._aim.broken_by(metrics):
            if saved:
                trial.loss_saved = min(self._sign * value, trial.loss_saved)
            else:
                trial.loss = min(self._sign * value, trial.loss)
        if trial.confirms or self._aim.violation(trial.limited, unknown=math.inf):
            return
        # A last report may be the first that has the constraints' metrics.
        for has_saved, loss in ((True, trial.loss_saved), (False, trial.loss)):
            if loss < self._best.get(has_saved, (math.inf, ""))[0]:
                self._best[has_saved] = loss, trial_id

    def best(self) -> tuple[float, str] | None:
        """Returns the best finite value of all sessions and its trial, by `BEST_RULE`, without --confirm; or None."""
        best = self._best.get(True) or self._best.get(False)
        return (self._sign * best[0], best[1]) if best else None

    def hopeless(self) -> str:
        """Returns why the search should stop; '' if it should continue.

        It should stop if the user's code caused the session's first ALIKE failures, all alike, unless a trial has
        completed or has trained an epoch in which another trial failed. It should also stop if ALIKE trials of the
        session have completed without a finite value of the searched metric, and no trial has one.
        """
        if len(self._silent) == ALIKE and all(trial.best is None for trial in self.trials.values()):
            return without_metric(f"{ALIKE} trials", self._wanted.metric, self._names)
        if self._hopeful or len(self._failed) != ALIKE:
            return ""
        failed = [self.trials[trial_id] for trial_id in self._failed]
        errors = [trial.failure.get("error", trial.reason) for trial in failed]  # no `error`: its report was refused
        kinds = {trial.failure.get("kind", "user") for trial in failed}
        furthest = max(trial.epoch for trial in self.trials.values())
        if kinds != {"user"} or len(set(map(likeness, errors))) > 1 or furthest > min(trial.epoch for trial in failed):
            return ""
        return f"{ALIKE} trials failed in the same way and none succeeded: {errors[0]}"
