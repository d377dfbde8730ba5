"""Reads a growing journal into records; reads each line only once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.events import Event
from tuner.record.files import lines_of, open_in, weight
from tuner.record.journal import BEGINNINGS, damaged_journal, has_seal, opened
from tuner.record.records import Folding, TrialRecord

# Called with the bytes of memory that a reader will use, before it uses them; raises an error to forbid it.
Hold = Callable[[int], None]


class NotYet(RequestError):
    """Reading took too long and stopped inside the journal; the next reading continues from there."""


def unbounded(weight: int) -> None:
    """Allows any amount of memory."""


class Reading:
    """Reads one journal as it grows.

    Attributes:
        lines: number of lines read so far.
        state, reason: the search's state, and why it ended before its last trial, if it did.
        took_s: total seconds of all sessions, without the time between sessions.
        beginnings: how often the journal was read from its first line.
        weight: estimated bytes of memory that its events take.

    Args:
        most_bytes: the maximum size of the journal; None = no limit, for commands that a user runs.
        hold: called with each new `weight`.
    """

    def __init__(self, path: Path, most_bytes: int | None = None, hold: Hold = unbounded) -> None:
        self._path, self._most_bytes, self._hold = path, most_bytes, hold
        self.beginnings = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.beginnings += 1
        self.state, self.reason, self.lines, self.took_s = "running", "", 0, 0.0
        self.updated: float | None = None
        self._folding = Folding()
        self._offset, self._inode, self._is_sealed = 0, 0, False
        self.weight = 0

    def read_on(self, until: float | None = None) -> list[TrialRecord]:
        """Reads the lines appended since the last call and returns the records of all trials.

        An incomplete last line is left for the next call. A journal that has shrunk or was replaced is read from its
        first line.

        Args:
            until: the time (`time.monotonic`) after which to stop at the next chunk; None = read all.

        Raises:
            NotYet: the time was over, or `hold` raised it; the next call continues from there.
            RequestError: a line is damaged, or the journal is too long or not a regular file.
        """
        try:
            with open_in(self._path.parent, self._path.name) as file:
                status = os.fstat(file.fileno())
                if status.st_size < self._offset or (self._inode and status.st_ino != self._inode):
                    self._begin_anew()
                self._inode = status.st_ino
                if self._most_bytes is not None and status.st_size > self._most_bytes:
                    raise RequestError(
                        f"{self._path} has {status.st_size:,} bytes: at most {self._most_bytes:,} are read here; "
                        f"`python -m tuner.report` takes more"
                    )
                file.seek(self._offset)
                for lines in lines_of(file):
                    heavier = self.weight + sum(map(weight, lines))
                    self._hold(heavier)
                    self.weight = heavier
                    self._take(lines)
                    if until is not None and time.monotonic() > until and self._offset < status.st_size:
                        share = f"{self._offset >> 20} of {status.st_size >> 20} MiB"
                        raise NotYet(f"its journal is being read: {share} so far; ask again")
        except FileNotFoundError:
            self._begin_anew()
        except ValueError as error:
            number = self.lines + 1
            self._begin_anew()  # the records may contain half of an event
            raise damaged_journal(self._path, number, error) from None
        except OSError as error:
            raise RequestError(f"{self._path} cannot be read: {error.strerror}") from None
        return self._folding.records()

    def _take(self, lines: list[bytes]) -> None:
        if self.lines == 0 and lines:
            self._is_sealed = has_seal(lines[0])
        number, is_sealed, add, note = self.lines, self._is_sealed, self._folding.add, self._note
        size = 0
        try:
            for line in lines:  # 6 us per line; 10,000 trials have 170,000 lines
                event = opened(line, is_sealed)
                add(event)
                note(event)
                number += 1
                size += len(line) + 1
        except (ValueError, KeyError, TypeError) as error:
            self.lines = number
            raise ValueError(error) from None
        self.lines = number
        self._offset += size

    def _note(self, event: Event) -> None:
        """Updates the search's state and running time."""
        kind, time = event["event"], event["time"]
        if kind in BEGINNINGS:
            self.state, self.reason = "running", ""
        else:
            if kind == "experiment_finished":
                self.state, self.reason = event["state"], event.get("reason", "")
            self.took_s += time - (self.updated if self.updated is not None else time)
        self.updated = time
