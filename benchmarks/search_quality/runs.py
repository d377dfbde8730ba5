"""Runs the searches that the results still lack, in as many processes as asked for."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache

from benchmarks.search_quality import methods
from benchmarks.search_quality.problem import Problem, seed_of
from benchmarks.search_quality.regret import Regret, budgets
from benchmarks.search_quality.results import Key, Row
from benchmarks.search_quality.simulate import Curves, simulate
from benchmarks.search_quality.tables import Table


@lru_cache(maxsize=2)
def loaded(table: Table) -> tuple[Curves, Regret]:
    """Returns a table and its scale; a process keeps those that it used last."""
    curves = table.load()
    return curves, Regret(curves)


def run(table: Table, method: str, workers: int, repeat: int) -> Row:
    """Simulates one search up to the table's last budget."""
    begun = time.perf_counter()
    curves, regret = loaded(table)
    at = budgets(curves, workers)
    assert at is not None  # the caller leaves out tables that are too small
    built = methods.build(method, Problem(curves, workers, seed_of(table.name, workers, repeat)))
    regrets = regret.at(at, simulate(built, curves, workers, float(at[-1])))
    return Row(Key(table.name, method, workers, repeat), time.perf_counter() - begun, regrets)


def run_all(searches: list[tuple[Table, str, int, int]], processes: int) -> Iterator[tuple[Key, Row | Exception]]:
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


def _key(search: tuple[Table, str, int, int]) -> Key:
    table, *others = search
    return Key(table.name, *others)


def _caught(search: tuple[Table, str, int, int]) -> Row | Exception:
    try:
        return run(*search)
    except Exception as error:  # another library's error must not end the searches of the others
        return error


def _plain(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    raise error
