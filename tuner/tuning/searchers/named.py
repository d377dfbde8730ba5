"""Builds the search algorithm that `--searcher` names; its random numbers depend only on the experiment's seed."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, cast, get_args

from ray.tune.search import Searcher

from tuner.errors import RequestError
from tuner.record.events import Event, first_start
from tuner.spec import domains, parameters
from tuner.spec.experiment import PAIRS, Experiment, SearcherName
from tuner.spec.space import Space
from tuner.tuning.searchers.forest import ForestSearcher
from tuner.tuning.searchers.sampling import GridSearcher, RandomSearcher, RefineSearcher, first_settings

Points = list[dict[str, Any]]  # settings to try first, flattened and encoded


def build_searcher(experiment: Experiment, space: Space, history: Sequence[Event] = ()) -> tuple[Searcher, int]:
    """Builds the searcher of an experiment; returns it with the number of settings that it will propose.

    Args:
        history: the journal's events so far. A search proposes the settings of its first session again, then more.

    Raises:
        RequestError: a point is wrong, the searcher cannot propose a parameter, or its package is not installed.
    """
    check_searcher(experiment, space)
    num_samples = first_num_samples(history) or experiment.num_samples
    if experiment.searcher in OWN:
        searcher = OWN[experiment.searcher](experiment, space, num_samples)
        return searcher, searcher.num_settings
    first = first_settings(experiment, space)
    if experiment.searcher == "hyperopt":
        first = [_indexed(point, space) for point in first]
    # By default HyperOpt tries 20 and Optuna 10 random settings before it uses its model: in a search with 10 samples,
    # all settings would be random.
    num_random = max(3, min(10, num_samples // 3))
    model_based = MODEL_BASED[experiment.searcher](experiment.seed, num_random, first)
    model_based.set_search_properties(experiment.metric, experiment.mode, space.encoded)
    return Decoding(model_based, space), experiment.num_samples


def first_num_samples(history: Sequence[Event]) -> int | None:
    """Returns --num-samples of the search's first session; None for a new search, or if the journal lacks it."""
    number = first_start(history).get("num_samples")
    return number if type(number) is int and number > 0 else None


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


class Decoding(Searcher):
    """Wraps a searcher of a library: decodes each setting that it proposes into the config of a trial.

    The wrapped searcher proposes settings of the encoded space (see `tuner.spec.parameters`).
    """

    def __init__(self, inner: Searcher, space: Space) -> None:
        super().__init__(inner.metric, inner.mode)
        self._inner, self._space = inner, space

    def suggest(self, trial_id: str) -> Any:
        setting = self._inner.suggest(trial_id)
        return parameters.decode(self._space.searched, setting) if isinstance(setting, dict) else setting

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self._inner.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        self._inner.on_trial_complete(trial_id, result, error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # `RuleScheduler` calls on_pause and on_unpause of TuneBOHB


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


OWN: dict[str, Callable[[Experiment, Space, int], Any]] = {
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
