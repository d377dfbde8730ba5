"""Reads the experiments of a results folder: the list of them, and the current record of each."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections import OrderedDict
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.ray_folder import is_ray_folder
from tuner.record.reading import NotYet
from tuner.record.saved_experiment import FILE
from tuner.record.storage.files import share
from tuner.serve.reading.experiment_reader import ExperimentReader, Last, View, drop_first
from tuner.serve.reading.summary import Summary
from tuner.spec.experiment import NAMES

VIEW_S = 10.0  # seconds for reading one experiment, before the request gets "try again"
TURN_S, WAIT_S = 0.5, 2.0  # seconds for which a request reads before others may, and for which one waits for its turn
LIST_S, EACH_S = 2.0, 0.5  # time limits in seconds: for reading the whole list, and for each experiment of it


class NotThere(RequestError):
    """Raised if there is no experiment of that name, or it is a link, or it has no such trial."""


class ResultsReader:
    """Reads experiments under one folder, one at a time, so that their memory can be bounded; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.root = folder.absolute()
        share(self.root)
        self._lock = threading.Lock()  # guards `_experiments`; never held while a file is read
        self._experiments: OrderedDict[str, ExperimentReader] = OrderedDict()  # the last requested one is the last
        self._reading = threading.Lock()  # held while a file is read
        self._listing = threading.Lock()
        self._listed: tuple[float, list[Summary]] = -1.0, []  # start time of the last list, and the list

    def summaries(self) -> list[Summary]:
        """Returns the summaries of all experiments, the most recently started one first.

        An experiment that cannot be read has an `error`. One that takes long to read keeps its previous summary or has
        the state `reading`; the next call continues to read it. Requests that arrive while a list is built all share
        the next list.
        """
        asked = time.monotonic()
        with self._listing:
            if self._listed[0] < asked:
                self._listed = time.monotonic(), self._all()
            return self._listed[1]

    def _all(self) -> list[Summary]:
        def was_read(name: str) -> bool:
            reader = self._experiments.get(name)
            return reader is not None and reader.last is not None

        try:
            names = sorted(os.listdir(self.root), key=was_read)  # within LIST_S, the others are read first
        except OSError as error:
            raise RequestError(f"{self.root} cannot be read: {error.strerror}") from None
        with self._lock:
            for gone in self._experiments.keys() - set(names):
                del self._experiments[gone]
        until = time.monotonic() + LIST_S
        summaries = [summary for name in names if (summary := self._summary(name, until))]
        return sorted(summaries, key=lambda s: (s.started or 0, s.name), reverse=True)

    def read_newest(self) -> None:
        """Reads the experiment that was written last, so that the first page of it need not wait for its journal."""
        with contextlib.suppress(RequestError, OSError, ValueError):  # ValueError: there is none
            newest = max(self.root.glob("*/journal.jsonl"), key=lambda path: path.lstat().st_mtime)
            self.view(newest.parent.name)

    def unchanged(self, name: str) -> Summary | None:
        """Returns the last summary if the experiment's files have not changed since; None if they must be read.

        It is the same object as long as they do not change, also after the record was dropped.
        """
        self.folder(name)
        reader = self._experiments.get(name)
        last = reader.known() if reader else None
        return last.summary if last else None

    def view(self, name: str, until: float | None = None) -> View:
        """Returns an experiment's record and summary; stops reading at `until` (`time.monotonic`), or after VIEW_S.

        Raises:
            NotThere: there is no experiment of that name.
            NotYet: reading takes longer, or other experiments are being read.
            RequestError: the experiment's files are damaged or too large.
        """
        last = self._look(name, time.monotonic() + VIEW_S if until is None else until)
        if last.view is None:
            raise RequestError(last.summary.error)
        return last.view

    def folder(self, name: str) -> Path:
        """Returns a folder; raises NotThere if there is no such experiment, or it or one of its two files is a link.

        A link that is created after this check is not followed either, because `files.share` makes readers refuse it.
        """
        folder = self.root / name if _is_name(name) else None
        if folder is None or not _is_experiment(folder):
            raise NotThere(f"no experiment of that name in {self.root}")
        if any(map(os.path.islink, (folder, folder / FILE, folder / "journal.jsonl"))):
            raise NotThere("that experiment is a link, and links are not followed")
        return folder

    def _look(self, name: str, until: float) -> Last:
        folder = self.folder(name)
        with self._lock:
            reader = self._experiments.setdefault(name, ExperimentReader(folder, self._make_room))
            self._experiments.move_to_end(name)
        last = reader.known()
        if last and last.is_enough:
            if self._reading.acquire(blocking=False):  # while others read, they make room for new figures too
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
            time.sleep(0.001)  # else this thread would get the lock again before those that wait for it

    def _make_room(self, reader: ExperimentReader) -> None:
        """Drops the records of the experiments that were not requested for the longest time, if memory is short."""
        with self._lock:
            readers = list(self._experiments.values())
        drop_first(readers, reader)

    def _summary(self, name: str, until: float) -> Summary | None:
        """Returns a row of the list; None if there is no experiment. Reads files only up to the time `until`."""
        reader = self._experiments.get(name)
        try:
            self.folder(name)
            last = reader.known() if reader else None
            if last is None and time.monotonic() > until:
                raise NotYet("other experiments are being read; send the request again")
            return (last or self._look(name, min(until, time.monotonic() + EACH_S))).summary
        except NotThere:
            return None
        except NotYet as error:
            return reader.last.summary if reader and reader.last else Summary(name, state="reading", notice=str(error))


def _is_name(name: str) -> bool:
    return bool(name) and re.fullmatch(NAMES["name"][0], name, re.ASCII) is not None


def _is_experiment(folder: Path) -> bool:
    """Whether the list shows a folder: it is an experiment (of tuner or of Ray Tune), or this user may not open it."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return False
        os.lstat(folder / FILE)
        return True
    except PermissionError:
        return True
    except (OSError, ValueError):
        pass
    try:
        return is_ray_folder(folder)
    except OSError as error:
        return isinstance(error, PermissionError)
