"""Simulates searches on recorded learning curves: a clock, any number of workers, and no training.

`Search` drives the searcher and the stopping rule that a search uses, so what is measured is what runs. A random
setting of seven parameters takes 0.6 ms, which is Ray's time to draw it, and a report 0.01 ms.
"""

from __future__ import annotations

import heapq
import json
import math
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest import mock
from zipfile import is_zipfile

import numpy as np
import numpy.typing as npt
from ray import tune

from tuner.core.rules import rule_of
from tuner.core.rules.rule import Action, Decisions
from tuner.errors import RequestError
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.searchers import forest, trees
from tuner.tuning.searchers.named import build_searcher

Floats = npt.NDArray[np.float64]
DOMAINS = {
    "uniform": tune.uniform,
    "loguniform": tune.loguniform,
    "randint": lambda low, high: tune.randint(low, high + 1),  # Ray's bound is exclusive, the table's inclusive
    "lograndint": lambda low, high: tune.lograndint(low, high + 1),
}


@dataclass(frozen=True)
class Curves:
    """A table of recorded learning curves.

    Args:
        name: what the values are.
        mode: whether a smaller ("min") or a larger value is better.
        space: parameter -> `{"type": ..., "low": ..., "high": ...}` with inclusive bounds, or `{"type": "choice",
            "values": [...]}`.
        settings: a row per setting, a column per parameter; for a choice, the index of its value. Shape (n, d).
        values: the metric after epochs 1 to T; NaN or infinite where the training diverged. Shape (n, T).
        seconds: the time that each epoch takes by itself. Shape (n, T).
    """

    name: str
    mode: str
    space: dict[str, dict[str, Any]]
    settings: Floats
    values: Floats
    seconds: Floats

    @classmethod
    def load(cls, path: Path | str) -> Curves:
        """Reads a table from an `.npz` file.

        Raises:
            RequestError: the file is not such a table.
        """
        try:
            with np.load(path, allow_pickle=False) as table:
                space = json.loads(str(table["space"]))
                floats = (table[name].astype(np.float64) for name in ("settings", "metric", "seconds"))
                settings, values, seconds = floats
                curves = cls(str(table["name"]), str(table["mode"]), space, settings, values, seconds)
            curves._check()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
            # For a file that is no archive, numpy's message advises to unpickle it.
            what = f": {error}" if is_zipfile(path) else ", which are .npz files"
            raise RequestError(f"{path}: not a table of learning curves{what}") from None
        return curves

    def _check(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode {self.mode!r} must be min or max")
        if self.values.ndim != 2 or self.values.shape != self.seconds.shape or not self.values.size:
            raise ValueError(f"metric has shape {self.values.shape} and seconds {self.seconds.shape}; give both (n, T)")
        if self.settings.shape != (len(self.values), len(self.space)) or not self.space:
            raise ValueError(f"settings have shape {self.settings.shape}; give ({len(self.values)}, {len(self.space)})")
        if not (np.isfinite(self.seconds) & (self.seconds >= 0)).all() or not np.isfinite(self.settings).all():
            raise ValueError("seconds must be 0 or more, and settings finite")
        self.domains()

    @property
    def max_epochs(self) -> int:
        return int(self.values.shape[1])

    @property
    def full_training_s(self) -> float:
        """The mean time of a training with all epochs."""
        return float(self.seconds.sum(axis=1).mean())

    def domains(self) -> dict[str, Any]:
        """Returns the space as Ray Tune's domains."""
        return {
            name: tune.choice(each["values"])
            if each["type"] == "choice"
            else DOMAINS[each["type"]](each["low"], each["high"])
            for name, each in self.space.items()
        }

    def distances(self, setting: dict[str, Any]) -> Floats:
        """Returns how far a setting is from each row, squared; shape (n,).

        Each parameter is scaled to 0..1, a log range by its logarithm. A choice counts 0 (same value) or 1.
        """
        distance = np.zeros(len(self.settings))
        for column, (name, described) in enumerate(self.space.items()):
            if described["type"] == "choice":
                distance += self._scaled[:, column] != described["values"].index(setting[name])
            else:
                distance += (self._scaled[:, column] - scaled(setting[name], described)) ** 2
        return distance

    def column(self, name: str, rows: Any) -> list[Any]:
        """Returns a parameter's values in some rows."""
        described, cells = self.space[name], self.settings[rows, list(self.space).index(name)]
        if described["type"] == "choice":
            return [described["values"][int(cell)] for cell in cells]
        number = round if "int" in described["type"] else float
        return [number(cell) for cell in cells.clip(described["low"], described["high"])]  # the cells are rounded

    @cached_property
    def _scaled(self) -> Floats:
        columns = []
        for column, described in zip(self.settings.T, self.space.values(), strict=True):
            columns.append(column if described["type"] == "choice" else scaled(column, described))
        return np.stack(columns, axis=1)


def scaled(value: Any, described: dict[str, Any]) -> Any:
    """Scales the values of a range to 0..1, those of a log range by their logarithm."""
    low, high = described["low"], described["high"]
    if described["type"].startswith("log"):
        value, low, high = np.log(value), math.log(low), math.log(high)
    return (value - low) / (high - low)


class Rows:
    """The rows of a table that a search has not tried; once it has tried all, all count again.

    A proposal is answered with the nearest of them. With the nearest of all rows, a model that returns to a good region
    of a sparse table would get the same row again, and learn nothing.
    """

    def __init__(self, curves: Curves) -> None:
        self._curves, self._tried = curves, np.zeros(len(curves.settings), dtype=bool)
        self.distances: list[float] = []  # Euclidean, of each proposal from its row

    def take(self, setting: dict[str, Any]) -> int:
        """Returns the row that answers a proposal, the first of several."""
        distance = np.where(self._tried, np.inf, self._curves.distances(setting))
        row = int(distance.argmin())
        self._tried[row] = True
        if self._tried.all():
            self._tried[:] = False
        self.distances.append(math.sqrt(distance[row]))
        return row

    def drawn(self, leaves: Any, stream: Any, number: int) -> dict[str, list[Any]]:
        """Draws settings of untried rows, fewer if not so many are left; in place of `trees.drawn`."""
        rows = stream.permutation(np.flatnonzero(~self._tried))[:number]
        return {name: self._curves.column(name, rows) for name in self._curves.space}


@dataclass(frozen=True)
class Problem:
    """A table of curves, the number of workers and the seed of one search, and the rows that the search has not tried.

    A search that is `pooled` chooses among these rows. Another one proposes any setting of the space.
    """

    curves: Curves
    workers: int
    seed: int
    pooled: bool = False

    @cached_property
    def rows(self) -> Rows:
        return Rows(self.curves)

    @property
    def pool(self) -> Rows | None:
        return self.rows if self.pooled else None

    @property
    def mode(self) -> str:
        return self.curves.mode

    @property
    def max_epochs(self) -> int:
        return self.curves.max_epochs


class Draws:
    """Draws random settings of a space with Ray's own distributions, or of the pool."""

    def __init__(self, problem: Problem) -> None:
        self._domains, self._pool = problem.curves.domains(), problem.pool
        self._random = np.random.RandomState(problem.seed)

    def draw(self) -> dict[str, Any]:
        """Returns the next setting."""
        if self._pool:
            return {name: value for name, (value,) in self._pool.drawn(self._domains, self._random, 1).items()}
        return {name: domain.sample(random_state=self._random) for name, domain in self._domains.items()}


def seed_of(table: str, workers: int, repeat: int) -> int:
    """Returns the seed of a repeat; the same for all methods."""
    return int(np.random.SeedSequence((zlib.crc32(table.encode()), workers, repeat)).generate_state(1)[0] >> 1)


class Method(Protocol):
    """A search of any library, as the simulation drives it. Trials have the numbers 0, 1, ... in the order of start."""

    def next(self) -> tuple[int, dict[str, Any]] | None:
        """Returns the number and the setting of the trial that a free worker starts or continues; None = none now."""

    def report(self, trial: int, epoch: int, value: float) -> Action:
        """Returns whether a trial continues, stops or pauses after one more epoch.

        The value has the metric's own sign, and may be NaN or infinite.
        After the last epoch of the table the trial has ended, whatever this returns.
        """


class Observation(NamedTuple):
    """A trained epoch: when it ended, in seconds since the start, and the value that the trial reported."""

    seconds: float
    trial: int
    epoch: int
    row: int
    value: float


def simulate(method: Method, problem: Problem, until_s: float) -> Iterator[Observation]:
    """Yields the epochs that a search trains, in the order in which they end; a pause and a new trial cost no time.

    Args:
        problem: the one that the method was built for.
        until_s: simulated seconds after which the search is cut off.
    """
    curves = problem.curves
    rows: list[int] = []
    epochs: list[int] = []
    ends: list[tuple[float, int, int]] = []  # (time at which an epoch ends, order of its start, trial)
    now, free, begun = 0.0, problem.workers, 0

    def train(trial: int) -> None:
        nonlocal begun
        heapq.heappush(ends, (now + curves.seconds[rows[trial], epochs[trial]], begun, trial))
        begun += 1

    while True:
        while free and (following := method.next()) is not None:
            trial, setting = following
            if trial == len(rows):
                rows.append(problem.rows.take(setting))
                epochs.append(0)
            train(trial)
            free -= 1
        if not ends or ends[0][0] > until_s:
            return
        now, _, trial = heapq.heappop(ends)
        epochs[trial] += 1
        value = float(curves.values[rows[trial], epochs[trial] - 1])
        yield Observation(now, trial, epochs[trial], rows[trial], value)
        action = method.report(trial, epochs[trial], value)
        if action == "continue" and epochs[trial] < curves.max_epochs:
            train(trial)
        else:
            free += 1


class Search:
    """The searcher and the stopping rule of an experiment, driven as Ray's controller drives them in a search.

    Raises:
        RequestError: the searcher does not work with the space, the scheduler is pbt, which changes settings, or there
            is a pool and the searcher is not forest.
    """

    def __init__(self, experiment: Experiment, params: dict[str, Any], pool: Rows | None = None) -> None:
        if pool and experiment.searcher != "forest":
            raise RequestError(f"--pool: works with searcher forest, not {experiment.searcher}; leave one of them out")
        self._pool = pool
        space = Space(params=params, train=_untrained, metric=experiment.wanted.metric, mode=experiment.wanted.mode)
        self._asked = build_searcher(experiment, space)
        self._rule = rule_of(experiment, getattr(experiment, "brackets", 1))
        self._experiment = experiment
        self._settings: list[dict[str, Any]] = []
        self._promoted: deque[int] = deque()
        self._last: list[dict[str, Any]] = []  # each trial's last report, as a searcher gets it
        self._running = 0

    def next(self) -> tuple[int, dict[str, Any]] | None:
        exhausted = self._asked.exhausted or self._asked.num_proposed >= self._asked.num_settings
        if not self._promoted and exhausted and not self._running:
            self._apply(self._rule.idle())
        if self._promoted:
            trial = self._promoted.popleft()
        elif exhausted or (setting := self._suggested(str(len(self._settings)))) is None:
            return None
        else:
            trial = len(self._settings)
            self._settings.append(setting)
            self._last.append({})
            self._rule.added(trial)
        self._running += 1
        return trial, self._settings[trial]

    def _suggested(self, trial_id: str) -> dict[str, Any] | None:
        if not self._pool:
            return self._asked.suggest(trial_id)
        with mock.patch.object(forest, "drawn", self._pool.drawn), mock.patch.object(trees, "drawn", self._pool.drawn):
            return self._asked.suggest(trial_id)

    def report(self, trial: int, epoch: int, value: float) -> Action:
        result = self._last[trial] = {"training_iteration": epoch, self._experiment.wanted.metric: value}
        action = self._decided(trial, epoch, value)
        if action == "stop":
            self._end(trial)
        else:
            self._asked.report(str(trial), result)
        self._running -= action != "continue"
        return action

    def _decided(self, trial: int, epoch: int, value: float) -> Action:
        if not math.isfinite(value) or epoch >= self._experiment.max_epochs:
            return "stop"
        judged, others = self._rule.judge(trial, epoch, value)
        self._apply(others)
        return judged.action

    def _end(self, trial: int) -> None:
        """Tells the rule and then the searcher of a trial's end, as Ray's controller does."""
        last = self._last[trial]
        value = last.get(self._experiment.wanted.metric, math.nan)
        finite = value if math.isfinite(value) else None
        self._apply(self._rule.ended(trial, last.get("training_iteration", 0), finite))
        self._asked.complete(str(trial), last)

    def _apply(self, decided: Decisions) -> None:
        for trial, judged in decided:
            if judged.action == "stop":
                self._end(trial)
            else:
                self._promoted.append(trial)


def _untrained(config: dict[str, Any]) -> None:
    """The training function of a simulated search; never called."""
