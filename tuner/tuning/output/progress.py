"""Prints the table of a running search and a progress line; redraws them in a terminal or notebook."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import re
import shutil
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from ray.tune import CLIReporter
from ray.tune.experiment import Trial

from tuner.core.events import ENDED, ENDINGS, TrialFailed
from tuner.core.timing import seconds_left
from tuner.engine.controller.failures import likeness
from tuner.engine.controller.stopper import SearchStopper
from tuner.errors import printable, say, write
from tuner.errors.output import BOLD, CYAN, FAINT, GREEN, RED, fitted, has_colours, in_notebook, is_steerable, painted
from tuner.record.columns import table_columns
from tuner.record.texts import duration, flat, formatted
from tuner.record.trial_row import TrialRow
from tuner.spec import parameters
from tuner.spec.constraints import BREAKS
from tuner.spec.experiment import Experiment, Table
from tuner.spec.option_values import MOST_SAMPLES
from tuner.tuning.budget import Budget
from tuner.tuning.tracker import Tracker

logger = logging.getLogger(__name__)
SHOWN_ROWS, OTHER_LINES = 20, 10  # maximum rows while the search runs; lines of a terminal that the table leaves free
MOST_ROWS = 100  # the last table has all trials if they are at most this many; trials.csv always has all
MOST_CELL = 20  # maximum characters of a cell; a longer text is cut
COLUMNS = table_columns(TrialRow, "terminal")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*(e[-+]\d+)?|nan|inf)")
STATUS = re.compile(r"(?<=\| )(completed|running|failed|pruned|diverged)(?= +\|)")
COLOURS = {"completed": GREEN, "running": CYAN, "failed": RED, "pruned": FAINT, "diverged": RED}
BEST = re.compile(r"best \S+ \S+ \(trial (\S+)\)")  # a part of the progress line


@contextlib.contextmanager
def never_fatal() -> Iterator[None]:
    """Logs an exception instead of raising it: in Ray, an exception in a reporter would end the whole search."""
    try:
        yield
    except Exception:
        logger.exception("the progress could not be shown; the search continues")


class ProgressTable(CLIReporter):
    """A CLIReporter that redraws a table and a progress line in a notebook, or in a terminal, fitted to its size.

    Into a pipe or file it prints a line per trial that ends, a progress line once a minute at most, and the last table.
    `waiting` gets the numbers of pending and running trials and says what pending ones wait for.
    """

    def __init__(
        self,
        experiment: Experiment,
        num_trials: Callable[[], int],
        tracker: Tracker,
        stopper: SearchStopper,
        waiting: Callable[[int, int], str],
        params: parameters.Params,
        table: Table = "fit",
        budget: Budget | None = None,
    ) -> None:
        super().__init__()
        self._experiment, self._num_trials, self._table, self._budget = experiment, num_trials, table, budget
        self._tracker, self._stopper, self._waiting = tracker, stopper, waiting
        self._in_place = is_steerable(sys.stdout)
        self._cell = uuid.uuid4().hex if in_notebook() else ""  # the id of the notebook's output with the table
        self._is_shown, self._lines = False, 0
        self._shortest_pause_s = self._pause_s = 1.0 if self._is_live else 60.0
        self._reported = -math.inf if self._is_live else time.monotonic()
        height = shutil.get_terminal_size().lines - OTHER_LINES if self._in_place else SHOWN_ROWS
        self._most_rows = max(1, min(SHOWN_ROWS, height))  # what scrolls off the screen cannot be redrawn
        self._params = list(parameters.describe(params))
        self._others = [name for name in table_metrics(experiment) if name != experiment.wanted.metric]
        heads = [each.head.replace("{metric}", experiment.wanted.metric) for each in COLUMNS]
        shown = [*heads, *self._params, *(f"last_{name}" for name in self._others)]
        self._header = list(map(cell, shown))
        self._said: dict[str, str] = {}  # likeness of a printed error -> the first trial with it
        tracker.on_retry = lambda failure: self._print_above(retry_line(failure, tracker))
        tracker.on_notice = lambda text: self._print_above(f"NOTE: {text}")
        if budget and not budget.too_long():  # else the heading has said it
            budget.on_notice = tracker.on_notice
        if not self._is_live:
            tracker.on_end = self._say_end

    @property
    def _is_live(self) -> bool:
        return self._in_place or bool(self._cell)

    def should_report(self, trials: list[Trial], done: bool = False) -> bool:
        due = time.monotonic() - self._reported > self._pause_s
        if due:
            self._reported = time.monotonic()
        return due or done

    @never_fatal()
    def report(self, trials: list[Trial], done: bool, *sys_info: str) -> None:
        begun, width = time.monotonic(), shutil.get_terminal_size().columns
        with_table = self._table != "off" and (self._is_live or done)
        columns, more = self._columns(trials, done) if with_table else ([], [])
        table = narrowed(columns, width) if sys.stdout.isatty() and self._table == "fit" else drawn(columns)
        statuses = Counter(self._statuses(trials))
        common = self._tracker, self._experiment, self._num_trials(), self._stopper, done
        used = [(self._budget.used(name), limit) for name, limit in self._budget.limits.items()] if self._budget else []
        times = (used, self._budget.before_s) if self._budget else ()
        line = progress_line(statuses, *common, *times)
        num_pending, num_running = (sum(t.status == each for t in trials) for each in (Trial.PENDING, Trial.RUNNING))
        budget = self._budget.line() if self._budget and not done else ""
        texts = list(filter(None, [*more, self._waiting(num_pending, num_running), budget, line]))
        block = [*table, *(part for text in texts for part in fitted(printable(text), width))]
        if self._cell:
            display: Any = importlib.import_module("IPython.display").display
            display({"text/plain": "\n".join(block)}, raw=True, display_id=self._cell, update=self._is_shown)
            self._is_shown = True
        elif self._in_place:
            up = self._up()
            self._lines = sum(max(1, math.ceil(len(line) / width)) for line in block)
            print(up + "\n".join(coloured(block) if has_colours(sys.stdout) else block), flush=True)
        else:
            write("".join(f"{row}\n" for row in table), sys.stdout)
            say(*texts)
        # Drawing takes longer with each trial, so it may take at most 1/20 of the driver's time.
        self._pause_s = max(self._shortest_pause_s, 20 * (time.monotonic() - begun))

    def _columns(self, trials: list[Trial], done: bool) -> tuple[list[list[str]], list[str]]:
        """Returns the table's columns, and a note on omitted trials. It omits the oldest first, running trials last."""
        most = MOST_ROWS if done and len(trials) <= MOST_ROWS else self._most_rows
        first = sorted(trials, key=lambda trial: (trial.status == Trial.RUNNING, trial.trial_id), reverse=True)[:most]
        left_out = len(trials) - len(first)
        more = [f"not shown: {left_out} more trials; trials.csv has all after the search"] if left_out else []
        rows = [self._cells(trial) for trial in sorted(first, key=lambda trial: trial.trial_id)]
        return columns_of(self._header, rows), more

    def _cells(self, trial: Trial) -> list[str]:
        params, known = flat(trial.config), self._tracker.state.trials.get(trial.trial_id)
        best, last = (known.best, known.value) if known else (None, None)
        report = {self._experiment.compared.metric: last, **(trial.last_result or {})}  # its last report may lack this
        row = {"trial": trial.trial_id, "status": next(self._statuses([trial])), "best": best}
        row |= {"last": report.get(self._experiment.wanted.metric), "epochs": known and known.length or None}
        values = [row[each.name] for each in COLUMNS]
        return list(map(cell, [*values, *map(params.get, self._params), *map(report.get, self._others)]))

    def _statuses(self, trials: Sequence[Trial]) -> Iterator[str]:
        """Yields the status of each trial in tuner's words, such as pruned instead of Ray's TERMINATED."""
        for trial in trials:
            known = self._tracker.state.trials.get(trial.trial_id)
            if trial.is_finished():
                ended = known and known.status in (*ENDED, "suggested", "paused")
                yield known.shown_status if known and ended else "interrupted"
            else:
                yield trial.status.lower()

    @never_fatal()
    def _say_end(self, trial_id: str) -> None:
        trial = self._tracker.state.trials[trial_id]
        first = self._said.setdefault(likeness(trial.reason), trial_id) if trial.status == "failed" else trial_id
        say(end_line(trial_id, self._tracker, self._experiment.compared.metric, first))

    @never_fatal()
    def _print_above(self, line: str) -> None:
        print(self._up(), end="")
        self._lines = 0
        say(line)

    def _up(self) -> str:
        """Returns the control sequence that clears the drawn table, also a `^C` that the terminal echoed below it."""
        up = f"\x1b[{self._lines}A" if self._lines else ""
        return f"\r{up}\x1b[J" if self._in_place else ""


