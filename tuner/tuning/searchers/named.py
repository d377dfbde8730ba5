"""Builds the search algorithm that `--searcher` names; its random numbers depend only on the experiment's seed."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast, get_args

import numpy as np
from ray.tune.search import Searcher

from tuner.errors import RequestError
from tuner.record.events import Event, first_start, plain
from tuner.record.records import finite, sign_of
from tuner.spec import domains, parameters
from tuner.spec.experiment import PAIRS, Experiment, SearcherName
from tuner.spec.space import Space
from tuner.tuning.searchers.forest import ForestSearcher
from tuner.tuning.searchers.sampling import (
    GridSearcher,
    OwnSearcher,
    RandomSearcher,
    RefineSearcher,
    first_settings,
    seeded,
)

Points = list[dict[str, Any]]  # settings to try first, flattened and encoded


class SeededSearcher:
    """A searcher whose draws depend only on the experiment's seed and on the order of the calls.

    A search and its simulation (`benchmarks.search_quality`) both use a searcher through this class.

    Args:
        num_settings: how many settings it may propose.
        space: the space of the experiment. The searchers of libraries propose encoded settings of it (see
            `tuner.spec.parameters`), which this class decodes.

    Attributes:
        num_proposed: the number of settings that the searcher has proposed.
        exhausted: whether the searcher has said that it has no more settings.
    """

    def __init__(self, searcher: Searcher, experiment: Experiment, space: Space, num_settings: int) -> None:
        self.searcher, self.num_settings = searcher, num_settings
        self._experiment, self._space = experiment, space
        # The searchers without a library draw from streams of their own, and to seed the global ones takes 0.1 ms.
        self._is_of_library = experiment.searcher in MODEL_BASED
        self._last: dict[str, dict[str, Any]] = {}  # the last report of each unfinished trial
        self.num_proposed = 0
        self.exhausted = False
        self._completed: set[str] = set()  # trials whose end the searcher knows
        self._worst = sign_of(experiment.mode) * math.inf

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Returns the next setting; None if the searcher has none now, or none any more."""
        with self._seeded(1, self.num_proposed):
            setting = self.searcher.suggest(trial_id)
        self.exhausted = setting == Searcher.FINISHED
        if setting is None or self.exhausted:
            return None
        self.num_proposed += 1
        if self._is_of_library:
            setting = parameters.decode(self._space.searched, setting)
        decoded: dict[str, Any] = python_values(setting)
        return decoded

    def report(self, trial_id: str, result: dict[str, Any]) -> None:
        """Tells the searcher a trial's report, unless it already knows the trial's end."""
        if trial_id in self._completed:
            return
        self._last[trial_id] = self._finite(result)
        with self._seeded(2, int(trial_id), result["training_iteration"]):
            self.searcher.on_trial_result(trial_id, self._last[trial_id])

    def complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tells the searcher that a trial has ended, the first time it ends: a trial may continue after its end."""
        if trial_id in self._completed:
            return
        self._completed.add(trial_id)
        last = self._last.pop(trial_id, None)
        result = result or last  # Ray gives no result of a trial that is stopped while it is paused
        # For a failed trial, the searcher gets the worst value (infinity as a loss). After an error or a NaN, TPE
        # proposed 9 of 10 later settings in the failing region; after infinity, 1 of 7 (measured with hyperopt 0.3).
        result = {"training_iteration": 0, self._experiment.metric: self._worst} if error or not result else result
        with self._seeded(3, int(trial_id)):
            self.searcher.on_trial_complete(trial_id, self._finite(result))

    def _seeded(self, *key: int) -> AbstractContextManager[None]:
        return seeded(self._experiment.seed, *key) if self._is_of_library else nullcontext()

    def _finite(self, result: dict[str, Any]) -> dict[str, Any]:
        value = finite(plain(result.get(self._experiment.metric)))
        return {**result, self._experiment.metric: self._worst if value is None else value}


def python_values(setting: Any) -> Any:
    """Converts the numpy scalars in a setting to Python's: torch's DataLoader refuses TuneBOHB's np.int64."""
    if isinstance(setting, dict):
        return {name: python_values(value) for name, value in setting.items()}
    return plain(setting) if isinstance(setting, np.generic) else setting


