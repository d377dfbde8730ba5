"""Reads one experiment's folder, and keeps its records and figures until another experiment needs the memory."""

from __future__ import annotations

import os
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


@dataclass(frozen=True)
class View:
    """An experiment's record and summary. Each figure is drawn once and reused until the record changes."""

    record: ExperimentRecord
    summary: Summary
    drawn: dict[tuple[FigureName, str], bytes] = field(default_factory=dict, init=False, compare=False, repr=False)

    def figure(self, name: FigureName, values: str = "") -> bytes:
        """Returns a figure as JSON, empty if it has no data; `values` is the choice of a figure of COMPARING."""
        with blamed(self.summary.name):
            choice = chosen(self.record, values) if name in COMPARING else ""
            text = self.drawn.get((name, choice))
            if text is None:
                text = figure_text(FIGURES[name](self.record, *([choice] if choice else [])))
                if not choice or choice in offered(self.record):  # a client may choose any of many epochs
                    self.drawn[name, choice] = text
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
    """Reads one experiment's folder; only one thread at a time may call `read` or `forget`.

    Args:
        make_room: called with this reader after its `weight` has grown, before the memory is used.
    """

    def __init__(self, folder: Path, make_room: Callable[[ExperimentReader], None]) -> None:
        self.folder = folder
        self.last: Last | None = None
        self._make_room = make_room
        self.forget()

    def forget(self) -> None:
        """Drops the records, but keeps the summary."""
        if self.last:
            self.last = replace(self.last, view=None)
        self._followed, self._held = Following(self.folder, MOST_JOURNAL_BYTES), 0

    @property
    def weight(self) -> int:
        """Estimated bytes of memory that the records and figures take."""
        view = self.last.view if self.last else None
        return self._held + sum(map(len, list(view.drawn.values()) if view else ()))

    def known(self) -> Last | None:
        """Returns the last result if the files have not changed since; None otherwise."""
        last = self.last
        if last is None or time.monotonic() >= last.until or last.stamp != _stamp(self.folder):
            return None
        # The end of a search's process changes no file.
        return None if last.summary.state == "running" and abandoned(self.folder) else last

    def read(self, until: float) -> Last:
        """Reads the folder's current state; raises NotYet if that takes beyond the time `until` (`time.monotonic`)."""
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
        if weight > MOST_MEMORY:
            raise RequestError(
                f"{self.folder} has too many values to be shown here: they need more than {MOST_MEMORY >> 20:,} "
                f"MiB of memory; run python -m tuner.report, which accepts more"
            )
        self._held = max(weight, LEAST_WEIGHT)
        self._make_room(self)


def drop_first(readers: list[ExperimentReader], kept: ExperimentReader) -> None:
    """Drops the records of the first readers, except `kept`, until all together take at most MOST_MEMORY."""
    total = sum(reader.weight for reader in readers)
    for reader in readers:
        if total > MOST_MEMORY and reader is not kept:
            total -= reader.weight
            reader.forget()


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
