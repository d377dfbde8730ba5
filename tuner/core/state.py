"""The state of a search, made by its events: `State.apply` must get each event once, and takes constant time.

Terminal, budget and scheduler of a running search read one `State`. `tuner.record.records` keeps all reports and
decisions besides, for the page, the report and the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tuner.core.events import (
    RETURNED,
    Beginning,
    Decision,
    Event,
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
from tuner.core.rules.own_length import at_length
from tuner.core.timing import Pace, Sessions
from tuner.spec.constraints import Point
from tuner.spec.experiment import Experiment
from tuner.spec.methods import SCHEDULERS
from tuner.spec.metrics import finite, keeps_last

NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(slots=True)
class TrialState(Pace):
    """One trial: as little as possible, since a search may have 100,000.

    Attributes:
        status: suggested, running, paused, completed, pruned, failed or interrupted.
        reason: why it ended.
        epoch, furthest: its last and its highest epoch.
        length: how many epochs it trained: `furthest` without the reports that had the searched metric alone.
        value: the last value of what the scheduler compares; None if it is not finite.
        compared: the best of these values in reports that violate no constraint, as a loss.
        best: the best value of the searched metric; None without a finite one.
        loss, loss_saved: the best value, as a loss, of the reports without and with a checkpoint that violate no
            constraint.
        point: the values of its last report, if there are several metrics.
        limited: the last values of the constraints' metrics.
        failure: its last failure, if any.
        stopped: whether the search ended it at its last report.
        confirms: whether it is a trial of --confirm, whose value alone is no answer.
        resources: the CPUs and GPUs of its last start.
    """

    status: str = "suggested"
    reason: str = ""
    epoch: int = 0
    furthest: int = 0
    length: int = 0
    value: float | None = None
    compared: float = math.inf
    best: float | None = None
    loss: float = math.inf
    loss_saved: float = math.inf
    point: Point | None = None
    limited: Mapping[str, Any] = field(default_factory=lambda: NONE)
    failure: TrialFailed | None = None
    stopped: bool = False
    confirms: bool = False
    resources: tuple[float, float] = (0.0, 0.0)

    @property
    def shown_status(self) -> str:
        return shown_status(self.status, self.reason)


class State:
    """What has happened in a search.

    Attributes:
        trials: by their ids, in the order of their first events.
        running: those that have a worker.
        options: the options in force: with the scheduler and the rungs that the search has learned.
        any_whole: whether a trial has completed.
        num_epochs, cpu_s, gpu_s: what all trials have used up to their last reports.
        firsts_s, num_firsts: the sum and the number of `first_s` of all starts.
        between_s, num_gaps: the same of the seconds between two reports of a trial.
    """

    def __init__(self, experiment: Experiment, history: Iterable[Event] = ()) -> None:
        self.sessions = Sessions()
        self.trials: dict[str, TrialState] = {}
        self.running: dict[str, TrialState] = {}
        self.options = experiment
        self.any_whole = False
        self.num_epochs, self.cpu_s, self.gpu_s = 0, 0.0, 0.0
        self.firsts_s, self.num_firsts = 0.0, 0
        self.between_s, self.num_gaps = 0.0, 0
        self._experiment, self._learned, self._grace = experiment, 0, 0
        self._returned = 0  # epochs of the longest trial that ended by itself
        self._wanted, self._compared, self._aim = experiment.wanted, experiment.compared, experiment.aim
        self._best: dict[bool, tuple[float, str]] = {}  # saved a checkpoint? -> best value (as a loss), its trial
        for event in history:
            self.apply(event)
        self.running.clear()  # a killed session has not ended its trials

    def apply(self, event: Event) -> None:
        self.sessions.apply(event)
        if isinstance(event, TrialEvent):
            self._apply_to(self.trials.setdefault(event.trial, TrialState()), event)
        elif isinstance(event, Beginning):
            self.running.clear()
        elif isinstance(event, StoodStill):
            for trial in self.running.values():
                trial.still_s += event.seconds
        elif isinstance(event, SchedulerChanged):
            self._experiment = replace(self._experiment, scheduler=event.scheduler, brackets=1)
            self._learn()

    def _apply_to(self, trial: TrialState, event: TrialEvent) -> None:
        if isinstance(event, Report | TrialFailed | TrialEnded) and event.trial in self.running:
            self._reach(trial, event.time, reports=isinstance(event, Report))
        match event:
            case Report():
                self._report(trial, event)
            case Decision():
                trial.stopped = event.action == "stop"
                if event.action == "pause":
                    trial.status = "paused"
                    self.running.pop(event.trial, None)
            case TrialSuggested():
                trial.confirms = event.confirms is not None
            case TrialStarted():
                trial.status, trial.stopped = "running", False
                cpus, gpus = (finite(event.resources.get(name)) or 0.0 for name in ("CPU", "GPU"))
                trial.resources = cpus, gpus
                trial.start(event.time)
                self.running[event.trial] = trial
            case TrialFailed():
                trial.failure = event
                self.running.pop(event.trial, None)
            case TrialEnded():
                trial.status, trial.reason = event.status, event.reason
                self.running.pop(event.trial, None)
                if trial.status == "completed":
                    self.any_whole = True
                    if trial.reason == RETURNED and not trial.confirms and trial.length > self._returned:
                        self._returned = trial.length
                        self._learn()
            case LengthLearned():
                self._learned = max(self._learned, event.epochs)
                self._learn()
            case GraceLearned():
                self._grace = event.grace_period
                self._learn()

    def _learn(self) -> None:
        has_rungs = SCHEDULERS[self._experiment.scheduler].has_rungs
        self.options = at_length(self._experiment, self._learned if has_rungs else self._returned, self._grace)

    def _reach(self, trial: TrialState, time: float, *, reports: bool) -> None:
        gaps, between_s, is_first = trial.gaps, trial.between_s, math.isnan(trial.first_s)
        took_s = trial.reach(time, reports=reports)
        self.cpu_s += took_s * trial.resources[0]
        self.gpu_s += took_s * trial.resources[1]
        self.num_gaps, self.between_s = self.num_gaps + trial.gaps - gaps, self.between_s + trial.between_s - between_s
        if reports and is_first:
            self.firsts_s, self.num_firsts = self.firsts_s + trial.first_s, self.num_firsts + 1

    def _report(self, trial: TrialState, report: Report) -> None:
        metrics = report.metrics
        self.num_epochs += 1
        is_alone = keeps_last(self._compared, self._wanted, metrics)
        trial.epoch, more = report.epoch, max(0, report.epoch - trial.furthest)
        trial.furthest, trial.length = trial.furthest + more, trial.length + more - (is_alone and more > 0)
        wanted, compared = finite(self._wanted.value(metrics)), finite(self._compared.value(metrics))
        if not is_alone:
            trial.value = compared
        if self._aim.several:
            point = self._aim.point(metrics)
            trial.value, trial.point = trial.value if point else None, point or trial.point
        limited = {each.metric: metrics.get(each.metric) for each in self._aim.constraints}
        if limited := {name: each for name, each in limited.items() if each is not None}:
            trial.limited = {**trial.limited, **limited}
        sign = self._wanted.sign
        if wanted is not None and (trial.best is None or sign * wanted < sign * trial.best):
            trial.best = wanted
        if not self._aim.broken_by(metrics):
            if compared is not None:
                trial.compared = min(trial.compared, self._compared.sign * compared)
            if wanted is not None and report.checkpoint:
                trial.loss_saved = min(sign * wanted, trial.loss_saved)
            elif wanted is not None:
                trial.loss = min(sign * wanted, trial.loss)
        if trial.confirms or self._aim.violation(trial.limited, unknown=math.inf):
            return
        # A last report may be the first that has the constraints' metrics.
        for has_saved, loss in ((True, trial.loss_saved), (False, trial.loss)):
            if loss < self._best.get(has_saved, (math.inf, ""))[0]:
                self._best[has_saved] = loss, report.trial

    def best(self) -> tuple[float, str] | None:
        """Returns the best finite value of all sessions and its trial, by `BEST_RULE`, without --confirm; or None."""
        best = self._best.get(True) or self._best.get(False)
        return (self._wanted.sign * best[0], best[1]) if best else None
