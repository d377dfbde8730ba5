"""The searchers of other libraries, used through Ray's adapters."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from ray.tune.search import Searcher

from tuner.core.rules.hyperband import rungs_of
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.searchers.coded import Coded
from tuner.tuning.searchers.past import Past, PastModel
from tuner.tuning.searchers.sampling import SeededSearcher, Setting, python_values, seeded


class LibrarySearcher(SeededSearcher):
    """Asks Ray's adapter `library`, which a subclass builds; seeds the global random streams for it."""

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int, past: Past | None = None) -> None:
        super().__init__(experiment, space, first_num_samples, past)
        # By default, HyperOpt tries 20 random settings and Optuna 10 before they use their models. In a search with 10
        # samples, all settings would then be random.
        self._num_random, self._first_num_samples = max(3, min(10, first_num_samples // 3)), first_num_samples
        self._first, self._points = self._points + self._from_past(past), []
        leaves = dict(domains.leaves(space.encoded))
        self._coded = {name: Coded(domain) for name, domain in leaves.items()}
        # Ray's adapters treat "/" and names that are numbers as nesting.
        self._keys = {name: f"{number}:{name.replace('/', '.')}" for number, name in enumerate(leaves)}
        first = [{self._keys[n]: self._coded[n].code(value) for n, value in flat.items()} for flat in self._first]
        self.library = self._adapter(experiment, first or None)
        metric, mode = (
            list(each) if isinstance(each, tuple) else each for each in (experiment.metric, experiment.mode)
        )
        codes = {self._keys[name]: coded.domain for name, coded in self._coded.items()}
        self.library.set_search_properties(metric, mode, codes)

    def _adapter(self, experiment: Experiment, first: list[Setting] | None) -> Searcher:
        """Returns Ray's adapter, which proposes the `first` settings before its own."""
        raise NotImplementedError

    def _from_past(self, past: Past | None) -> list[Setting]:
        """Returns the settings that a model of past searches proposes in place of the library's random first ones."""
        leaves = dict(domains.leaves(self._space.encoded))
        model = PastModel(past, leaves, self._seed) if past else None
        if not model:
            return []
        left = range(max(0, self._num_random - len(self._points)))
        return [python_values(model.drawn(np.random.default_rng([self._seed, each, 9]), each)) for each in left]

    def _next(self, trial_id: str) -> Setting | None:
        with seeded(self._seed, 1, self.num_proposed):
            setting = self.library.suggest(trial_id)
        self.exhausted = setting == Searcher.FINISHED
        if setting is None or self.exhausted:
            return None
        if self.num_proposed < len(self._first):  # a known value may lie between two steps
            return self._use(trial_id, self._first[self.num_proposed])
        return self._use(trial_id, {name: each.value(setting[self._keys[name]]) for name, each in self._coded.items()})

    def _learn(self, trial_id: str, result: Setting) -> None:
        with seeded(self._seed, 2, int(trial_id), result["training_iteration"]):
            self.library.on_trial_result(trial_id, result)

    def _end(self, trial_id: str, result: Setting | None) -> None:
        with seeded(self._seed, 3, int(trial_id)):
            self.library.on_trial_complete(trial_id, result)


class HyperOpt(LibrarySearcher):
    def _adapter(self, experiment: Experiment, first: list[Setting] | None) -> Searcher:
        from ray.tune.search.hyperopt import HyperOptSearch

        options = {"random_state_seed": self._seed, "n_initial_points": self._num_random}
        return HyperOptSearch(**options, points_to_evaluate=first)


class Optuna(LibrarySearcher):
    def _adapter(self, experiment: Experiment, first: list[Setting] | None) -> Searcher:
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        limits: dict[str, Any] = {"constraints_func": lambda trial: self._broken} if self._aim.constraints else {}
        with warnings.catch_warnings():
            for kind in (optuna.exceptions.ExperimentalWarning, FutureWarning):  # constraints_func is both
                warnings.simplefilter("ignore", kind)
            sampler = self._sampler(optuna.samplers, seed=self._seed, **limits)
        return OptunaSearch(sampler=sampler, points_to_evaluate=first)

    def _sampler(self, samplers: Any, **options: Any) -> Any:
        return samplers.TPESampler(n_startup_trials=self._num_random, **options)

    def _end(self, trial_id: str, result: Setting | None) -> None:
        excesses = self._excesses.get(trial_id, [1.0] * len(self._aim.constraints))
        self._broken = [1.0 if each is None else each for each in excesses]  # Optuna asks for it in the call below
        super()._end(trial_id, result)


class NSGA2(Optuna):
    def _sampler(self, samplers: Any, **options: Any) -> Any:
        population = max(10, min(50, self._first_num_samples // 5))  # its default of 50 is random up to then
        return samplers.NSGAIISampler(population_size=population, **options)


class BOHB(LibrarySearcher):
    def _adapter(self, experiment: Experiment, first: list[Setting] | None) -> Searcher:
        from ray.tune.search.bohb import TuneBOHB

        rungs = rungs_of(experiment.max_epochs, experiment.reduction_factor)
        self._budgets = sorted({rung for bracket in rungs for rung in bracket})  # the epochs at which it compares
        self._epochs: dict[str, tuple[int, int]] = {}  # trial -> its last epoch, and the last one that BOHB learned
        return TuneBOHB(seed=self._seed, points_to_evaluate=first)

    def _learn(self, trial_id: str, result: Setting) -> None:
        epoch, learns = result["training_iteration"], "budget" in result.get("hyperband_info", {})
        self._epochs[trial_id] = epoch, epoch if learns else self._epochs.get(trial_id, (0, 0))[1]
        if learns:
            super()._learn(trial_id, result)

    def _end(self, trial_id: str, result: Setting | None) -> None:
        """Tells BOHB a trial's last value too, at the next rung: Ray's adapter learns only from trials that are paused.

        So a failed trial is the worst at the rung that it trained to, and the trial that ends a bracket counts.
        """
        if result is not None:
            last, learned = self._epochs.pop(trial_id, (0, 0))
            epoch = result["training_iteration"] or last + 1  # a failure has no epoch
            if epoch > learned:
                budget = next((rung for rung in self._budgets if rung >= epoch), self._budgets[-1])
                self._learn(trial_id, {**result, "training_iteration": epoch, "hyperband_info": {"budget": budget}})
        super()._end(trial_id, result)
