"""Runs the searches that the results still lack, in as many processes as asked for, and keeps their outcomes.

A search is measured at ten budgets, and at others between them, by the regret that it has there.
"""

from __future__ import annotations

import json
import math
import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.search_quality import methods
from benchmarks.search_quality.simulate import Curves, Floats, Observation, Problem, seed_of, simulate
from tuner.errors import RequestError

NUM_BUDGETS = 10
BETWEEN = 4  # regrets are recorded this many times as densely, so that a share of a budget is known to a fifth
NUM_REGRETS = BETWEEN * (NUM_BUDGETS - 1) + 1
FIRST = 0.5  # the first budget, in full trainings a worker
SHARE = 0.1  # the last budget pays for this share of the table
LEAST = 4.0  # a table whose last budget is below this many times the first is too small
FEWEST = LEAST * FIRST / SHARE  # settings a worker that a table therefore needs


def budgets(curves: Curves, workers: int) -> Floats | None:
    """Returns the budgets in seconds a worker, geometric; None if the table has too few settings (`FEWEST`).

    Every `BETWEEN`-th one from the first on is one of the `NUM_BUDGETS` budgets; the others lie between them.
    """
    first = FIRST * curves.full_training_s
    last = SHARE * float(curves.seconds.sum()) / workers
    if first <= 0 or last < LEAST * first:
        return None
    return np.geomspace(first, last, NUM_REGRETS)


class Regret:
    """Normalises a table's values: 0 is the best value of the table, 1 the median of its settings' best values.

    Raises:
        RequestError: the table has no such scale, because too many settings have diverged or are equally good.
    """

    def __init__(self, curves: Curves) -> None:
        self._sign = 1.0 if curves.mode == "min" else -1.0
        losses = self._sign * curves.values
        best_of_setting = np.where(np.isfinite(losses), losses, math.inf).min(axis=1)
        self._best = float(best_of_setting.min())
        self._scale = float(np.median(best_of_setting)) - self._best
        if not (math.isfinite(self._scale) and self._scale > 0):
            raise RequestError("a table's median setting must be finite and worse than its best one; leave it out")

    def at(self, budgets: Floats, observations: Iterable[Observation]) -> Floats:
        """Returns the regret of the best value reported up to each budget; 1 before the first finite report."""
        times, bests, best = [-math.inf], [self._best + self._scale], math.inf
        for observed in observations:
            loss = self._sign * observed.value
            if math.isfinite(loss) and loss < best:
                best = loss
                times.append(observed.seconds)
                bests.append(best)
        at = np.searchsorted(times, budgets, side="right") - 1
        return (np.array(bests)[at] - self._best) / self._scale


class Key(NamedTuple):
    """Which search a line of the results is about."""

    table: str
    method: str
    workers: int
    repeat: int


class Outcome(NamedTuple):
    """A search's regrets at the recorded budgets, and the mean distance of its settings from the rows that answered."""

    regrets: Floats
    distance: float


class Results:
    """The results file: a JSON line for each finished search, its key and its outcome.

    Reads what the file has, drops its torn last line, and appends to it.

    Raises:
        RequestError: a line before the last one is not such a line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.outcomes: dict[Key, Outcome] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            whole, newline, _ = file.read().rpartition(b"\n")
            for number, line in enumerate(whole.splitlines(), 1):
                try:
                    key, regrets, distance = json.loads(line)
                    values = np.array(regrets, dtype=np.float64)
                    self.outcomes[Key(*key)] = Outcome(values, float(distance))
                    if values.shape != (NUM_REGRETS,) or not np.isfinite(values).all():
                        raise ValueError(f"must have {NUM_REGRETS} finite regrets")
                except (ValueError, TypeError) as error:
                    what = f"{path}: line {number} is no result of this program ({error})"
                    raise RequestError(f"{what}; name another file by --out") from None
            file.truncate(len(whole) + len(newline))

    def add(self, key: Key, outcome: Outcome) -> None:
        """Appends a finished search."""
        self.outcomes[key] = outcome
        with self._path.open("a") as file:
            file.write(json.dumps([key, outcome.regrets.tolist(), outcome.distance]) + "\n")


def check(path: Path, curves: Curves, names: list[str]) -> None:
    """Checks a table, and asks each method for a first setting of it.

    Raises:
        RequestError: the table has no scale of regret, or a method does not work with it.
    """
    try:
        Regret(curves)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None
    for name in names:
        try:
            following = methods.build(name, problem_of(curves, name, 1, 0)).next()
        except (RequestError, ImportError, AssertionError, OSError, ValueError, TypeError) as error:
            raise RequestError(f"{name} on {path}: {error}") from None
        if following is None:
            raise RequestError(f"{name} on {path} proposes no setting; leave the method or the table out")
        curves.distances(following[1])


@lru_cache(maxsize=2)
def loaded(path: Path) -> tuple[Curves, Regret]:
    """Returns a table and its scale; a process keeps those that it used last."""
    curves = Curves.load(path)
    return curves, Regret(curves)


def problem_of(curves: Curves, method: str, workers: int, seed: int) -> Problem:
    return Problem(curves, workers, seed, pooled=method.endswith(methods.POOL))


def run(path: Path, method: str, workers: int, repeat: int) -> Outcome:
    """Simulates one search up to the table's last budget."""
    curves, regret = loaded(path)
    at = budgets(curves, workers)
    assert at is not None  # the caller leaves out tables that are too small
    problem = problem_of(curves, method, workers, seed_of(path.stem, workers, repeat))
    regrets = regret.at(at, simulate(methods.build(method, problem), problem, float(at[-1])))
    distances = problem.rows.distances
    return Outcome(regrets, sum(distances) / max(1, len(distances)))


def run_all(searches: list[tuple[Path, str, int, int]], processes: int) -> Iterator[tuple[Key, Outcome | Exception]]:
    """Runs all searches; yields each one's outcome, or its error, as soon as it has ended."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run, *search): search for search in searches}
        try:
            for done in as_completed(running):
                path, *others = running[done]
                error = done.exception()  # another library's error must not end the searches of the others
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield Key(path.stem, *others), error or done.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
