"""Searchers without a model: random, grid and refine. The same options, seed and results give the same settings."""

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

from tuner.errors import RequestError
from tuner.errors.output import bounded_output
from tuner.record.records import sign_of
from tuner.spec import domains, parameters
from tuner.spec.domains import nested
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


def first_settings(experiment: Experiment, space: Space) -> list[Setting]:
    """Returns the settings of the --point options, flattened and encoded; parameters that a point lacks are random.

    Raises:
        RequestError: a point names an unknown parameter, or a value that its parameter cannot have.
    """
    settings = []
    for number, point in enumerate(experiment.points):
        try:
            placed = parameters.place(space.declared, point)
        except ValueError as error:
            raise RequestError(f"--point {error}") from None
        drawn = variants(space.encoded, experiment.seed, number, 6)[0]
        settings.append(dict(domains.leaves(drawn)) | placed)
    return settings


def variants(params: Mapping[str, Any], *key: int) -> list[Setting]:
    """Draws a random setting for each point of the params' `tune.grid_search`; a single one if they have none."""
    with seeded(*key), bounded_output():  # the user's functions in tune.sample_from may print
        return [spec["config"] for _, spec in generate_variants({"config": params})]


class OwnSearcher(Searcher):
    """Proposes the --point settings, then the settings of the subclass's `_next(number)`.

    Args:
        first_num_samples: --num-samples of the search's first session.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int) -> None:
        super().__init__(experiment.metric, experiment.mode)
        self.num_settings, self._first_num_samples = experiment.num_samples, first_num_samples
        self._seed, self._space, self._sign = experiment.seed, space, sign_of(experiment.mode)
        self._points = first_settings(experiment, space)
        self._proposed = 0

    def suggest(self, trial_id: str) -> Setting | str | None:
        number, self._proposed = self._proposed, self._proposed + 1
        return self._config(self._points[number]) if number < len(self._points) else self._next(number)

    def on_trial_complete(self, trial_id: str, result: Setting | None = None, error: bool = False) -> None:
        if result:
            self.on_trial_result(trial_id, result)

    def on_trial_result(self, trial_id: str, result: Setting) -> None:
        """Does nothing, as random and grid do not use results."""

    def _next(self, number: int) -> Setting | str:
        raise NotImplementedError

    def _config(self, flat: Setting) -> Setting:
        return parameters.decode(self._space.searched, nested(flat))


class RandomSearcher(OwnSearcher):
    """Proposes random settings. Setting i depends only on (seed, i): a search can be extended.

    If the space has `tune.grid_search`, each sample is one pass over the grid. As in Ray, each grid point of a pass has
    its own random values of the other parameters.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int) -> None:
        super().__init__(experiment, space, first_num_samples)
        grids = [domains.values_of(d) for _, d in domains.leaves(space.searched) if domains.is_grid(d)]
        self._per_sample = math.prod(len(values) for values in grids)
        self.num_settings *= self._per_sample

    def _next(self, number: int) -> Setting:
        sample, point = divmod(number, self._per_sample)
        # Drawn from all params, constants included, because a `tune.sample_from` may read a constant.
        drawn = variants(self._space.declared, self._seed, sample)[point]
        return parameters.searched_in(self._space.declared, drawn)


