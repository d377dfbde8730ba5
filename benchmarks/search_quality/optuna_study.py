"""Optuna's TPE with one of its pruners, driven by ask and tell."""

from __future__ import annotations

import math
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from benchmarks.search_quality.problem import Problem
from tuner.spec.rules import Action


class OptunaStudy:
    """A study with Optuna's default sampler; each epoch is reported, and the pruner is asked, as an objective does.

    A trial whose last value is not finite is told as failed, which is what `optimize` does with NaN.
    """

    def __init__(self, problem: Problem, pruner: optuna.pruners.BasePruner) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        direction = "minimize" if problem.mode == "min" else "maximize"
        sampler = optuna.samplers.TPESampler(seed=problem.seed)
        # The hyperband pruner derives a trial's bracket from the study's name.
        self._study = optuna.create_study(
            direction=direction, sampler=sampler, pruner=pruner, study_name=str(problem.seed)
        )
        self._distributions = {name: _distribution(each) for name, each in problem.curves.space.items()}
        self._max_epochs = problem.max_epochs
        self._trials: list[optuna.Trial] = []

    def next(self) -> tuple[int, dict[str, Any]]:
        self._trials.append(self._study.ask(self._distributions))
        return len(self._trials) - 1, dict(self._trials[-1].params)

    def report(self, trial: int, epoch: int, value: float) -> Action:
        asked = self._trials[trial]
        asked.report(value, epoch)
        if epoch < self._max_epochs and asked.should_prune():
            # As `optimize` does: the value of a pruned trial is its last report.
            self._study.tell(asked, state=optuna.trial.TrialState.PRUNED)
            return "stop"
        if epoch < self._max_epochs:
            return "continue"
        if math.isfinite(value):
            self._study.tell(asked, value)
        else:
            self._study.tell(asked, state=optuna.trial.TrialState.FAIL)
        return "stop"


def _distribution(described: dict[str, Any]) -> BaseDistribution:
    kind = described["type"]
    if kind == "choice":
        return CategoricalDistribution(described["values"])
    of = IntDistribution if "int" in kind else FloatDistribution
    return of(described["low"], described["high"], log=kind.startswith("log"))


def with_halving(problem: Problem) -> OptunaStudy:
    """Returns TPE with the successive-halving pruner."""
    return OptunaStudy(problem, optuna.pruners.SuccessiveHalvingPruner())


def with_hyperband(problem: Problem) -> OptunaStudy:
    """Returns TPE with the hyperband pruner."""
    return OptunaStudy(problem, optuna.pruners.HyperbandPruner(max_resource=problem.max_epochs))
