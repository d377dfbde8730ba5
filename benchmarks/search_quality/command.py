"""The command: checks its inputs, simulates what the results lack, and prints the summary."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.search_quality import methods, plot, printed
from benchmarks.search_quality.problem import Problem
from benchmarks.search_quality.regret import FEWEST, Floats, Regret, budgets
from benchmarks.search_quality.results import Key, Results
from benchmarks.search_quality.runs import run_all
from benchmarks.search_quality.simulate import Curves
from benchmarks.search_quality.summary import compared
from benchmarks.search_quality.tables import Table, tables_of
from tuner.errors import RequestError


def execute(given: argparse.Namespace) -> int:
    """Runs the command; returns the number of searches that failed.

    Raises:
        RequestError: an input is wrong; nothing was simulated.
    """
    curves = {table: table.load() for table in tables_of(given.tables, given.settings)}
    at = {workers: _budgets(curves, workers) for workers in dict.fromkeys(given.workers)}
    names = list(dict.fromkeys(given.methods))
    if not given.summary_only:
        _check(curves, names)
    results = Results(given.out)
    failed = 0 if given.summary_only else _simulate(given, results, at, names)
    all_compared = [
        compared((row for row in results.rows.values() if _wanted(row.key, at, given)), names, workers)
        for workers in at
    ]
    full_s = {table.name: each.full_training_s for table, each in curves.items()}
    by_stem = {workers: {table.name: budget for table, budget in each.items()} for workers, each in at.items()}
    for line in (printed.brief_lines if given.brief else printed.lines)(all_compared, by_stem, full_s):
        print(line)
    if given.plot:
        plot.draw(all_compared, by_stem, full_s, given.plot)
    return failed


def _budgets(curves: dict[Table, Curves], workers: int) -> dict[Table, Floats]:
    """Returns the budgets of each table that is large enough for this many workers, and says which are not."""
    found = {table: budgets(each, workers) for table, each in curves.items()}
    small = [table.name for table, budget in found.items() if budget is None]
    if small:
        print(
            f"{workers} workers need tables of {FEWEST * workers:g} settings; left out: {', '.join(small)}",
            file=sys.stderr,
        )
    return {table: budget for table, budget in found.items() if budget is not None}


def _check(curves: dict[Table, Curves], names: list[str]) -> None:
    """Checks each table, and asks each method for a first setting of it."""
    for table, each in curves.items():
        try:
            Regret(each)
        except RequestError as error:
            raise RequestError(f"{table.path}: {error}") from None
        for name in names:
            try:
                following = methods.build(name, Problem(each, workers=1, seed=0)).next()
            except (RequestError, ImportError, OSError, ValueError, TypeError) as error:
                raise RequestError(f"{name} on {table.name}: {error}") from None
            if following is None or following[0] != 0:
                raise RequestError(
                    f"{name} on {table.name} proposes no first setting; leave the method or the table out"
                )
            each.row(following[1])


def _wanted(key: Key, at: dict[int, dict[Table, Floats]], given: argparse.Namespace) -> bool:
    return key.repeat < given.repeats and any(table.name == key.table for table in at.get(key.workers, ()))


def _simulate(given: argparse.Namespace, results: Results, at: dict[int, dict[Table, Floats]], names: list[str]) -> int:
    """Simulates the searches that the results lack; the repeats come last, so that a cut run has some of everything."""
    searches = [
        (table, name, workers, repeat)
        for repeat in range(given.repeats)
        for workers in at
        for table in at[workers]
        for name in names
        if Key(table.name, name, workers, repeat) not in results.rows
    ]
    failures: Counter[tuple[str, str]] = Counter()
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns) as progress:
        bar = progress.add_task("", total=len(searches))
        for key, row in run_all(searches, given.processes):
            if isinstance(row, Exception):
                failures[key.method, f"{type(row).__name__}: {row}"] += 1
            else:
                results.add(row)
            progress.update(bar, advance=1, description=f"{key.method} on {key.table}")
    for (name, error), number in failures.items():
        print(f"{name}: {number} searches failed: {error}", file=sys.stderr)
    return failures.total()