def build_searcher(experiment: Experiment, space: Space, history: Sequence[Event] = ()) -> SeededSearcher:
    """Builds the searcher of an experiment.

    Args:
        history: the journal's events so far. A search proposes the settings of its first session again, then more.

    Raises:
        RequestError: a point is wrong, the searcher cannot propose a parameter, or its package is not installed.
    """
    check_searcher(experiment, space)
    num_samples = first_num_samples(experiment, history)
    if experiment.searcher in OWN:
        own = OWN[experiment.searcher](experiment, space, num_samples)
        return SeededSearcher(own, experiment, space, own.num_settings)
    first = first_settings(experiment, space)
    if experiment.searcher == "hyperopt":
        first = [_indexed(point, space) for point in first]
    # By default HyperOpt tries 20 and Optuna 10 random settings before it uses its model: in a search with 10 samples,
    # all settings would be random.
    num_random = max(3, min(10, num_samples // 3))
    model_based = MODEL_BASED[experiment.searcher](experiment.seed, num_random, first)
    model_based.set_search_properties(experiment.metric, experiment.mode, space.encoded)
    return SeededSearcher(model_based, experiment, space, experiment.num_samples)


def first_num_samples(experiment: Experiment, history: Sequence[Event]) -> int:
    """Returns --num-samples of the search's first session."""
    number = first_start(history).get("num_samples")
    return number if type(number) is int and number > 0 else experiment.num_samples


def num_settings(experiment: Experiment, space: Space) -> int:
    """Returns how many settings the searcher of an experiment will propose."""
    own = OWN.get(experiment.searcher)
    return own(experiment, space, experiment.num_samples).num_settings if own else experiment.num_samples


def check_searcher(experiment: Experiment, space: Space) -> None:
    """Raises a RequestError if the searcher does not work with the space, or its package is not installed."""
    for package, extra in NEEDS.get(experiment.searcher, ()):
        if importlib.util.find_spec(package) is None:
            raise RequestError(
                f"--searcher {experiment.searcher} needs the package {package}: begin the command with "
                f"`uv run --extra {extra}`, or without uv: pip install -e '.[{extra}]' -c constraints.txt"
            )
    refused = REFUSED[experiment.searcher]
    for name, domain in domains.leaves(space.encoded):
        described = domains.describe(domain)
        kind = f"quantised {described['kind']}" if "q" in described else described["kind"]
        if described["kind"] in refused or kind in refused:
            steps = " without steps" if any(each.startswith("quantised") for each in refused) else ""
            raise RequestError(
                f"--searcher {experiment.searcher} cannot propose parameter {name!r}, a {kind}; "
                f"use --searcher random, or declare it as tune.choice or a range{steps}, such as tune.uniform"
            )


def usable(space: Space) -> tuple[SearcherName, ...]:
    """Returns the searchers that can propose every parameter of a space and whose packages are installed."""
    names: list[SearcherName] = []
    for name in get_args(SearcherName):
        with contextlib.suppress(RequestError):
            check_searcher(Experiment(searcher=name, scheduler=cast(Any, PAIRS[name][0])), space)
            names.append(name)
    return tuple(names)


def _indexed(point: dict[str, Any], space: Space) -> dict[str, Any]:
    """Replaces a point's values of nested choices by indices, as HyperOpt needs; Ray's adapter does so for others."""
    choices = {n: domains.values_of(d) for n, d in domains.leaves(space.encoded) if "/" in n and domains.is_choice(d)}
    return {name: choices[name].index(value) if name in choices else value for name, value in point.items()}


def _hyperopt(seed: int, num_random: int, first: Points) -> Searcher:
    from ray.tune.search.hyperopt import HyperOptSearch

    return HyperOptSearch(random_state_seed=seed, n_initial_points=num_random, points_to_evaluate=first or None)


def _optuna(seed: int, num_random: int, first: Points) -> Searcher:
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=num_random)
    return OptunaSearch(sampler=sampler, points_to_evaluate=first or None)


def _bohb(seed: int, num_random: int, first: Points) -> Searcher:
    from ray.tune.search.bohb import TuneBOHB

    return TuneBOHB(seed=seed, points_to_evaluate=first or None)


OWN: dict[str, Callable[[Experiment, Space, int], OwnSearcher]] = {
    "random": RandomSearcher,
    "grid": GridSearcher,
    "refine": RefineSearcher,
    "forest": ForestSearcher,
}
MODEL_BASED: dict[str, Callable[[int, int, Points], Searcher]] = {
    "hyperopt": _hyperopt,
    "optuna": _optuna,
    "bohb": _bohb,
}
STEPPED = ("uniform", "loguniform", "randint", "lograndint")
# Searcher -> the kinds of domains that it cannot propose.
REFUSED: dict[str, tuple[str, ...]] = {
    "random": (),
    "grid": ("sample_from", "normal"),
    "refine": ("sample_from", "grid_search"),
    "forest": ("sample_from", "grid_search"),
    "hyperopt": ("sample_from", "grid_search"),
    # With the quantised domains below, Ray's adapters silently ignore the steps or raise an error during the search.
    "optuna": ("sample_from", "grid_search", "normal", "quantised loguniform", "quantised lograndint"),
    "bohb": ("sample_from", "grid_search", "normal", *(f"quantised {kind}" for kind in STEPPED)),
}
NEEDS = {"optuna": (("optuna", "optuna"),), "bohb": (("hpbandster", "bohb"), ("ConfigSpace", "bohb"))}
