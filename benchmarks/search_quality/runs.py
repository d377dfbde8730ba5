"""Runs the searches that the results still lack, in as many processes as asked for."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path

from benchmarks.search_quality import methods
from benchmarks.search_quality.problem import Problem, seed_of
from benchmarks.search_quality.regret import Regret, budgets
from benchmarks.search_quality.results import Key, Row
from tuner.drive.simulate import Curves, simulate


@lru_cache(maxsize=2)
def loaded(path: Path) -> tuple[Curves, Regret]:
    """Returns a table and its scale; a process keeps those that it used last."""
    curves = Curves.load(path)
    return curves, Regret(curves)


def run(path: Path, method: str, workers: int, repeat: int) -> Row:
    """Simulates one search up to the table's last budget."""
    begun = time.perf_counter()
    curves, regret = loaded(path)
    at = budgets(curves, workers)
    assert at is not None  # the caller leaves out tables that are too small
    built = methods.build(method, Problem(curves, workers, seed_of(path, workers, repeat)))
    regrets = regret.at(at, simulate(built, curves, workers, float(at[-1])))
    return Row(Key(path.stem, method, workers, repeat), time.perf_counter() - begun, regrets)


def run_all(searches: list[tuple[Path, str, int, int]], processes: int) -> Iterator[tuple[Key, Row | Exception]]:
    """Runs all searches; yields each one's row, or its error, as soon as it has ended."""
    if processes == 1:
        for search in searches:
            yield _key(search), _caught(search)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run, *search): search for search in searches}
        try:
            for done in as_completed(running):
                error = done.exception()
                yield _key(running[done]), done.result() if error is None else _plain(error)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _key(search: tuple[Path, str, int, int]) -> Key:
    path, *others = search
    return Key(path.stem, *others)


def _caught(search: tuple[Path, str, int, int]) -> Row | Exception:
    try:
        return run(*search)
    except Exception as error:  # another library's error must not end the searches of the others
        return error


def _plain(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    raise error
