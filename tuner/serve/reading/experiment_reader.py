"""Reads one experiment's folder and keeps the result, within one budget of memory for all experiments."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from tuner.errors import RequestError, blamed
from tuner.record.notes import FILE as NOTES
from tuner.record.ray_folder import ray_files_in
from tuner.record.reading import NotYet
from tuner.record.results import ExperimentRecord, Following
from tuner.record.storage.lock import abandoned
from tuner.serve.answers import figure_text
from tuner.serve.reading.summary import Summary, summary_of, with_notes
from tuner.views.figures.catalogue import COMPARING, FIGURES, FigureName
from tuner.views.figures.values import chosen, offered

MOST_JOURNAL_BYTES = 512 << 20  # bytes of one journal; enough for a million trials of three reports
AGAIN_S = 5.0  # seconds before a folder that could not be read is read again, or 20 times as long as reading it took
# MOST_MEMORY is in bytes as `files.weight` estimates them. 230,000 trials of three reports and decisions reach it; they
# take 1.5 GB as measured.
MOST_MEMORY = 2 << 30
LEAST_WEIGHT = 100_000  # bytes counted for an experiment, even if its records take less
IDLE_S = 30.0  # seconds; partly read records that nobody reads on may be dropped after this time


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
        """Returns a figure as JSON, empty if it has no data; `values` is the choice of a figure of COMPARING."""
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

    `stamp` identifies the state of the files. `view` is None if the summary has an error, or if the record was dropped
    because other experiments needed the memory. `until` is the time (`time.monotonic`) up to which to reuse the result
    while the files do not change: an error may be gone later.
    """

    stamp: object
    summary: Summary
    view: View | None
    until: float = inf

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

    def _begun_anew(self) -> Following:
        return Following(self.folder, MOST_JOURNAL_BYTES, lambda weight: self._memory.hold(self, weight))

    @property
    def is_whole(self) -> bool:
        """Whether all of the experiment's records are in memory."""
        return self.last is not None and self.last.view is not None

    def known(self) -> Last | None:
        """Returns the last result if the files have not changed since; None otherwise."""
        last = self.last
        if last is None or time.monotonic() >= last.until or last.stamp != _stamp(self.folder):
            return None
        # The end of a search's process changes no file.
        return None if last.summary.state == "running" and abandoned(self.folder) else last

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
        began, stamp = time.monotonic(), _stamp(self.folder)
        try:
            with blamed(self.folder.name):
                record = self._followed.load(until)
                # The summary's number of lines must be that of this record: the event stream starts after that line.
                summary = with_notes(summary_of(record, self._followed.reading.folding), self.folder)
            return Last(stamp, summary, View(record, summary, self._keep))
        except NotYet as error:
            if isinstance(error, Crowded):
                self._followed = self._begun_anew()
            raise
        except RequestError as error:
            self._followed = self._begun_anew()
            summary = with_notes(Summary(self.folder.name, state="damaged", error=str(error)), self.folder)
            now = time.monotonic()
            return Last(stamp, summary, None, now + max(AGAIN_S, 20 * (now - began)))
        finally:
            self._memory.settle(self, self._followed.weight)

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


class Crowded(NotYet):
    """Raised if a larger experiment that is being read needs the memory; the caller must drop what it has read."""


class MemoryBudget:
    """Counts the memory of all readers' records and drops records to stay below MOST_MEMORY; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Weight and time of the last use; the latest use is last.
        self._uses: dict[ExperimentReader, tuple[int, float]] = {}
        self.total = 0  # estimated bytes that all readers use

    def hold(self, reader: ExperimentReader, weight: int) -> None:
        """Sets a reader's reserved memory to `weight` bytes; other readers drop their records if necessary.

        Completely read records are dropped first, the least recently used ones before the others. Then partly read
        records are dropped: those unused for IDLE_S, and those smaller than this reader's. The largest partly read
        records in use are kept, so that one experiment is read to its end.

        Raises:
            RequestError: this reader alone would exceed MOST_MEMORY.
            NotYet: other experiments that are being read use the memory.
        """
        if weight > MOST_MEMORY:
            raise RequestError(
                f"{reader.folder} has too many values to be shown here: they need more than {MOST_MEMORY >> 20:,} "
                f"MiB of memory; run python -m tuner.report, which accepts more"
            )
        with self._lock:
            self._set(reader, weight)
            if self.total <= MOST_MEMORY:
                return
            own = self._rank(reader)
            ranks = {other: self._rank(other) for other in self._uses if other is not reader}
            for other in sorted((other for other in ranks if ranks[other] < max(1, own)), key=ranks.__getitem__):
                if self.total <= MOST_MEMORY - MOST_MEMORY // 8:  # an eighth is freed for the next calls
                    return
                if other.forget():
                    self._set(other, 0)
            if self.total > MOST_MEMORY:
                kind = Crowded if any(rank >= own for rank in ranks.values()) else NotYet
                raise kind("other experiments that are being read use the memory; send the request again")

    def settle(self, reader: ExperimentReader, weight: int) -> None:
        """Records how many bytes of memory a reader's records use now; 0 = it holds none."""
        with self._lock:
            self._set(reader, weight)

    def touch(self, reader: ExperimentReader) -> None:
        """Marks the reader's records as the most recently used, so that they are dropped last, if it has any."""
        with self._lock:
            if reader in self._uses:
                self._uses[reader] = self._uses.pop(reader)

    def _set(self, reader: ExperimentReader, weight: int) -> None:
        self.total -= self._uses.pop(reader, (0, 0.0))[0]
        if weight:
            self._uses[reader] = max(weight, LEAST_WEIGHT), time.monotonic()
            self.total += self._uses[reader][0]

    def _rank(self, reader: ExperimentReader) -> int:
        """Returns 0 if a reader's records may be dropped for any other's, or else the weight of its partial records."""
        weight, used = self._uses.get(reader, (0, 0.0))
        return 0 if reader.is_whole or time.monotonic() - used >= IDLE_S else weight


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


def _stat(path: Path) -> tuple[int, ...]:
    try:
        status = path.lstat()
        return status.st_size, status.st_mtime_ns, status.st_ino, status.st_mode
    except OSError as error:
        return (error.errno or 0,)
