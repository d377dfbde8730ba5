"""The base class of all searchers, and the searchers without a model: random, grid and refine."""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from ray import tune
from ray.tune.search.sample import Function
from ray.tune.search.variant_generator import generate_variants

from tuner.errors import RequestError
from tuner.errors.gate import plain
from tuner.errors.output import bounded_output
from tuner.record.records import finite
from tuner.spec import domains, parameters
from tuner.spec.domains import nested
from tuner.spec.experiment import Experiment
from tuner.spec.metrics import keeps_last
from tuner.spec.space import Space
from tuner.tuning.searchers.past import Past, columns_of
from tuner.tuning.searchers.prior import Prior

logger = logging.getLogger(__name__)
Setting = dict[str, Any]


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seeds the global random streams of Python and numpy from `key`; restores them afterwards.

    TuneBOHB, Ray's PBT and a user's `tune.sample_from` all draw from the global streams.
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


def first_settings(experiment: Experiment, space: Space, past: Past | None = None) -> list[Setting]:
    """Returns the known settings of --start-from, then those of --point, then the prior; they may lack parameters."""
    settings = list(past.first) if past else []
    guess = prior_of(experiment, space).guess
    for point in experiment.points:
        try:
            settings.append(parameters.place(space.declared, point))
        except ValueError as error:
            raise RequestError(f"--point {error}") from None
    return settings + ([guess] if guess else [])


def prior_of(experiment: Experiment, space: Space) -> Prior:
    """Returns the guess of --prior, which is empty without one."""
    leaves = dict(domains.leaves(space.encoded))
    computed = [name for name, domain in leaves.items() if domains.kind(domain) == "sample_from"]
    if experiment.guess and computed:
        raise RequestError(
            f"--prior: does not work with tune.sample_from ({computed[0]}); leave it out, or use --point"
        )
    try:
        guess = parameters.place(space.declared, experiment.guess)
    except ValueError as error:
        raise RequestError(f"--prior {error}") from None
    if gridded := [name for name in guess if domains.is_grid(leaves[name])]:
        name = gridded[0]
        raise RequestError(f"--prior {name}: tune.grid_search runs each of its values; leave {name} out of the prior")
    return Prior(guess, leaves)


def variants(params: Mapping[str, Any], *key: int) -> list[Setting]:
    """Draws one random setting for each point of the params' `tune.grid_search` grid, or just one without a grid."""
    with seeded(*key), bounded_output():  # the user's functions in tune.sample_from may print
        return [spec["config"] for _, spec in generate_variants({"config": _of_config(params)})]


def _of_config(value: Any) -> Any:
    """Makes each `tune.sample_from` call its function with the config, as Ray documents it, or else with a spec of it.

    Ray 2.60 itself calls it with the spec alone (`spec.config.width`).
    """
    if parameters.is_nested(value):
        return {name: _of_config(each) for name, each in value.items()}
    if not isinstance(value, Function) or not value.pass_config:
        return value

    def computed(spec: Any) -> Any:
        try:
            return value.func(spec.config)
        except (AttributeError, KeyError):
            return value.func(spec)

    return tune.sample_from(computed)


def drawn(space: Space, *key: int) -> list[Setting]:
    """Draws flattened, encoded settings as `variants` does; `tune.sample_from` is left for `RandomSearcher` to compute.

    Ray's rounding to a step may exceed a bound by the last digit of a float (0.30000000000000004 in 0 to 0.3).
    """
    columns = columns_of(space)
    computed = {name: domain for name, domain in domains.leaves(space.encoded) if name not in columns}
    flat = (domains.flattened(nested(columns), each) for each in variants(nested(columns), *key))
    return [{n: domains.within(columns[n], value) for n, value in each.items()} | computed for each in flat]