def table_metrics(experiment: Experiment) -> tuple[str, ...]:
    """Returns the metrics that the table shows of a trial's last report."""
    goals = [*experiment.aim.goals, experiment.wanted, experiment.compared]
    limited = (limit.metric for limit in experiment.aim.constraints)
    return tuple(dict.fromkeys([*(goal.metric for goal in goals), *limited, "loss", "accuracy"]))


def cell(value: Any) -> str:
    """Returns a value as a table shows it: a number with five significant digits, or a short text; None is empty."""
    text = "" if value is None else printable(formatted(value))
    return text if len(text) <= MOST_CELL else text[: MOST_CELL - 3] + "..."


def columns_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns each column that has a value, as its header and cells padded to one width; numbers align right."""
    columns = []
    for name, *cells in zip(header, *rows, strict=True):
        if any(cells):
            width, number = max(map(len, (name, *cells))), all(map(NUMBER.fullmatch, filter(None, cells)))
            columns.append([each.rjust(width) if number else each.ljust(width) for each in (name, *cells)])
    return columns


def drawn(columns: Sequence[Sequence[str]]) -> list[str]:
    if not columns:
        return []
    header, *rows = ["| " + " | ".join(cells) + " |" for cells in zip(*columns, strict=True)]
    border = "+".join("-" * (len(column[0]) + 2) for column in columns)
    return [f"+{border}+", header, f"|{border}|", *rows, f"+{border}+"]


def narrowed(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Draws the first columns, as many as fit `width` characters, and a line that names the others."""
    num_shown = sum(end < width for end in accumulate(len(column[0]) + 3 for column in columns))
    left_out = ", ".join(column[0].strip() for column in columns[num_shown:])
    note = f"not shown: {left_out}; --table wide shows all columns" if left_out else ""
    return [*drawn(columns[:num_shown]), *(fitted(note, width) if note else [])]


