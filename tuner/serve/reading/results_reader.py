"""Reads a results folder: the list of its experiments, and each experiment's current record and figures."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from tuner.errors import RequestError, blamed
from tuner.record.format import JOURNAL
from tuner.record.notes import FILE as NOTES
from tuner.record.ray_folder import is_ray_folder, ray_files_in
from tuner.record.reading import NotYet
from tuner.record.results import ExperimentRecord, Following
from tuner.record.saved_experiment import FILE, latest_experiment
from tuner.record.storage.files import share
from tuner.record.storage.lock import abandoned
from tuner.serve.answers import figure_text
from tuner.serve.reading.summary import Summary, summary_of, with_notes
from tuner.spec.experiment import Options
from tuner.spec.option_values import rows_of
from tuner.views.figures.catalogue import CHOICES, FIGURES, FigureName

MOST_JOURNAL_BYTES = 512 << 20  # maximum bytes of a journal; enough for a million trials of three reports
AGAIN_S = 5.0  # seconds until an unreadable, unchanged folder is read again; 20 times the failed read's time, if longer
MAX_RECORD_BYTES = 2 << 30  # as `files.weight` estimates; 230,000 trials of three reports reach it, but take 1.5 GB
MOST_DRAWN = 4  # choices of a figure that are kept; a further choice replaces the oldest
LEAST_WEIGHT = 100_000  # bytes counted for an experiment, even if its records take less
VIEW_S = 10.0  # seconds for reading one experiment; after that, the client is asked to retry
TURN_S, WAIT_S = 0.5, 2.0  # seconds: how long a request reads before others may read; how long it waits for its turn
LIST_S, EACH_S = 2.0, 0.5  # time limits in seconds: for reading the whole list, and for each experiment of it


@dataclass(frozen=True)
class View:
    """An experiment's record and summary. It keeps drawn figures: of each, the MOST_DRAWN last choices."""

    record: ExperimentRecord
    summary: Summary
    drawn: dict[tuple[FigureName, str], bytes] = field(default_factory=dict, init=False, compare=False, repr=False)

    def figure(self, name: FigureName, choice: str = "") -> bytes:
        """Returns a figure as JSON, empty if it has no data; `choice` is for the figures of CHOICES."""
        with blamed(self.summary.name):
            choices = [CHOICES[name](self.record, choice)] if name in CHOICES else []
            key = name, "".join(choices)
            text = self.drawn.get(key)
            if text is None:
                text = figure_text(FIGURES[name](self.record, *choices))
                for old in [each for each in list(self.drawn) if each[0] == name][: 1 - MOST_DRAWN]:
                    self.drawn.pop(old, None)
                self.drawn[key] = text
        return text


@dataclass(frozen=True)
class Last:
    """The result of the last read, when the files had the state `stamp`; valid until `until` (`time.monotonic`).

    `view` is None if the files cannot be read, or if the record was dropped to free memory.
    """

    stamp: object
    summary: Summary
    view: View | None
    until: float = inf

    @property
    def is_enough(self) -> bool:
        return self.view is not None or bool(self.summary.error)


class ExperimentReader:
    """Reads one experiment's folder; only one thread at a time may call `read` or `forget`.

    While it reads, it calls `make_room` before it uses more memory.
    """

    def __init__(self, folder: Path, make_room: Callable[[ExperimentReader], None]) -> None:
        self.folder = folder
        self.last: Last | None = None
        self._make_room = make_room
        self.forget()

    def forget(self) -> None:
        if self.last:
            self.last = replace(self.last, view=None)
        self._followed, self._held = Following(self.folder, MOST_JOURNAL_BYTES), 0

    @property
    def weight(self) -> int:
        """The memory that the records and figures take, in bytes, as an estimate."""
        view = self.last.view if self.last else None
        return self._held + sum(map(len, list(view.drawn.values()) if view else ()))

    def known(self) -> Last | None:
        """Returns the last result if it is still valid and the files have not changed; None otherwise."""
        last = self.last
        if last is None or time.monotonic() >= last.until or last.stamp != _stamp(self.folder):
            return None
        # A search that is killed changes no file, so its process is checked, too.
        return None if last.summary.state == "running" and abandoned(self.folder) else last

    def read(self, until: float) -> Last:
        """Reads the folder's current state; raises NotYet if that needs time beyond `until` (`time.monotonic`)."""
        last = self.known()
        if last and last.is_enough:
            return last
        began, stamp = time.monotonic(), _stamp(self.folder)
        try:
            with blamed(self.folder.name):
                record = self._followed.load(until, self._reserve)
                summary = with_notes(summary_of(record), self.folder)
            self.last = Last(stamp, summary, View(record, summary))
        except NotYet:
            raise
        except RequestError as error:
            self.forget()
            summary = with_notes(Summary(self.folder.name, state="damaged", error=str(error)), self.folder)
            now = time.monotonic()
            self.last = Last(stamp, summary, None, now + max(AGAIN_S, 20 * (now - began)))
        return self.last

    def _reserve(self, weight: int) -> None:
        if weight > MAX_RECORD_BYTES:
            raise RequestError(
                f"{self.folder} has too many values to be shown here: they need more than {MAX_RECORD_BYTES >> 20:,} "
                f"MiB of memory; run python -m tuner.report, which accepts more"
            )
        self._held = max(weight, LEAST_WEIGHT)
        self._make_room(self)


