"""Searchers: name -> Ray search algorithm. Each takes its randomness from the experiment's seed alone."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher
from tuner.spec.space import Space

from tuner.drive.sampling import GridSearcher, RandomSearcher, RefineSearcher
from tuner.errors import RequestError
from tuner.spec import domains
from tuner.spec.experiment import Experiment


def build_searcher(experiment: Experiment, space: Space) -> tuple[Searcher, int]:
    """The searcher of an experiment, and how many settings it will propose.

    Raises:
        RequestError: the space has a parameter that this searcher cannot propose, or an extra is missing.
    """
    check_searcher(experiment, space)
    if experiment.searcher in OWN:
        searcher = OWN[experiment.searcher](experiment, space)
        return searcher, searcher.num_settings
    model_based = MODEL_BASED[experiment.searcher](experiment)
    model_based.set_search_properties(experiment.metric, experiment.mode, dict(space.params))
    return model_based, experiment.num_samples


def check_searcher(experiment: Experiment, space: Space) -> None:
    """RequestError where the searcher cannot serve the space; needs no Ray running."""
    for package, extra in NEEDS.get(experiment.searcher, ()):
        if importlib.util.find_spec(package) is None:
            raise RequestError(
                f"--searcher {experiment.searcher} needs the package {package}: pip install -e '.[{extra}]'"
            )
    refused = REFUSED[experiment.searcher]
    for name, domain in domains.leaves(space.params):
        told = domains.describe(domain)
        kind = f"quantised {told['kind']}" if "q" in told else told["kind"]
        if told["kind"] in refused or kind in refused:
            raise RequestError(
                f"--searcher {experiment.searcher} cannot propose parameter {name!r}, a {kind}; "
                f"use --searcher random, or declare it as tune.choice or a plain range"
            )


def _startup(experiment: Experiment) -> int:
    # The libraries' defaults (20 and 10 random settings before the model) would leave a search of 10 samples
    # random from end to end.
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
# Kinds of domains that a searcher cannot propose.
REFUSED: dict[str, tuple[str, ...]] = {
    "random": (),
    "grid": ("sample_from", "normal"),
    "refine": ("sample_from", "grid_search"),
    "hyperopt": ("sample_from", "grid_search"),
    # Ray's adapters drop these steps without a word, or raise in the middle of the search.
    "optuna": ("sample_from", "grid_search", "normal", "quantised loguniform", "quantised lograndint"),
    "bohb": ("sample_from", "grid_search", "normal", *(f"quantised {kind}" for kind in STEPPED)),
}
NEEDS = {"optuna": (("optuna", "optuna"),), "bohb": (("hpbandster", "bohb"), ("ConfigSpace", "bohb"))}
