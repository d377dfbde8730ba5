"""Methods of the libraries in this environment: Ray's ASHA and BOHB, called as Ray's controller does, and Optuna's TPE.

The schedulers and searchers are the libraries' own, with their default options; only the trials are stand-ins.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, HyperBandForBOHB, TrialScheduler

from benchmarks.search_quality.simulate import Action, Draws, Problem
from tuner.tuning.searchers.sampling import seeded

METRIC, TIME = "value", "training_iteration"


class RayAsha:
    """Ray's ASHA with random settings; `shape` has its reduction factor and grace period.

    Ray suggests a setting ahead of a free worker; here a setting is suggested when the worker is free.
    """

    def __init__(self, problem: Problem, **shape: float) -> None:
        self._scheduler = AsyncHyperBandScheduler(
            time_attr=TIME, metric=METRIC, mode=problem.mode, max_t=problem.max_epochs, **shape
        )
        self._draws = Draws(problem)
        self._trials: list[SimpleNamespace] = []

    def next(self) -> tuple[int, dict[str, Any]] | None:
        self._trials.append(SimpleNamespace(trial_id=str(len(self._trials))))
        self._scheduler.on_trial_add(None, self._trials[-1])
        return len(self._trials) - 1, self._draws.draw()

    def report(self, trial: int, epoch: int, value: float) -> Action:
        result = {TIME: epoch, METRIC: value}
        if self._scheduler.on_trial_result(None, self._trials[trial], result) == TrialScheduler.STOP:
            self._scheduler.on_trial_complete(None, self._trials[trial], result)
            return "stop"
        return "continue"


class RayBohb:
    """Ray's HyperBandForBOHB with its searcher TuneBOHB; this object stands in for the controller too.

    As in Ray, one suggested trial always waits for a worker, and the scheduler chooses among it and the promoted ones.
    """

    def __init__(self, problem: Problem) -> None:
        from ray.tune.search.bohb import TuneBOHB

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


class OptunaStudy:
    """A study with Optuna's TPE by ask and tell; each epoch is reported, and the pruner is asked, as an objective does.

    A trial whose last value is not finite is told as failed, which is what `optimize` does with NaN.
    """

    def __init__(self, problem: Problem, pruner: str) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._states = optuna.trial.TrialState
        # The hyperband pruner derives a trial's bracket from the study's name.
        self._study = optuna.create_study(
            direction="minimize" if problem.mode == "min" else "maximize",
            sampler=optuna.samplers.TPESampler(seed=problem.seed),
            pruner=optuna.pruners.HyperbandPruner(max_resource=problem.max_epochs)
            if pruner == "hyperband"
            else optuna.pruners.SuccessiveHalvingPruner(),
            study_name=str(problem.seed),
        )
        self._distributions = {}
        for name, each in problem.curves.space.items():
            if each["type"] == "choice":
                self._distributions[name] = optuna.distributions.CategoricalDistribution(each["values"])
            else:
                of = "IntDistribution" if "int" in each["type"] else "FloatDistribution"
                log = each["type"].startswith("log")
                self._distributions[name] = getattr(optuna.distributions, of)(each["low"], each["high"], log=log)
        self._max_epochs = problem.max_epochs
        self._trials: list[Any] = []

    def next(self) -> tuple[int, dict[str, Any]]:
        self._trials.append(self._study.ask(self._distributions))
        return len(self._trials) - 1, dict(self._trials[-1].params)

    def report(self, trial: int, epoch: int, value: float) -> Action:
        asked = self._trials[trial]
        asked.report(value, epoch)
        if epoch < self._max_epochs and asked.should_prune():
            # As `optimize` does: the value of a pruned trial is its last report.
            self._study.tell(asked, state=self._states.PRUNED)
            return "stop"
        if epoch < self._max_epochs:
            return "continue"
        if math.isfinite(value):
            self._study.tell(asked, value)
        else:
            self._study.tell(asked, state=self._states.FAIL)
        return "stop"
