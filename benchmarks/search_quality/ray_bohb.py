"""Ray's HyperBandForBOHB with its searcher TuneBOHB, called as Ray's controller does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandForBOHB, TrialScheduler
from ray.tune.search.bohb import TuneBOHB

from benchmarks.search_quality.problem import Problem
from benchmarks.search_quality.ray_asha import METRIC, TIME
from tuner.spec.rules import Action
from tuner.tuning.searchers.sampling import seeded


class RayBohb:
    """Ray's BOHB itself, with its default options; the trials and the controller are stand-ins.

    As in Ray, one suggested trial always waits for a worker, and the scheduler chooses among it and the promoted ones.
    """

    def __init__(self, problem: Problem) -> None:
        self._seed = problem.seed
        self._scheduler = HyperBandForBOHB(time_attr=TIME, metric=METRIC, mode=problem.mode, max_t=problem.max_epochs)
        self.searcher = TuneBOHB(seed=problem.seed)
        self.searcher.set_search_properties(METRIC, problem.mode, problem.curves.domains())
        self.search_alg = self  # the scheduler calls tune_controller.search_alg.searcher
        self._number = 0  # trials that have started
        self._suggested = 0
        self._pending: SimpleNamespace | None = None
        self._trials: dict[int, SimpleNamespace] = {}  # those that have not ended

    def get_trials(self) -> list[SimpleNamespace]:
        """Returns the trials of which the scheduler asks whether one runs."""
        return list(self._trials.values())

    def stop_trial(self, trial: Any) -> None:
        """Stops a paused trial, for the scheduler."""
        self._scheduler.on_trial_remove(self, trial)
        self._end(trial, None)

    def next(self) -> tuple[int, dict[str, Any]] | None:
        if self._pending is None:
            self._suggest()
        trial: Any = self._scheduler.choose_trial_to_run(self)
        if trial is None:
            return None
        if trial is self._pending:
            self._pending, trial.number = None, self._number
            self._trials[trial.number] = trial
            self._number += 1
        trial.status = Trial.RUNNING
        return trial.number, trial.config

    def _suggest(self) -> None:
        identity = str(self._suggested)
        with seeded(self._seed, self._suggested):  # hpbandster draws from numpy's global stream
            config = self.searcher.suggest(identity)
        self._suggested += 1
        if config is not None:
            self._pending = Trialike(trial_id=identity, status=Trial.PENDING, is_saving=False, config=config)
            self._scheduler.on_trial_add(self, self._pending)

    def report(self, trial: int, epoch: int, value: float) -> Action:
        reported, result = self._trials[trial], {TIME: epoch, METRIC: value}
        decision = self._scheduler.on_trial_result(self, reported, result)
        if decision == TrialScheduler.STOP:
            self._scheduler.on_trial_complete(self, reported, result)
            self._end(reported, result)
            return "stop"
        self.searcher.on_trial_result(reported.trial_id, result)
        if decision == TrialScheduler.PAUSE:
            reported.status = Trial.PAUSED
            return "pause"
        return "continue"

    def _end(self, trial: Any, result: dict[str, Any] | None) -> None:
        trial.status = Trial.TERMINATED
        self.searcher.on_trial_complete(trial.trial_id, result)
        self._trials.pop(trial.number, None)


class Trialike(SimpleNamespace):
    """What the scheduler uses of a trial."""

    __hash__ = object.__hash__  # the scheduler's keys
    __eq__ = object.__eq__
