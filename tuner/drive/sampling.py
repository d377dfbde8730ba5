"""Searchers without a model: random, grid and refine. Their settings depend only on the seed and the results."""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from ray.tune.search import Searcher
from ray.tune.search.variant_generator import generate_variants

from tuner.record.records import sign_of
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space

logger = logging.getLogger(__name__)
Setting = dict[str, Any]


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seeds the global random streams of Python and numpy from `key` inside the context; restores them afterwards.

    TuneBOHB, Ray's bracket draw and a user's `tune.sample_from` all draw from the global streams.
    """
    before = random.getstate(), np.random.get_state()
    derived = np.random.SeedSequence(key).generate_state(1)[0]
    random.seed(int(derived))
    np.random.seed(derived)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


class RandomSearcher(Searcher):
    """Proposes random settings. Setting i depends only on (seed, i), so a search can be resumed or extended at any i.

    If the space contains `tune.grid_search`, every sample is tried at each grid point, as in Ray.
    """

    def __init__(self, experiment: Experiment, space: Space) -> None:
        super().__init__(experiment.metric, experiment.mode)
        self._seed, self._params = experiment.seed, dict(space.params)
        grids = [domains.values_of(d) for _, d in domains.leaves(self._params) if domains.is_grid(d)]
        self._per_sample = math.prod(len(values) for values in grids)
        self.num_settings = experiment.num_samples * self._per_sample
        self._proposed = 0

    def suggest(self, trial_id: str) -> Setting | None:
        return self.draw()

    def draw(self) -> Setting:
        """The next random setting."""
        sample, point = divmod(self._proposed, self._per_sample)
        self._proposed += 1
        return self._settings(sample)[point]

    def _settings(self, sample: int) -> list[Setting]:
        with seeded(self._seed, sample):
            return [spec["config"] for _, spec in generate_variants({"config": self._params})]

    def on_trial_complete(self, trial_id: str, result: Setting | None = None, error: bool = False) -> None:
        """Nothing to learn."""


class GridSearcher(Searcher):
    """Proposes the settings of the space's grid (`domains.grid_values`), each once, in a random order.

    Without the random order, the first `num_samples` settings would all have the same values of the first parameters.
    """

    def __init__(self, experiment: Experiment, space: Space) -> None:
        super().__init__(experiment.metric, experiment.mode)
        self.grid = grid_of(space.params)
        self.size = math.prod(len(values) for values in self.grid.values())
        self.num_settings = min(experiment.num_samples, self.size)
        # The order contains indices, not settings, because a grid may have millions of points.
        self._order = random.Random(experiment.seed).sample(range(self.size), self.num_settings)
        self._proposed = 0

    def suggest(self, trial_id: str) -> Setting | str:
        if self._proposed >= len(self._order):
            return str(Searcher.FINISHED)
        index = self._order[self._proposed]
        self._proposed += 1
        flat = {}
        for name, values in reversed(self.grid.items()):
            index, at = divmod(index, len(values))
            flat[name] = values[at]
        return nested(dict(reversed(flat.items())))

    def on_trial_complete(self, trial_id: str, result: Setting | None = None, error: bool = False) -> None:
        """Nothing to learn."""


class RefineSearcher(RandomSearcher):
    """Proposes random settings for the first half of the samples, then neighbours of the best setting.

    The second half begins when every trial of the first half has ended. Neighbours (`domains.neighbours`) that differ
    in one parameter come before those that differ in two. After all neighbours at one step come those at two steps.
    """

    def __init__(self, experiment: Experiment, space: Space) -> None:
        super().__init__(experiment, space)
        self.num_settings = experiment.num_samples
        self.num_random = num_random(experiment)
        self._leaves = dict(domains.leaves(space.params))
        self._sign = sign_of(experiment.mode)
        self._settings_tried: dict[str, Setting] = {}
        self._best: dict[str, float] = {}  # trial -> its best value so far, with a sign such that smaller is better
        self._running: set[str] = set()
        self._neighbours: Iterator[Setting] | None = None

    def suggest(self, trial_id: str) -> Setting | None:
        if self._proposed < self.num_random or self._neighbours is not None or not self._running:
            setting = self._next()
            self._settings_tried[trial_id] = setting
            self._running.add(trial_id)
            return setting
        return None  # trials of the first half are still training

    def _next(self) -> Setting:
        if self._proposed < self.num_random:
            return self.draw()
        if self._neighbours is None:
            self._neighbours = self._around_best()
        neighbour = next(self._neighbours, None)
        if neighbour is not None:
            self._proposed += 1
            return neighbour
        return self.draw()  # every neighbour has been tried

    def _around_best(self) -> Iterator[Setting]:
        if not self._best:
            logger.warning("refine: no trial of the first half has a finite metric; the second half is random too")
            return
        first = min(self._best, key=self._best.__getitem__)
        centre = dict(domains.leaves(self._settings_tried[first]))
        seen = [dict(domains.leaves(setting)) for setting in self._settings_tried.values()]
        order = random.Random(self._seed)
        for radius in range(1, 11):
            around = {n: domains.neighbours(d, centre[n], radius) for n, d in self._leaves.items()}
            for changed in range(1, len(around) + 1):
                ring = [
                    {**centre, **dict(zip(names, values, strict=True))}
                    for names in itertools.combinations(around, changed)
                    for values in itertools.product(*(around[n] for n in names))
                ]
                order.shuffle(ring)
                for flat in ring:
                    if flat not in seen:
                        seen.append(flat)
                        yield nested(flat)

    def on_trial_result(self, trial_id: str, result: Setting) -> None:
        value = self._sign * result.get(str(self.metric), math.inf)
        if math.isfinite(value) and value < self._best.get(trial_id, math.inf):
            self._best[trial_id] = value

    def on_trial_complete(self, trial_id: str, result: Setting | None = None, error: bool = False) -> None:
        if result:
            self.on_trial_result(trial_id, result)
        self._running.discard(trial_id)


def num_random(experiment: Experiment) -> int:
    """How many settings of a `refine` search are random; the other settings are neighbours of the best one."""
    return math.ceil(experiment.num_samples / 2)


def grid_of(params: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Parameter -> the values that a grid search tries."""
    return {name: domains.grid_values(domain) for name, domain in domains.leaves(params)}


def nested(flat: Mapping[str, Any]) -> Setting:
    """`{"a/b": 1}` -> `{"a": {"b": 1}}`, the inverse of `domains.leaves`."""
    result: Setting = {}
    for path, value in flat.items():
        *outer, last = path.split("/")
        inside = result
        for name in outer:
            inside = inside.setdefault(name, {})
        inside[last] = value
    return result