class SeededSearcher:
    """Proposes the settings of --start-from and --point, then its own; all draws depend on seed, past and calls alone.

    `num_proposed` counts its proposals; the search asks for at most `num_settings`. If `exhausted`, it has no more.
    `first_num_samples` is --num-samples of the search's first session.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int, past: Past | None = None) -> None:
        self.num_settings, self.num_proposed, self.exhausted = experiment.most_samples, 0, False
        self._seed, self._metric, self._sign = experiment.seed, experiment.wanted.metric, experiment.wanted.sign
        self._compared, self._aim = experiment.compared, experiment.aim
        self._space = space
        self._points = self._filled(first_settings(experiment, space, past), first_num_samples)
        self._prior = prior_of(experiment, space)
        # The last report of each unfinished trial that has the metric, or its last one if none has it.
        self._last: dict[str, Setting] = {}
        self._completed: set[str] = set()  # trials whose end the searcher knows
        # Trial -> the last known excess of each constraint; None for a metric that it has not reported.
        self._excesses: dict[str, list[float | None]] = {}

    def _filled(self, settings: list[Setting], first_num_samples: int) -> list[Setting]:
        """Draws the parameters that known settings lack."""
        return [drawn(self._space, self._seed, number, 6)[0] | each for number, each in enumerate(settings)]

    def suggest(self, trial_id: str) -> Setting | None:
        """Returns the next setting; None if the searcher has none now, or none any more."""
        is_point = self.num_proposed < len(self._points)
        setting = self._use(trial_id, self._points[self.num_proposed]) if is_point else self._next(trial_id)
        self.num_proposed += setting is not None
        return cast("Setting | None", python_values(setting))

    def report(self, trial_id: str, result: Setting) -> None:
        """Learns from a trial's report, unless the searcher already knows the trial's end."""
        if trial_id in self._completed:
            return
        self._judge(trial_id, result)
        if self._is_blank(result):
            return
        known = self._known(result)
        if known or finite(plain(self._last.get(trial_id, {}).get(self._metric))) is None:
            self._last[trial_id] = known or result
        if known:
            self._learn(trial_id, known)
        else:
            self._note(trial_id, result)

    def complete(self, trial_id: str, result: Setting | None = None, error: bool = False) -> None:
        """Learns from a trial's first end; ignores a later one, because a trial may continue after its end."""
        if trial_id in self._completed:
            return
        self._completed.add(trial_id)
        last = self._last.pop(trial_id, None)
        # Ray gives no result of a trial that is stopped while it is paused.
        reports = [] if error else [report for report in (result, last) if report]
        for report in reversed(reports):
            self._judge(trial_id, report)
        reports = [report for report in reports if not self._is_blank(report)]
        # For a failed trial, the searcher gets the worst value (infinity as a loss). With an error or NaN instead,
        # TPE proposed 9 of 10 later settings in the failing region; with infinity, 1 of 7 (measured with hyperopt 0.3).
        reports = reports or [{"training_iteration": 0}]
        known = next(filter(None, map(self._known, reports)), None)
        if known is None:
            self._note(trial_id, reports[0])
        self._end(trial_id, known)

    def _judge(self, trial_id: str, result: Setting) -> None:
        """Notes by how much a report breaks each constraint."""
        before = self._excesses.setdefault(trial_id, [None] * len(self._aim.constraints))
        now = (constraint.excess(result) for constraint in self._aim.constraints)
        self._excesses[trial_id] = [old if new is None else new for old, new in zip(before, now, strict=True)]

    def _next(self, trial_id: str) -> Setting | None:
        raise NotImplementedError

    def _use(self, trial_id: str, flat: Setting) -> Setting:
        return parameters.decode(self._space.searched, nested(flat))

    def _learn(self, trial_id: str, result: Setting) -> None:
        """Learns from a report, whose metric is finite or infinitely bad; without a prior, random and grid do not."""
        breaks = any((excess or 0) > 0 for excess in self._excesses.get(trial_id, ()))
        self._prior.learn(trial_id, math.inf if breaks else self._sign * float(result[self._metric]))

    def _note(self, trial_id: str, result: Setting) -> None:
        """Notes a report without the metric, which has the one of --prune-by; only the forest learns from it."""

    def _end(self, trial_id: str, result: Setting | None) -> None:
        """Learns from a trial's end; `result` is None if no report had the metric though the training went well."""
        if result is not None:
            self._learn(trial_id, result)

    def _is_blank(self, result: Setting) -> bool:
        """Whether a report has the metric alone, and it is not finite; this says nothing about the training."""
        is_alone = keeps_last(self._compared, self._aim.goals[0], result)
        return is_alone and finite(plain(result[self._metric])) is None

    def _known(self, result: Setting) -> Setting | None:
        """Returns a report with a finite or infinitely bad metric; None if it has none but is compared by another."""
        values = [finite(plain(goal.value(result))) for goal in self._aim.goals]
        if self._aim.several:
            worst = {goal.metric: goal.sign * math.inf for goal in self._aim.goals}
            return {**result, **worst} if None in values else result
        (value,) = values
        if value is None and finite(plain(self._compared.value(result))) is not None:
            return None
        return {**result, self._metric: self._sign * math.inf if value is None else value}