def coloured(lines: Sequence[str]) -> list[str]:
    """Colours the statuses in a table, and the best trial in it and in the progress line below it."""
    best = next((match[1] for line in reversed(lines) if (match := BEST.search(line))), "")
    painted_lines = []
    for line in lines:
        if line.startswith("| "):
            line = STATUS.sub(lambda match: painted(match[0], COLOURS[match[0]]), line, count=1)
            start = f"| {best} |"
            line = f"| {painted(best, f'{BOLD};{GREEN}')} |{line[len(start) :]}" if line.startswith(start) else line
        else:
            line = BEST.sub(lambda match: painted(match[0], f"{BOLD};{GREEN}"), line)
        painted_lines.append(line)
    return painted_lines


def progress_line(
    statuses: Counter[str],
    tracker: Tracker,
    experiment: Experiment,
    num_settings: int,
    stopper: SearchStopper,
    is_over: bool = False,
    budgets: Sequence[tuple[float, float]] = (),
    before_s: float = 0.0,
) -> str:
    """Returns the line `4/10 done: 4 pruned; 2 running | best loss 1.23 (trial 00003) | 1 m 20 s, about 2 m 0 s left`.

    The best value and the counts cover all sessions. After a resume, `3 m 0 s (all sessions: 1 h 2 m)` has the time of
    this session and that of all. A refused search shows no best value.
    `budgets` has what is used of each budget, and the budget; earlier sessions took `before_s` seconds.
    """
    num_done = sum(statuses[status] for status in ENDINGS)
    groups = ENDINGS, ("running", "paused", "interrupted", "suggested")
    done, others = (", ".join(f"{statuses[name]} {name}" for name in names if statuses[name]) for names in groups)
    of_all = "" if num_settings >= MOST_SAMPLES else f"/{num_settings}"
    counts = f"{num_done}{of_all} done" + (f": {done}" if done else "") + (f"; {others}" if others else "")
    own = time.monotonic() - tracker.began
    lengths = ((trial.shown_status, trial.length) for trial in tracker.state.trials.values())
    num_open, num_reports = num_settings - num_done if of_all else math.inf, tracker.state.num_epochs
    remaining = seconds_left(lengths, num_open, num_reports, before_s + own, budgets, tracker.state.options.scheduler)
    left = f", about {duration(max(1, remaining))} left" if remaining and not is_over else ""
    best = None if stopper.error else tracker.state.best()
    found = f"best {experiment.wanted.metric} {formatted(best[0])} (trial {best[1]})" if best else ""
    took = duration(own) + (f" (all sessions: {duration(before_s + own)})" if before_s else "")
    return " | ".join(part for part in (counts, found, took + left) if part)


def end_line(trial_id: str, tracker: Tracker, metric: str, first: str = "") -> str:
    """Returns `trial 00003 pruned after epoch 2, loss 0.5`; `first` is the first trial that failed in the same way."""
    trial = tracker.state.trials[trial_id]
    if trial.status == "failed":
        why = trial.reason if first in ("", trial_id) else f"as trial {first}"
        return f"trial {trial_id} failed in epoch {trial.length + (not trial.stopped)}: {why}"
    if trial.shown_status == "diverged":
        return f"trial {trial_id} diverged after epoch {trial.length}: {trial.reason.partition(' at epoch ')[0]}"
    value = "" if trial.value is None else f", {metric} {formatted(trial.value)}"
    if trial.reason.startswith(BREAKS):
        value = f": {trial.reason.partition(': ')[2]}"
    return f"trial {trial_id} {trial.status} after epoch {trial.length}{value}"


def retry_line(failure: TrialFailed, tracker: Tracker) -> str:
    epoch, after = tracker.state.trials[failure.trial].length + 1, failure.from_epoch
    again = f"continues it after epoch {after}" if after else "starts it again, as it saved no checkpoint"
    return f"trial {failure.trial} failed in epoch {epoch}: {failure.error}; another worker {again}"
