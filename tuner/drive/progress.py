"""Prints Ray's table of a running search with a progress line, redrawn in place in a terminal."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ray.tune import CLIReporter
from ray.tune.experiment import Trial

from tuner.drive.cell import Cell, in_notebook
from tuner.errors import printable
from tuner.spec.experiment import Experiment

logger = logging.getLogger(__name__)
MOST_ROWS = 100  # the most rows of the last table; trials.csv has all trials
F = TypeVar("F", bound=Callable[..., Any])


def never_fatal(method: F) -> F:
    """Makes a method log its exceptions: an exception in a reporter would end Ray's whole experiment."""

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception:
            logger.exception("%s failed; the search continues", method.__qualname__)

    return guarded  # type: ignore[return-value]


class ProgressTable(CLIReporter):
    """Prints Ray's table and a progress line: redrawn in place in a terminal, else printed again every 30 s."""

    def __init__(
        self,
        experiment: Experiment,
        num_settings: int,
        left: Callable[[], float | None],
        waiting: Callable[[int, int], str],
    ) -> None:
        columns = list(dict.fromkeys([experiment.metric, "loss", "accuracy", "training_iteration"]))
        self._in_place = sys.stdout.isatty()
        self._cell = Cell() if in_notebook() else None
        self._shortest_pause_s = self._pause_s = 1.0 if self._in_place or self._cell else 30.0
        self._started, self._reported = time.time(), -math.inf
        super().__init__(
            metric_columns=columns,
            metric=experiment.metric,
            mode=experiment.mode,
            max_progress_rows=20,
            print_intermediate_tables=True,
        )
        self._experiment, self._num_settings, self._left, self._waiting = experiment, num_settings, left, waiting
        self._lines = 0

    def set_search_properties(self, metric: str | None, mode: str | None) -> bool:
        return True

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        """Whether the table is due: at the end, and each time after a pause."""
        due = time.monotonic() - self._reported > self._pause_s
        if due:
            self._reported = time.monotonic()
        return due or done

    @never_fatal
    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        begun = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()) as text:
            super().report(trials, done and len(trials) <= MOST_ROWS)
        lines = text.getvalue().splitlines()
        table = [line for line in lines if line.startswith(("|", "+", "Number of errored", "..."))]
        counts = [sum(trial.status == status for trial in trials) for status in (Trial.PENDING, Trial.RUNNING)]
        notice = self._waiting(*counts)
        line = progress_line(trials, self._experiment, self._num_settings, self._started, self._left())
        table = list(map(printable, table))
        block = [*table, *map(printable, [notice, line] if notice else [line])]
        if self._cell:
            self._cell.show("\n".join(block))
        elif self._in_place:
            width = shutil.get_terminal_size().columns
            if max(map(len, block)) > width:
                block = [*without_column(table, "loc"), *block[len(table) :]]
            block = [line[:width] for line in block]
            up = f"\x1b[{self._lines}A\x1b[J" if self._lines else ""
            self._lines = len(block)
            print(up + "\n".join(block), flush=True)
        else:
            print("\n".join(block), flush=True)
        # The table reads every trial, so it may take at most 1/20 of the driver's time.
        self._pause_s = max(self._shortest_pause_s, 20 * (time.monotonic() - begun))


def without_column(table: list[str], name: str) -> list[str]:
    """Removes the column with this name, if there is one, from a table in tabulate's psql format."""
    header = next((line for line in table if f" {name} " in line), "")
    if not header:
        return table
    left = header.index(f" {name} ")
    end = header.index("|", left)
    return [line[:left] + line[end + 1 :] if line.startswith(("|", "+")) else line for line in table]


def progress_line(
    trials: list[Trial], experiment: Experiment, num_settings: int, started: float, left_s: float | None
) -> str:
    """`4/10 done, 3 pruned, 2 running | best loss 1.23 (00003) | 1 m 20 s, about 2 m left`"""
    done = [trial for trial in trials if trial.is_finished()]
    early = [t for t in done if (t.last_result or {}).get("training_iteration", 0) < experiment.max_epochs]
    pruned = sum(trial.status == Trial.TERMINATED for trial in early)
    failed = sum(trial.status == Trial.ERROR for trial in done)
    running = sum(trial.status == Trial.RUNNING for trial in trials)
    paused = sum(trial.status == Trial.PAUSED for trial in trials)
    counts = [f"{len(done)}/{num_settings} done", f"{pruned} pruned", f"{running} running"]
    counts += [f"{paused} paused"] if paused else []
    counts += [f"{failed} failed"] if failed else []
    took = time.time() - started
    remaining = took / len(done) * (num_settings - len(done)) if done else None
    if left_s is not None:
        remaining = min(left_s, remaining) if remaining is not None else left_s
    parts = [", ".join(counts), best_so_far(trials, experiment), duration(took)]
    parts[-1] += f", about {duration(remaining)} left" if remaining else ""
    return " | ".join(part for part in parts if part)


def best_so_far(trials: list[Trial], experiment: Experiment) -> str:
    """`best loss 1.23 (trial 00003)`, the best of all reports; empty before the first report."""
    side = experiment.mode
    values = [
        (analysis[experiment.metric][side], trial.trial_id)
        for trial in trials
        if experiment.metric in (analysis := trial.metric_analysis)
    ]
    if not values:
        return ""
    value, trial_id = min(values) if side == "min" else max(values)
    return f"best {experiment.metric} {value:.4f} (trial {trial_id})"


def duration(seconds: float) -> str:
    """`45 s`, `3 m 5 s`, `2 h 10 m`"""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} m {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} m"