def python_values(setting: Any) -> Any:
    """Converts a setting's numpy scalars to Python's, because torch's DataLoader refuses TuneBOHB's np.int64."""
    if isinstance(setting, dict):
        return {name: python_values(value) for name, value in setting.items()}
    return plain(setting) if isinstance(setting, np.generic) else setting


class RandomSearcher(SeededSearcher):
    """Proposes random settings. Setting i depends only on (seed, i), unless there is a prior.

    If the space has `tune.grid_search`, a sample is one pass over the grid, with new random values at each grid point.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int, past: Past | None = None) -> None:
        grids = {name: domains.values_of(d) for name, d in domains.leaves(space.encoded) if domains.is_grid(d)}
        indices = nested({name: {"grid_search": list(range(len(values)))} for name, values in grids.items()})
        self._cells = [dict(domains.leaves(each)) for each in variants(indices, 0)]  # the grid's points, by index
        self._grids, self._taken = grids, set[int]()  # the numbers of the random settings that known ones replace
        super().__init__(experiment, space, first_num_samples, past)
        self.num_settings *= len(self._cells)
        if grids:
            self.num_settings += sum(number >= self.num_settings for number in self._taken)
        self._number = 0  # of the next random setting

    def _filled(self, settings: list[Setting], first_num_samples: int) -> list[Setting]:
        """Lets each known setting replace the next random one with its values of `tune.grid_search`.

        If the samples have none left, the setting runs in addition, so each value of a grid runs in each sample.
        """
        size, filled = len(self._cells), list[Setting]()
        for setting in settings[: first_num_samples * size] if self._grids else settings:
            given = {n: domains.index_of(self._grids[n], value) for n, value in setting.items() if n in self._grids}
            fitting = [place for place, cell in enumerate(self._cells) if given.items() <= cell.items()]
            places = (size * sample + place for sample in itertools.count() for place in fitting)
            self._taken.add(number := next(number for number in places if number not in self._taken))
            filled.append(drawn(self._space, self._seed, len(filled), 6)[number % size] | setting)
        return filled

    def _next(self, trial_id: str) -> Setting:
        while self._number in self._taken:
            self._number += 1
        sample, point = divmod(self._number, len(self._cells))
        self._number += 1
        flat = drawn(self._space, self._seed, sample)[point]
        if self._prior:
            flat = self._prior.moved(trial_id, flat, np.random.default_rng([self._seed, sample, 10]))
        return self._use(trial_id, flat)

    def _use(self, trial_id: str, flat: Setting) -> Setting:
        """Computes `tune.sample_from` from the values, known ones and constants included, that the trial gets."""
        config = parameters.decode(self._space.declared, nested(flat))
        if any(domains.kind(domain) == "sample_from" for _, domain in domains.leaves(self._space.encoded)):
            (config,) = variants(config, self._seed, self.num_proposed, 7)
        return parameters.searched_in(self._space.declared, config)


class GridSearcher(SeededSearcher):
    """Proposes given points, then settings of the space's grid (`domains.grid_values`), each once, in random order."""

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int, past: Past | None = None) -> None:
        super().__init__(experiment, space, first_num_samples, past)
        self.size = grid_size(space.searched)
        known = {grid_index(space.searched, self._use("", flat)) for flat in self._points} - {None}
        self.num_settings = min(experiment.most_samples, len(self._points) + self.size - len(known))
        num_drawn = max(0, self.num_settings - len(self._points))
        left = (index for index in shuffled(self.size, experiment.seed) if index not in known)
        self._order = list(itertools.islice(left, num_drawn))

    def _next(self, trial_id: str) -> Setting | None:
        if self.num_proposed >= self.num_settings:
            self.exhausted = True
            return None
        return grid_point(self._space.searched, self._order[self.num_proposed - len(self._points)])


