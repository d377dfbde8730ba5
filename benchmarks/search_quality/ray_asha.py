"""Ray's AsyncHyperBandScheduler with random settings or one of Ray's searchers, called as Ray's controller does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler
from ray.tune.search import Searcher

from benchmarks.search_quality.problem import Draws, Problem
from tuner.spec.rules import Action

METRIC, TIME = "value", "training_iteration"


class RayAsha:
    """Ray's ASHA itself, with its default options; only the trials are stand-ins.

    Ray suggests a setting ahead of a free worker; here a setting is suggested when the worker is free.
    """

    def __init__(self, problem: Problem, searcher: Searcher | None, options: dict[str, str]) -> None:
        shape = {"eta": "reduction_factor", "grace": "grace_period", "brackets": "brackets"}
        chosen = {shape[name]: float(text) if name == "eta" else int(text) for name, text in options.items()}
        self._scheduler = AsyncHyperBandScheduler(
            time_attr=TIME, metric=METRIC, mode=problem.mode, max_t=problem.max_epochs, **chosen
        )
        self._searcher, self._draws = searcher, Draws(problem)
        self._trials: list[SimpleNamespace] = []

    def next(self) -> tuple[int, dict[str, Any]] | None:
        number = len(self._trials)
        setting = self._searcher.suggest(str(number)) if self._searcher else self._draws.draw()
        if setting is None:
            return None
        self._trials.append(SimpleNamespace(trial_id=str(number)))
        self._scheduler.on_trial_add(None, self._trials[number])
        return number, setting

    def report(self, trial: int, epoch: int, value: float) -> Action:
        result = {TIME: epoch, METRIC: value}
        decision = self._scheduler.on_trial_result(None, self._trials[trial], result)
        if decision == TrialScheduler.STOP:
            self._scheduler.on_trial_complete(None, self._trials[trial], result)
            if self._searcher:
                self._searcher.on_trial_complete(str(trial), result)
            return "stop"
        if self._searcher:
            self._searcher.on_trial_result(str(trial), result)
        return "continue"


def with_random(problem: Problem, options: dict[str, str]) -> RayAsha:
    """Returns Ray's ASHA with random settings."""
    return RayAsha(problem, None, options)


def with_optuna(problem: Problem, options: dict[str, str]) -> RayAsha:
    """Returns Ray's ASHA with OptunaSearch."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return RayAsha(problem, _prepared(OptunaSearch(seed=problem.seed), problem), options)


def with_hyperopt(problem: Problem, options: dict[str, str]) -> RayAsha:
    """Returns Ray's ASHA with HyperOptSearch."""
    from ray.tune.search.hyperopt import HyperOptSearch

    return RayAsha(problem, _prepared(HyperOptSearch(random_state_seed=problem.seed), problem), options)


def _prepared(searcher: Searcher, problem: Problem) -> Searcher:
    searcher.set_search_properties(METRIC, problem.mode, problem.curves.domains())
    return searcher
