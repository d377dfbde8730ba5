"""Follows a session's events, says what a user must know of them at once, and whether the search is hopeless."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tuner.core.events import (
    ENDED,
    Beginning,
    Event,
    GraceLearned,
    LengthLearned,
    Report,
    SchedulerChanged,
    TrialEnded,
    TrialFailed,
)
from tuner.core.state import State, TrialState
from tuner.engine.controller.failures import likeness
from tuner.spec.experiment import Experiment
from tuner.spec.metrics import all_diverged, one_value, without_metric

FIRST = 8  # after this many trials ended without failing, it warns if all diverged or all reported values are equal
ALIKE = 3  # the search stops if the session's first 3 failures are alike and no trial has succeeded


class Tracker:
    """Follows a session through `hear`, which must get each event once; an event takes constant time."""

    def __init__(self, experiment: Experiment, history: Iterable[Event] = ()) -> None:
        self.state = State(experiment)
        self._wanted, self._compared, self._aim = experiment.wanted, experiment.compared, experiment.aim
        self.on_end: Callable[[str], None] = lambda trial_id: None  # called when a trial is pruned, completed or failed
        self.on_retry: Callable[[TrialFailed], None] = lambda failure: None
        self.on_notice: Callable[[str], None] = lambda text: None  # called with a text to print now
        self._hopeful = False  # whether a trial has completed, in any session
        self._first: list[str] = []  # the first FIRST trials that had reported and ended without failing
        self._values: set[float | None] = set()  # the values reported so far (None = not finite), at most two
        self._names: set[str] = set()  # the metrics of all reports
        self._left_out: set[str] = set()  # the metrics of which a notice has said that they cannot be kept
        self._doubted = False  # whether a notice has said that checkpoints lack state
        self._begin()
        for event in history:
            self.state.apply(event)
            self.hear(event)
        self.state.running.clear()  # a killed session has not ended its trials
        self._begin()

    def _begin(self) -> None:
        # Of this session: start, and failed trials.
        self.began, self._failed = time.monotonic(), list[str]()
        self._silent = list[str]()  # completed trials that never reported a finite value of the searched metric

    def hear(self, event: Event) -> None:
        """Takes an event that `state` has applied."""
        if isinstance(event, Beginning):
            self._begin()
        elif isinstance(event, SchedulerChanged | LengthLearned | GraceLearned):
            self.on_notice(event.reason)
        elif isinstance(event, Report):
            self._hear_report(event)
        elif isinstance(event, TrialFailed) and event.will_retry:
            self.on_retry(event)
        elif isinstance(event, TrialEnded) and event.status in ENDED:
            self._hear_end(event.trial, self.state.trials[event.trial])

    def _hear_report(self, report: Report) -> None:
        self._names |= report.metrics.keys()
        if len(self._first) < FIRST and len(self._values) < 2:
            self._values.add(self.state.trials[report.trial].value)
        for name, reason in (report.left_out or {}).items():
            if name not in self._left_out:
                self._left_out.add(name)
                self.on_notice(f"trial {report.trial}: its metric {name!r} is left out: {reason}")
        if report.doubt and not self._doubted:
            self._doubted = True
            self.on_notice(f"trial {report.trial}: {report.doubt}")

    def _hear_end(self, trial_id: str, trial: TrialState) -> None:
        is_first, self._hopeful = not self._hopeful, self._hopeful or trial.status == "completed"
        self._failed += [trial_id] if trial.status == "failed" else []
        self.on_end(trial_id)
        self._notice_alike(trial_id, trial)
        if trial.status != "completed":
            return
        if trial.best is None and trial.value is not None:
            self._silent.append(trial_id)
            if len(self._silent) == 1:
                self.on_notice(without_metric(f"trial {trial_id}", self._wanted.metric, self._names))
        if is_first:
            for name in sorted({each.metric for each in self._aim.constraints} - trial.limited.keys()):
                self.on_notice(without_metric(f"trial {trial_id}", name, self._names))

    def _notice_alike(self, trial_id: str, trial: TrialState) -> None:
        """Prints a notice when FIRST trials have ended and not failed, if all diverged or all values are equal."""
        if trial.status == "failed" or not trial.epoch or len(self._first) >= FIRST:
            return
        self._first.append(trial_id)
        if len(self._first) < FIRST:
            return
        if all(self.state.trials[each].value is None for each in self._first):
            self.on_notice(all_diverged(f"the first {FIRST} trials", self._compared.metric))
        elif len(self._values) == 1 and (value := next(iter(self._values))) is not None and not self._aim.several:
            self.on_notice(one_value(f"the first {FIRST} trials", self._compared.metric, value))

    def hopeless(self) -> str:
        """Returns why the search should stop; '' if it should continue.

        It should stop if the user's code caused the session's first ALIKE failures, all alike, unless a trial has
        completed or has trained an epoch in which another trial failed. It should also stop if ALIKE trials of the
        session have completed without a finite value of the searched metric, and no trial has one.
        """
        if len(self._silent) == ALIKE and all(trial.best is None for trial in self.state.trials.values()):
            return without_metric(f"{ALIKE} trials", self._wanted.metric, self._names)
        if self._hopeful or len(self._failed) != ALIKE:
            return ""
        failed = [self.state.trials[trial_id] for trial_id in self._failed]
        # Without a failure, its report was refused.
        errors = [trial.failure.error if trial.failure else trial.reason for trial in failed]
        kinds = {trial.failure.kind if trial.failure else "user" for trial in failed}
        goes_on = max(trial.furthest for trial in self.state.trials.values()) > min(trial.furthest for trial in failed)
        if kinds != {"user"} or len(set(map(likeness, errors))) > 1 or goes_on:
            return ""
        return f"{ALIKE} trials failed in the same way and none succeeded: {errors[0]}"
