"""Builds the search algorithm that `--searcher` names; its random numbers depend only on the experiment's seed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher

from tuner.drive.sampling import GridSearcher, RandomSearcher, RefineSearcher
from tuner.errors import RequestError
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space


def build_searcher(experiment: Experiment, space: Space) -> tuple[Searcher, int]:
    """Builds the searcher of an experiment; returns it with the number of settings that it will propose.

    Raises:
        RequestError: the searcher cannot propose a parameter of the space, or needs a package that is not installed.
    """
    check_searcher(experiment, space)
    if experiment.searcher in OWN:
        searcher = OWN[experiment.searcher](experiment, space)
        return searcher, searcher.num_settings
    model_based = MODEL_BASED[experiment.searcher](experiment)
    model_based.set_search_properties(experiment.metric, experiment.mode, dict(space.params))
    return model_based, experiment.num_samples


def num_settings(experiment: Experiment, space: Space) -> int:
    """Returns how many settings the searcher of an experiment will propose."""
    own = OWN.get(experiment.searcher)
    return own(experiment, space).num_settings if own else experiment.num_samples


def check_searcher(experiment: Experiment, space: Space) -> None:
    """Raises a RequestError if the searcher does not work with the space; Ray need not be running."""
    for package, extra in NEEDS.get(experiment.searcher, ()):
        if importlib.util.find_spec(package) is None:
            raise RequestError(
                f"--searcher {experiment.searcher} needs the package {package}: pip install -e '.[{extra}]'"
            )
    refused = REFUSED[experiment.searcher]
    for name, domain in domains.leaves(space.params):
        described = domains.describe(domain)
        kind = f"quantised {described['kind']}" if "q" in described else described["kind"]
        if described["kind"] in refused or kind in refused:
            raise RequestError(
                f"--searcher {experiment.searcher} cannot propose parameter {name!r}, a {kind}; "
                f"use --searcher random, or declare it as tune.choice or a plain range"
            )


def _startup(experiment: Experiment) -> int:
    # By default the libraries try 20 and 10 random settings before they use their model: all of a search with
    # 10 samples would be random.
    return max(3, min(10, experiment.num_samples // 3))


def _hyperopt(experiment: Experiment) -> Searcher:
    from ray.tune.search.hyperopt import HyperOptSearch

    return HyperOptSearch(random_state_seed=experiment.seed, n_initial_points=_startup(experiment))


def _optuna(experiment: Experiment) -> Searcher:
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=experiment.seed, n_startup_trials=_startup(experiment))
    return OptunaSearch(sampler=sampler)


def _bohb(experiment: Experiment) -> Searcher:
    from ray.tune.search.bohb import TuneBOHB

    return TuneBOHB(seed=experiment.seed)


OWN: dict[str, Callable[[Experiment, Space], Any]] = {
    "random": RandomSearcher,
    "grid": GridSearcher,
    "refine": RefineSearcher,
}
MODEL_BASED: dict[str, Callable[[Experiment], Searcher]] = {"hyperopt": _hyperopt, "optuna": _optuna, "bohb": _bohb}
STEPPED = ("uniform", "loguniform", "randint", "lograndint")
# Searcher -> the kinds of domains that it cannot propose.
REFUSED: dict[str, tuple[str, ...]] = {
    "random": (),
    "grid": ("sample_from", "normal"),
    "refine": ("sample_from", "grid_search"),
    "hyperopt": ("sample_from", "grid_search"),
    # Ray's adapters silently ignore the steps of quantised domains, or raise an error in the middle of the search.
    "optuna": ("sample_from", "grid_search", "normal", "quantised loguniform", "quantised lograndint"),
    "bohb": ("sample_from", "grid_search", "normal", *(f"quantised {kind}" for kind in STEPPED)),
}
NEEDS = {"optuna": (("optuna", "optuna"),), "bohb": (("hpbandster", "bohb"), ("ConfigSpace", "bohb"))}