class NotThere(RequestError):
    """Raised if the requested experiment, trial or file does not exist, or if the experiment is a link."""


class ResultsReader:
    """Reads experiments under one folder, one at a time, so that their memory can be bounded; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.root = folder.absolute()
        share(self.root)
        self._lock = threading.Lock()  # guards `_experiments`; never held while a file is read
        self._experiments: OrderedDict[str, ExperimentReader] = OrderedDict()  # in order of latest request
        self._reading = threading.Lock()  # held while a file is read
        self._listing = threading.Lock()
        self._listed: tuple[float, list[Summary]] = -1.0, []  # start time of the last list, and the list

    def summaries(self) -> list[Summary]:
        """Returns the summaries of all experiments, the most recently started one first.

        An experiment that takes long to read keeps its previous summary, or has the state `reading`; the next call
        continues to read it. All requests that arrive while a list is being made get the next list.
        """
        asked = time.monotonic()
        with self._listing:
            if self._listed[0] < asked:
                self._listed = time.monotonic(), self._all()
            return self._listed[1]

    def _all(self) -> list[Summary]:
        try:
            names = sorted(os.listdir(self.root), key=self._experiments.__contains__)  # new ones are read first
        except OSError as error:
            raise RequestError(f"{self.root} cannot be read: {error.strerror}") from None
        with self._lock:
            for gone in self._experiments.keys() - set(names):
                del self._experiments[gone]
        until = time.monotonic() + LIST_S
        summaries = [summary for name in names if (summary := self._summary(name, until))]
        return sorted(summaries, key=lambda s: (s.started or 0, s.name), reverse=True)

    def read_newest(self) -> None:
        """Reads the most recently written experiment in advance, so that the first request for it need not wait."""
        with contextlib.suppress(RequestError, OSError):
            self.view(latest_experiment(self.root))

    def unchanged(self, name: str) -> Summary | None:
        """Returns the last summary, always the same object, if the files have not changed since; None otherwise."""
        self.folder(name)
        reader = self._experiments.get(name)
        last = reader.known() if reader else None
        return last.summary if last else None

    def view(self, name: str, until: float | None = None) -> View:
        """Returns an experiment's record and summary; raises RequestError if its files are damaged or too large.

        Raises NotThere; or NotYet at `until` (`time.monotonic`; None = VIEW_S from now) or after WAIT_S without a turn.
        """
        last = self._look(name, time.monotonic() + VIEW_S if until is None else until)
        if last.view is None:
            raise RequestError(last.summary.error)
        return last.view

    def folder(self, name: str) -> Path:
        """Returns an experiment's folder; raises NotThere if there is none, or if it, FILE or the journal is a link."""
        folder = self.root / name
        if not (name and re.fullmatch(rows_of(Options)["name"].pattern, name, re.ASCII) and _is_experiment(folder)):
            raise NotThere(f"no experiment of that name in {self.root}")
        if any(map(os.path.islink, (folder, folder / FILE, folder / JOURNAL))):
            raise NotThere("that experiment is a link, and links are not followed")
        return folder

    def _look(self, name: str, until: float) -> Last:
        folder = self.folder(name)
        with self._lock:
            reader = self._experiments.setdefault(name, ExperimentReader(folder, self._make_room))
            self._experiments.move_to_end(name)
        last = reader.known()
        if last and last.is_enough:
            if self._reading.acquire(blocking=False):  # else the thread that reads makes room for new figures
                self._make_room(reader)
                self._reading.release()
            return last
        while True:
            if not self._reading.acquire(timeout=max(0.0, min(until - time.monotonic(), WAIT_S))):
                raise NotYet("another experiment is being read; send the request again")
            try:
                return reader.read(min(until, time.monotonic() + TURN_S))
            except NotYet:
                if time.monotonic() > until:
                    raise
            finally:
                self._reading.release()
            time.sleep(0.001)  # otherwise, this thread would get the lock again before the threads that wait for it

    def _make_room(self, reader: ExperimentReader) -> None:
        """Drops records of other experiments, the least recently requested first, until MAX_RECORD_BYTES hold all."""
        with self._lock:
            readers = list(self._experiments.values())
        total = sum(each.weight for each in readers)
        for each in readers:
            if total > MAX_RECORD_BYTES and each is not reader:
                total -= each.weight
                each.forget()

    def _summary(self, name: str, until: float) -> Summary | None:
        """Returns a row of the list; None if there is no experiment. Stops reading files at the time `until`."""
        try:
            unchanged = self.unchanged(name)
            if unchanged is None and time.monotonic() > until:
                raise NotYet("other experiments are being read; send the request again")
            return unchanged or self._look(name, min(until, time.monotonic() + EACH_S)).summary
        except NotThere:
            return None
        except NotYet as error:
            reader = self._experiments.get(name)
            return reader.last.summary if reader and reader.last else Summary(name, state="reading", notice=str(error))


def _stamp(folder: Path) -> object:
    """Returns a value that changes when experiment.json, the journal, best/config.json, notes or Ray's files change."""
    files = [folder / FILE, folder / JOURNAL, folder / "best" / "config.json"]
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


def _is_experiment(folder: Path) -> bool:
    """Whether a folder counts as an experiment (of tuner or of Ray Tune); also if this user may not open it."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.lstat(folder / FILE)
            return True
        return is_ray_folder(folder)
    except PermissionError:
        return True
    except (OSError, ValueError):
        return False