class GridSearcher(OwnSearcher):
    """Proposes each setting of the space's grid (`domains.grid_values`) once, in a random order.

    In the declared order, the first `num_samples` settings would often share the values of the first parameters.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int) -> None:
        super().__init__(experiment, space, first_num_samples)
        self.size = grid_size(space.searched)
        self.num_settings = min(experiment.num_samples, len(self._points) + self.size)
        num_drawn = max(0, self.num_settings - len(self._points))
        self._order = list(itertools.islice(shuffled(self.size, experiment.seed), num_drawn))

    def _next(self, number: int) -> Setting | str:
        if number >= self.num_settings:
            return str(Searcher.FINISHED)
        return grid_point(self._space.searched, self._order[number - len(self._points)])


class RefineSearcher(OwnSearcher):
    """Proposes the given points and random settings for the first half, then neighbours of the best setting.

    In between, it waits until every trial of the first half has ended. Neighbours (`domains.neighbours`) that differ in
    one parameter come before those that differ in two, and neighbours one step away before those two steps away.
    When all neighbours have been tried, the settings are random again.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int) -> None:
        super().__init__(experiment, space, first_num_samples)
        self._num_random = num_random(first_num_samples)
        self._tried: dict[str, Setting] = {}  # trial -> its flattened, encoded setting
        self._best: dict[str, float] = {}  # trial -> its best value so far, with a sign such that smaller is better
        self._running: set[str] = set()
        self._neighbours: Iterator[Setting] | None = None

    def suggest(self, trial_id: str) -> Setting | None:
        if self._proposed >= self._num_random and self._neighbours is None:
            if self._running:
                return None  # trials of the first half still run; the choice of neighbours needs their results
            self._neighbours = self._around_best()
        flat = self._points[self._proposed] if self._proposed < len(self._points) else None
        if flat is None and self._neighbours:
            flat = next(self._neighbours, None)  # None: all neighbours have been tried
        if flat is None:
            flat = dict(domains.leaves(variants(self._space.encoded, self._seed, self._proposed)[0]))
        self._proposed += 1
        self._tried[trial_id] = flat
        self._running.add(trial_id)
        return self._config(flat)

    def _around_best(self) -> Iterator[Setting]:
        if not self._best:
            logger.warning("refine: no trial of the first half has a finite metric; the second half is random too")
            return
        centre = self._tried[min(self._best, key=self._best.__getitem__)]
        # A setting has values for all branches of nested choices, a config only those of the chosen branches. Two
        # settings with the same config train the same, so configs are compared.
        seen = [self._config(flat) for flat in self._tried.values()]
        order = random.Random(self._seed)
        leaves = dict(domains.leaves(self._space.encoded))
        for radius in range(1, 11):
            around = {n: domains.neighbours(d, centre[n], radius) for n, d in leaves.items()}
            for changed in range(1, len(around) + 1):
                ring = [
                    {**centre, **dict(zip(names, values, strict=True))}
                    for names in itertools.combinations(around, changed)
                    for values in itertools.product(*(around[n] for n in names))
                ]
                order.shuffle(ring)
                for flat in ring:
                    config = self._config(flat)
                    if config not in seen:
                        seen.append(config)
                        yield flat

    def on_trial_result(self, trial_id: str, result: Setting) -> None:
        value = self._sign * result.get(str(self.metric), math.inf)
        if math.isfinite(value) and value < self._best.get(trial_id, math.inf):
            self._best[trial_id] = value

    def on_trial_complete(self, trial_id: str, result: Setting | None = None, error: bool = False) -> None:
        super().on_trial_complete(trial_id, result, error)
        self._running.discard(trial_id)


def num_random(num_samples: int) -> int:
    """Returns how many settings `refine` proposes before it proposes neighbours of the best one."""
    return math.ceil(num_samples / 2)


def shuffled(size: int, seed: int) -> Iterator[int]:
    """Yields all of `range(size)` in random order; keeps only what it has yielded, because a grid may be huge."""
    stream, moved = random.Random(seed), dict[int, int]()
    for left in range(size, 0, -1):
        place = stream.randrange(left)
        yield moved.get(place, place)
        moved[place] = moved.pop(left - 1, left - 1)


def grid_size(params: Any) -> int:
    """Returns the number of settings in the whole grid of searched parameters."""
    return math.prod(_num_values(value) for value in params.values())


def _num_values(value: Any) -> int:
    if branches := parameters.branches(value):
        return sum(_num_values(each) for each in branches)
    if parameters.is_nested(value):
        return grid_size(value)
    return 1 if domains.is_constant(value) else len(domains.grid_values(value))


def grid_point(params: Mapping[str, Any], index: int) -> Setting:
    """Returns the setting with this index, 0 to `grid_size` - 1; the last parameter varies fastest."""
    config = {}
    for name, value in reversed(list(params.items())):
        index, at = divmod(index, _num_values(value))
        config[name] = _grid_value(value, at)
    return dict(reversed(config.items()))


def _grid_value(value: Any, at: int) -> Any:
    for branch in parameters.branches(value):
        if at < (size := _num_values(branch)):
            return _grid_value(branch, at)
        at -= size
    if parameters.is_nested(value):
        return grid_point(value, at)
    return value if domains.is_constant(value) else domains.grid_values(value)[at]
