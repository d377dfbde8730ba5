"""One experiment's folder, read anew only when its files have changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tuner.errors import RequestError, blamed
from tuner.record.foreign import files_of
from tuner.record.lock import abandoned
from tuner.record.reading import NotYet
from tuner.record.results import ExperimentRecord, Following
from tuner.serve.answers import figures_text
from tuner.serve.memory import Crowded, Memory
from tuner.serve.summary import Summary, summarised
from tuner.views.figures import all_figures

MOST_JOURNAL_BYTES = 512 << 20  # of one journal: a million trials of three reports
AGAIN_S = 5.0  # until what could not be read is tried again
LONG_LOOK_S, LOOK_SHARE = 0.05, 20  # a look that takes longer is taken for 1 / LOOK_SHARE of the time


@dataclass(frozen=True)
class View:
    """An experiment's record with its summary, and what is worked out of it once for all who ask until it has news.

    `keeps` is told the size of that.
    """

    record: ExperimentRecord
    summary: Summary
    keeps: Callable[[int], None] = field(default=lambda _: None, compare=False, repr=False)

    @cached_property
    def figures(self) -> bytes:
        """`all_figures` as JSON."""
        with blamed(self.summary.name):
            text = figures_text(all_figures(self.record))
        self.keeps(len(text))
        return text


@dataclass(frozen=True)
class Last:
    """What was read last: at `stamp`, in `took_s`, at `time`; `view` is None where the summary has an error, or where
    the memory was needed for others."""

    stamp: object
    summary: Summary
    view: View | None
    took_s: float
    time: float

    @property
    def is_current(self) -> bool:
        """Whether the folder need not be looked at: an error that may pass is looked at again."""
        return not self.summary.error or time.monotonic() < self.time + max(AGAIN_S, 20 * self.took_s)

    @property
    def is_enough(self) -> bool:
        """Whether it answers every question."""
        return self.view is not None or bool(self.summary.error)


class Watched:
    """One experiment's folder as it is read. Its lock is its own: whoever reads another one does not wait."""

    def __init__(self, folder: Path, memory: Memory) -> None:
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
        """Whether all of its records are in memory."""
        return self.last is not None and self.last.view is not None

    def known(self) -> Last | None:
        """What was read last, if nothing has changed since, as far as the folder has been looked at."""
        last, began = self.last, time.monotonic()
        if last is None or not last.is_current:
            return None
        if began < self._looks_again:
            return last
        has_news, took_s = _has_news(self.folder, last.stamp, last.summary), time.monotonic() - began
        self._looks_again = began + LOOK_SHARE * took_s if took_s > LONG_LOOK_S else 0.0
        return None if has_news else last

    def read(self, until: float) -> Last:
        """The folder as it is now; NotYet where that takes longer, or takes memory that others have."""
        if not self._lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise NotYet("its folder is being read; ask again")
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
                # The events that are sent as news are those behind the lines that this record holds.
                view = View(record, summarised(record, self._followed.reading), self._keep)
                summary = view.summary
        except NotYet as error:
            if isinstance(error, Crowded):
                self._followed = self._begun_anew()
            raise
        except RequestError as error:
            self._followed = self._begun_anew()
            summary = Summary(self.folder.name, state="damaged", error=str(error))
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
        """Gives the memory of its records back, and keeps its summary; False where it is being read."""
        if not self._lock.acquire(blocking=False):
            return False
        if self.last:
            self.last = replace(self.last, view=None)
        self._followed = self._begun_anew()
        self._lock.release()
        return True


def _stamp(folder: Path) -> object:
    """Changes whenever a file that is read does."""
    files = [folder / "experiment.json", folder / "journal.jsonl", folder / "best" / "config.json"]
    try:
        return [_stat(path) for path in (files if os.path.lexists(files[0]) else files_of(folder))]
    except (OSError, RequestError):
        return [_stat(folder)]


def _has_news(folder: Path, stamp: object, summary: Summary) -> bool:
    """Whether files changed since, or a search that ran has no process any more, of which they tell nothing."""
    return stamp != _stamp(folder) or (summary.state == "running" and abandoned(folder))


def _stat(path: Path) -> tuple[int, ...]:
    try:
        found = path.lstat()
        return found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode
    except OSError as error:
        return (error.errno or 0,)