class RefineSearcher(SeededSearcher):
    """Proposes given points, then random settings; after half of the trials have ended, neighbours of the best setting.

    Nearer neighbours (`domains.neighbours`) come first: one step away, then two, up to ten. At the same distance,
    neighbours that differ in one parameter come before neighbours that differ in two. After that, settings are random.
    """

    def __init__(self, experiment: Experiment, space: Space, first_num_samples: int, past: Past | None = None) -> None:
        super().__init__(experiment, space, first_num_samples, past)
        self._num_random = num_random(first_num_samples)
        self._tried: dict[str, Setting] = {}  # trial -> its flattened, encoded setting
        self._best: dict[str, float] = {}  # trial -> its best value so far, with a sign such that smaller is better
        self._running: set[str] = set()
        self._neighbours: Iterator[Setting] | None = None

    def suggest(self, trial_id: str) -> Setting | None:
        if self.num_proposed >= self._num_random and self._neighbours is None:
            if self._running:
                return None  # trials of the first half still run; the choice of neighbours needs their results
            self._neighbours = self._around_best()
        return super().suggest(trial_id)

    def _next(self, trial_id: str) -> Setting:
        flat = next(self._neighbours, None) if self._neighbours else None  # None: all neighbours have been tried
        if flat is None:
            flat = drawn(self._space, self._seed, self.num_proposed)[0]
        return self._use(trial_id, flat)

    def _use(self, trial_id: str, flat: Setting) -> Setting:
        self._tried[trial_id] = flat
        self._running.add(trial_id)
        return super()._use(trial_id, flat)

    def _around_best(self) -> Iterator[Setting]:
        if not self._best:
            logger.warning("refine: no trial of the first half has a finite metric; the second half is random too")
            return
        centre = self._tried[min(self._best, key=self._best.__getitem__)]
        # A setting has values for all branches of nested choices, but only those of the chosen branches count.
        seen = [parameters.in_use(flat) for flat in self._tried.values()]
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
                    used = parameters.in_use(flat)
                    if not any(domains.equal(used, each) for each in seen):
                        seen.append(used)
                        yield flat

    def _learn(self, trial_id: str, result: Setting) -> None:
        value = self._sign * result[self._metric]
        if value < self._best.get(trial_id, math.inf):
            self._best[trial_id] = value

    def _end(self, trial_id: str, result: Setting | None) -> None:
        super()._end(trial_id, result)
        self._running.discard(trial_id)


def num_random(num_samples: int) -> int:
    """Returns how many settings `refine` proposes before it proposes neighbours of the best one."""
    return math.ceil(num_samples / 2)


def shuffled(size: int, seed: int) -> Iterator[int]:
    """Yields `range(size)` in random order; stores at most one entry per yielded number, because a grid may be huge."""
    stream, moved = random.Random(seed), dict[int, int]()
    for left in range(size, 0, -1):
        place = stream.randrange(left)
        yield moved.get(place, place)
        moved[place] = moved.pop(left - 1, left - 1)


def grid_size(params: Any) -> int:
    """Returns the number of settings in the whole grid of searched parameters."""
    return math.prod(map(_num_values, params.values()))


def _num_values(value: Any) -> int:
    if branches := parameters.branches(value):
        return sum(map(_num_values, branches))
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


def grid_index(params: Mapping[str, Any], config: Mapping[str, Any]) -> int | None:
    """Returns the index of a setting in the grid: the inverse of `grid_point`; None if it is not there."""
    index = 0
    for name, value in params.items():
        if (at := _grid_place(value, config[name])) is None:
            return None
        index = index * _num_values(value) + at
    return index


def _grid_place(value: Any, chosen: Any) -> int | None:
    if branches := parameters.branches(value):
        start = 0
        for branch in branches:
            if (at := _grid_place(branch, chosen)) is not None:
                return start + at
            start += _num_values(branch)
        return None
    if parameters.is_nested(value):
        fits = parameters.is_nested(chosen) and value.keys() == chosen.keys()
        return grid_index(value, chosen) if fits else None
    try:
        return domains.index_of([value] if domains.is_constant(value) else domains.grid_values(value), chosen)
    except ValueError:
        return None
