"""A journal folded into records as it grows: what has been read once is not read again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.events import Event
from tuner.record.files import lines_of, open_in, weight
from tuner.record.journal import BEGINNINGS, damaged, has_seal, opened
from tuner.record.records import Folding, TrialRecord

Hold = Callable[[int], None]  # told how many bytes of memory a reader takes before it takes them; raises to forbid it


class NotYet(RequestError):
    """The time for reading was over before the journal was; the next reading goes on from there."""


def unbounded(weight: int) -> None:
    """Forbids nothing."""


class Reading:
    """One journal.

    `lines` have been read; `state` is the search's, `reason` why it ended before its last trial, if so; `took_s` its
    sessions without the time between; `beginnings` is how often it was read from its first line; `weight` is about how
    many bytes of memory its events take.

    Args:
        most_bytes: of a journal; None = any, for a command that its user gave.
        hold: what each new `weight` is told to.
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
        """Takes in what was appended since, a torn last line left out; gives the records of all trials.

        A journal that has shrunk, or is another file by now, is read from its beginning.

        Args:
            until: the time (`time.monotonic`) at which to stop between two slices; None = read all.

        Raises:
            NotYet: `until` came first, or `hold` raises it; the next reading goes on from there.
            RequestError: a line is none that this project wrote, or the journal is too long or no regular file.
        """
        try:
            with open_in(self._path.parent, self._path.name) as file:
                found = os.fstat(file.fileno())
                if found.st_size < self._offset or (self._inode and found.st_ino != self._inode):
                    self._begin_anew()
                self._inode = found.st_ino
                if self._most_bytes is not None and found.st_size > self._most_bytes:
                    raise RequestError(
                        f"{self._path} has {found.st_size:,} bytes: at most {self._most_bytes:,} are read here; "
                        f"`python -m tuner.report` takes more"
                    )
                file.seek(self._offset)
                for lines in lines_of(file):
                    heavier = self.weight + sum(map(weight, lines))
                    self._hold(heavier)
                    self.weight = heavier
                    self._take(lines)
                    if until is not None and time.monotonic() > until and self._offset < found.st_size:
                        share = f"{self._offset >> 20} of {found.st_size >> 20} MiB"
                        raise NotYet(f"its journal is being read: {share} so far; ask again")
        except FileNotFoundError:
            self._begin_anew()
        except ValueError as error:
            number = self.lines + 1
            self._begin_anew()  # half of an event may have been taken in
            raise damaged(self._path, number, error) from None
        except OSError as error:
            raise RequestError(f"{self._path} cannot be read: {error.strerror}") from None
        return self._folding.records()

    def _take(self, lines: list[bytes]) -> None:
        if self.lines == 0 and lines:
            self._is_sealed = has_seal(lines[0])
        number, is_sealed, add, note = self.lines, self._is_sealed, self._folding.add, self._note
        size = 0
        try:
            for line in lines:  # 6 us each, and 10,000 trials have 170,000
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
        """The state of the search and how long it has run."""
        kind, time = event["event"], event["time"]
        if kind in BEGINNINGS:
            self.state, self.reason = "running", ""
        else:
            if kind == "experiment_finished":
                self.state, self.reason = event["state"], event.get("reason", "")
            self.took_s += time - (self.updated if self.updated is not None else time)
        self.updated = time
