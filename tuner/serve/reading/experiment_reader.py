"""Reads one experiment's folder, and keeps the result for later requests."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.errors import RequestError, blamed
from tuner.record.notes import FILE as NOTES
from tuner.record.ray_folder import ray_files_in
from tuner.record.reading import NotYet
from tuner.record.results import ExperimentRecord, Following
from tuner.record.storage.lock import abandoned
from tuner.serve.answers import figure_text
from tuner.serve.reading.budget import Crowded, MemoryBudget
from tuner.serve.reading.summary import Summary, summarised, with_notes
from tuner.views.figures.catalogue import COMPARING, FIGURES, FigureName
from tuner.views.figures.values import chosen, offered

MOST_JOURNAL_BYTES = 512 << 20  # bytes of one journal; enough for a million trials of three reports
AGAIN_S = 5.0  # seconds before the retry if a folder could not be read
LONG_LOOK_S, LOOK_SHARE = 0.05, 20  # checks for changes that take longer than 0.05 s may use 1/20 of the time


@dataclass(frozen=True)
class View:
    """An experiment's record and summary. Each figure is drawn once and reused until the record changes.

    `keeps` is called with the size of the figures in bytes, for the memory budget.
    """

    record: ExperimentRecord
    summary: Summary
    keeps: Callable[[int], None] = field(default=lambda _: None, compare=False, repr=False)
    _drawn: dict[tuple[FigureName, str], bytes] = field(default_factory=dict, init=False, compare=False, repr=False)

    def figure(self, name: FigureName, values: str = "") -> bytes:
        """Returns a figure as JSON; empty if it has no data.

        Args:
            values: which value of each trial a figure of COMPARING compares (`tuner.views.figures.values`).
        """
        with blamed(self.summary.name):
            choice = chosen(self.record, values) if name in COMPARING else ""
            text = self._drawn.get((name, choice))
            if text is None:
                text = figure_text(FIGURES[name](self.record, *([choice] if choice else [])))
                if choice and choice not in offered(self.record):
                    return text  # not kept: a client may choose any of many epochs
                self._drawn[name, choice] = text
                self.keeps(sum(map(len, self._drawn.values())))
        return text


@dataclass(frozen=True)
class Last:
    """The result of the last read.

    `stamp` identifies the state of the files, `took_s` is the duration of the read and `time` its end. `view` is None
    if the summary has an error, or if the record was dropped because other experiments needed the memory.
    """

    stamp: object
    summary: Summary
    view: View | None
    took_s: float
    time: float

    @property
    def is_current(self) -> bool:
        """Whether the result may be reused while the files have not changed; after an error only for a limited time.

        The time is AGAIN_S, or 20 times the duration of the read if that is longer. The folder is then read again,
        because the error may be gone.
        """
        return not self.summary.error or time.monotonic() < self.time + max(AGAIN_S, 20 * self.took_s)

    @property
    def is_enough(self) -> bool:
        """Whether this result can answer every request for the experiment: it has the record, or an error to report."""
        return self.view is not None or bool(self.summary.error)


class ExperimentReader:
    """Reads one experiment's folder. Each object has its own lock, so reading one experiment does not block others."""

    def __init__(self, folder: Path, memory: MemoryBudget) -> None:
        self.folder = folder
        self.last: Last | None = None
        self._memory = memory
        self._lock = threading.Lock()
        self._followed = self._begun_anew()
        self._looks_again = 0.0

    def _begun_anew(self) -> Following:
        return Following(self.folder, MOST_JOURNAL_BYTES, lambda weight: self._memory.hold(self, weight))

    @property
    def is_whole(self) -> bool:
        """Whether all of the experiment's records are in memory."""
        return self.last is not None and self.last.view is not None

    def known(self) -> Last | None:
        """Returns the last result if the files have not changed since; None otherwise.

        After a check that took longer than LONG_LOOK_S, calls skip the check for LOOK_SHARE times as long.
        """
        last, began = self.last, time.monotonic()
        if last is None or not last.is_current:
            return None
        if began < self._looks_again:
            return last
        has_changed, took_s = _has_changed(self.folder, last.stamp, last.summary), time.monotonic() - began
        self._looks_again = began + LOOK_SHARE * took_s if took_s > LONG_LOOK_S else 0.0
        return None if has_changed else last

    def read(self, until: float) -> Last:
        """Reads the folder's current state.

        Raises:
            NotYet: reading is not done by the time `until` (of `time.monotonic`), or the records of other experiments
                take up the memory budget.
        """
        if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise NotYet("another request is reading this experiment; send the request again")
        try:
            last = self.known()
            if last is None or not last.is_enough:
                last = self.last = self._read(until)
            return last
        finally:
            self._lock.release()

    def _read(self, until: float) -> Last:
        began, stamp, view = time.monotonic(), _stamp(self.folder), None
        try:
            with blamed(self.folder.name):
                record = self._followed.load(until)
                # The summary's number of lines must be that of this record: the event stream starts after that line.
                summary = with_notes(summarised(record, self._followed.reading.folding), self.folder)
                view = View(record, summary, self._keep)
        except NotYet as error:
            if isinstance(error, Crowded):
                self._followed = self._begun_anew()
            raise
        except RequestError as error:
            self._followed = self._begun_anew()
            summary = with_notes(Summary(self.folder.name, state="damaged", error=str(error)), self.folder)
        finally:
            self._memory.settle(self, self._followed.weight)
        now = time.monotonic()
        return Last(stamp, summary, view, now - began, now)

    def _keep(self, more: int) -> None:
        try:
            self._memory.hold(self, self._followed.weight + more)
        except RequestError:
            self._memory.settle(self, self._followed.weight)
            raise

    def forget(self) -> bool:
        """Drops the records but keeps the summary, and returns True; returns False if the folder is being read."""
        if not self._lock.acquire(blocking=False):
            return False
        if self.last:
            self.last = replace(self.last, view=None)
        self._followed = self._begun_anew()
        self._lock.release()
        return True


def _stamp(folder: Path) -> object:
    """Returns a value that changes whenever experiment.json, journal.jsonl, best/config.json or notes.json changes.

    If plain Ray Tune wrote the folder, the value changes with Ray's files and notes.json. If the files cannot be
    listed, it changes with the folder itself.
    """
    files = [folder / "experiment.json", folder / "journal.jsonl", folder / "best" / "config.json"]
    try:
        own = files if os.path.lexists(files[0]) else ray_files_in(folder)
        return [_stat(path) for path in (*own, folder / NOTES)]
    except (OSError, RequestError):
        return [_stat(folder), _stat(folder / NOTES)]


def _has_changed(folder: Path, stamp: object, summary: Summary) -> bool:
    """Returns whether files changed since `stamp`, or the process of a running search is gone.

    The end of that process changes no file.
    """
    return stamp != _stamp(folder) or (summary.state == "running" and abandoned(folder))


def _stat(path: Path) -> tuple[int, ...]:
    try:
        status = path.lstat()
        return status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode
    except OSError as error:
        return (error.errno or 0,)
