"""Builds the search algorithm that `--searcher` names; it draws all random numbers from the experiment's seed."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any, cast, get_args

import numpy as np
from ray.tune.search import Searcher

from tuner.core.events import Event, first_start
from tuner.errors import RequestError
from tuner.record.texts import with_extra
from tuner.rules.hyperband import rungs_of
from tuner.spec import domains, parameters
from tuner.spec.experiment import PAIRS, Experiment, SearcherName
from tuner.spec.option_values import MOST_SAMPLES
from tuner.spec.space import Space
from tuner.tuning.searchers.coded import Coded
from tuner.tuning.searchers.forest import ForestSearcher
from tuner.tuning.searchers.past import Past, PastModel
from tuner.tuning.searchers.sampling import (
    GridSearcher,
    RandomSearcher,
    RefineSearcher,
    SeededSearcher,
    python_values,
    seeded,
)


class LibrarySearcher(SeededSearcher):
    """A searcher of another library, used through Ray's adapter `library`; seeds the global random streams for it."""

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int, past: Past | None = None) -> None:
        super().__init__(experiment, space, first_num_samples, past)
        self._budgets: list[int] = []  # of BOHB: the epochs at which it compares trials
        self._epochs: dict[str, tuple[int, int]] = {}  # trial -> its last epoch, and the last one that BOHB learned
        # By default, HyperOpt tries 20 random settings and Optuna 10 before they use their models. In a search with 10
        # samples, all settings would then be random.
        num_random = max(3, min(10, first_num_samples // 3))
        self._first, self._points = self._points + self._from_past(past, num_random), []
        leaves = dict(domains.leaves(space.encoded))
        self._coded = {name: Coded(domain) for name, domain in leaves.items()}
        # Ray's adapters treat "/" and names that are numbers as nesting.
        self._keys = {name: f"{number}:{name.replace('/', '.')}" for number, name in enumerate(leaves)}
        first = [{self._keys[n]: self._coded[n].code(value) for n, value in flat.items()} for flat in self._first]
        if experiment.searcher == "hyperopt":
            from ray.tune.search.hyperopt import HyperOptSearch

            options = {"random_state_seed": self._seed, "n_initial_points": num_random}
            self.library: Searcher = HyperOptSearch(**options, points_to_evaluate=first or None)
        elif experiment.searcher == "bohb":
            from ray.tune.search.bohb import TuneBOHB

            self.library = TuneBOHB(seed=self._seed, points_to_evaluate=first or None)
            rungs = rungs_of(experiment.max_epochs, experiment.reduction_factor)
            self._budgets = sorted({rung for bracket in rungs for rung in bracket})
        else:
            import optuna
            from ray.tune.search.optuna import OptunaSearch

            optuna.logging.set_verbosity(optuna.logging.WARNING)
            limits: dict[str, Any] = {"constraints_func": lambda trial: self._broken} if self._aim.constraints else {}
            sampler: Any
            with warnings.catch_warnings():
                for kind in (optuna.exceptions.ExperimentalWarning, FutureWarning):  # constraints_func is both
                    warnings.simplefilter("ignore", kind)
                if experiment.searcher == "nsga2":
                    population = max(10, min(50, first_num_samples // 5))  # its default of 50 is random up to then
                    sampler = optuna.samplers.NSGAIISampler(seed=self._seed, population_size=population, **limits)
                else:
                    sampler = optuna.samplers.TPESampler(seed=self._seed, n_startup_trials=num_random, **limits)
            self.library = OptunaSearch(sampler=sampler, points_to_evaluate=first or None)
        metric, mode = (
            list(each) if isinstance(each, tuple) else each for each in (experiment.metric, experiment.mode)
        )
        codes = {self._keys[name]: coded.domain for name, coded in self._coded.items()}
        self.library.set_search_properties(metric, mode, codes)

    def _from_past(self, past: Past | None, number: int) -> list[dict[str, Any]]:
        """Returns the settings that a model of past searches proposes in place of the library's random first ones."""
        leaves = dict(domains.leaves(self._space.encoded))
        model = PastModel(past, leaves, self._seed) if past else None
        if not model:
            return []
        left = range(max(0, number - len(self._points)))
        return [python_values(model.drawn(np.random.default_rng([self._seed, each, 9]), each)) for each in left]

    def _next(self, trial_id: str) -> dict[str, Any] | None:
        with seeded(self._seed, 1, self.num_proposed):
            setting = self.library.suggest(trial_id)
        self.exhausted = setting == Searcher.FINISHED
        if setting is None or self.exhausted:
            return None
        if self.num_proposed < len(self._first):  # a known value may lie between two steps
            return self._use(trial_id, self._first[self.num_proposed])
        return self._use(trial_id, {name: each.value(setting[self._keys[name]]) for name, each in self._coded.items()})

    def _learn(self, trial_id: str, result: dict[str, Any]) -> None:
        epoch = result["training_iteration"]
        if self._budgets:
            learns = "budget" in result.get("hyperband_info", {})
            self._epochs[trial_id] = epoch, epoch if learns else self._epochs.get(trial_id, (0, 0))[1]
            if not learns:
                return
        with seeded(self._seed, 2, int(trial_id), epoch):
            self.library.on_trial_result(trial_id, result)

    def _end(self, trial_id: str, result: dict[str, Any] | None) -> None:
        if self._budgets and result is not None:
            self._tell_bohb(trial_id, result)
        excesses = self._excesses.get(trial_id, [1.0] * len(self._aim.constraints))
        self._broken = [1.0 if each is None else each for each in excesses]  # Optuna asks for it in the call below
        with seeded(self._seed, 3, int(trial_id)):
            self.library.on_trial_complete(trial_id, result)

    def _tell_bohb(self, trial_id: str, result: dict[str, Any]) -> None:
        """Tells BOHB a trial's last value, at the next rung: Ray's adapter learns only from trials that are paused.

        So a failed trial is the worst at the rung that it trained to, and the trial that ends a bracket counts.
        """
        last, learned = self._epochs.pop(trial_id, (0, 0))
        epoch = result["training_iteration"] or last + 1  # a failure has no epoch
        if epoch > learned:
            budget = next((rung for rung in self._budgets if rung >= epoch), self._budgets[-1])
            self._learn(trial_id, {**result, "training_iteration": epoch, "hyperband_info": {"budget": budget}})


def build_searcher(
    experiment: Experiment, space: Space, history: Sequence[Event] = (), past: Past | None = None
) -> SeededSearcher:
    """Checks and builds the searcher; with a `history`, it plans its random start as in the first session."""
    check_searcher(experiment, space)
    searcher = OWN.get(experiment.searcher, LibrarySearcher)
    return searcher(experiment, space, first_num_samples(experiment, history), past)


def first_num_samples(experiment: Experiment, history: Sequence[Event]) -> int:
    """Returns how many trials the search's first session had at most; without a history, those of the experiment."""
    number = (first := first_start(history)) and first.num_samples
    return (number or MOST_SAMPLES) if type(number) is int and number >= 0 else experiment.most_samples


def num_settings(experiment: Experiment, space: Space) -> int:
    """Returns the maximum number of settings that an experiment's searcher proposes."""
    own = OWN.get(experiment.searcher, SeededSearcher)  # the base class imports no library
    return own(experiment, space, experiment.most_samples).num_settings


def check_searcher(experiment: Experiment, space: Space) -> None:
    """Raises a RequestError if searcher or scheduler does not work with the space, or a package is not installed."""
    if experiment.scheduler == "pbt" and not space.mutable:
        raise RequestError(
            f"--scheduler pbt changes parameters while a trial trains, but space {experiment.space!r} has no mutable "
            f'parameters; add for example mutable=("lr",) to it, or use another scheduler'
        )
    for name in (name for name, domain in space.mutations.items() if parameters.branches(domain)):
        if experiment.scheduler == "pbt":
            raise RequestError(
                f"--scheduler pbt cannot change parameter {name!r}, a choice of dictionaries with domains; "
                f"leave it out of mutable, or use another scheduler"
            )
    if experiment.confirm and experiment.scheduler == "pbt":
        raise RequestError(
            f"--confirm {experiment.confirm}: --scheduler pbt changes settings while trials train, so none of them can "
            f"be trained again; leave out --confirm, or use another scheduler"
        )
    for package, extra in NEEDS.get(experiment.searcher, ()):
        if importlib.util.find_spec(package) is None:
            raise RequestError(f"--searcher {experiment.searcher} needs the package {package}: {with_extra(extra)}")
    refused = REFUSED[experiment.searcher]
    for name, domain in domains.leaves(space.encoded):
        kind, is_inside = domains.kind(domain), bool(parameters.chosen_by(name))
        if kind in refused or (kind == "grid_search" and is_inside and experiment.searcher == "random"):
            other = "grid" if experiment.searcher == "random" else "random"
            raise RequestError(
                f"--searcher {experiment.searcher} cannot propose parameter {name!r}, a {kind}"
                f"{' inside a choice' * is_inside}; use --searcher {other}, or declare it as tune.choice or a range, "
                f"such as tune.uniform"
            )


def usable(space: Space) -> tuple[SearcherName, ...]:
    """Returns the searchers that can propose every parameter of a space and whose packages are installed."""
    names: list[SearcherName] = []
    for name in get_args(SearcherName):
        with contextlib.suppress(RequestError):
            check_searcher(Experiment(searcher=name, scheduler=cast(Any, PAIRS[name][0])), space)
            names.append(name)
    return tuple(names)


OWN: dict[str, type[SeededSearcher]] = {
    "random": RandomSearcher,
    "grid": GridSearcher,
    "refine": RefineSearcher,
    "forest": ForestSearcher,
}
NOT_OF_LIBRARIES = ("sample_from", "grid_search", "normal")
# Searcher -> the kinds of domains that it cannot propose.
REFUSED: dict[str, tuple[str, ...]] = {
    "random": (),
    "grid": ("sample_from", "normal"),
    "refine": ("sample_from", "grid_search"),
    "forest": ("sample_from", "grid_search"),
    "hyperopt": ("sample_from", "grid_search"),
    "optuna": NOT_OF_LIBRARIES,
    "nsga2": NOT_OF_LIBRARIES,
    "bohb": NOT_OF_LIBRARIES,
}
NEEDS = {
    "optuna": (("optuna", "optuna"),),
    "nsga2": (("optuna", "optuna"),),
    "bohb": (("hpbandster", "bohb"), ("ConfigSpace", "bohb")),
}
