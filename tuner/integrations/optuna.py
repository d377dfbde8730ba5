"""Runs an Optuna objective unchanged: `Space(params=..., train=with_trial(objective))`."""

from __future__ import annotations

import copyreg
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from ray import tune
from ray.tune.result import DEFAULT_METRIC

Config = dict[str, Any]


def _by_name(module: Any) -> tuple[Callable[[str], Any], tuple[str]]:
    return importlib.import_module, (module.__name__,)


# `optuna.integration` is an object of a class of its own. Pickle cannot send it with the objectives
# that use it, so its name is sent.
copyreg.pickle(type(optuna.integration), _by_name)


def with_trial(objective: Callable[[Any], Any]) -> Callable[[Config], Any]:
    """Returns a `train` function that calls `objective(trial)`; `trial.suggest_...` returns the config's values.

    `trial.report` sends a report, and the search's scheduler decides whether the trial continues. The numbers that the
    objective reports and returns are the search's metric, whatever its name is. A returned number that equals the last
    reported one is not reported again.
    """
    return functools.partial(_train, objective)


def _train(objective: Callable[[Any], Any], config: Config) -> Any:
    trial = ReportingTrial(_Suggested(_flat(config)), int(tune.get_context().get_trial_id()))
    try:
        value = objective(trial)
    except optuna.TrialPruned:
        return None
    return None if value == trial.reported else value


class ReportingTrial(optuna.trial.FixedTrial):
    """Optuna's trial with given parameters; it reports to the search, and ignores the step of a report."""

    reported: float | None = None

    def report(self, value: float, step: int) -> None:
        self.reported = value
        tune.report({DEFAULT_METRIC: value})


class _Suggested(dict[str, Any]):
    """The parameters of a trial; asking for one that the space does not have raises an error that says so."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name):
            known = ", ".join(self)
            raise ValueError(f"the trial is asked for {name!r}, which is not in the space's params; they have {known}")
        return True


def _flat(config: Mapping[str, Any]) -> Config:
    """The config without nesting: parameters of a nested dictionary move to the top level, under their own names."""
    flat: Config = {}
    for name, value in config.items():
        flat |= _flat(value) if isinstance(value, Mapping) else {name: value}
    return flat
