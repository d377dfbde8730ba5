"""Reads a journal: `read` reads all, `follow` also new lines, `scan` up to a damaged line; `Reading` makes records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tuner.core.events import Event, ExperimentFinished
from tuner.errors import RequestError
from tuner.record.format import FIELD, check_format
from tuner.record.lines import Chain
from tuner.record.records import Folding
from tuner.record.storage.files import lines_of, open_in, weight

# A reader calls a Hold with the total bytes of memory that it is about to use; a RequestError of the Hold forbids it.
Hold = Callable[[int], None]


class Damaged(RequestError):
    """A journal has a damaged line; `where` says which one and why."""

    def __init__(self, path: Path, number: int, why: str) -> None:
        self.where = f"line {number} ({why})"
        advice = "--resume goes on from the lines before it" if number > 1 else "restore the file"
        super().__init__(f"{path} is damaged at {self.where}; {advice}")


class NotYet(RequestError):
    """Reading took too long and stopped inside the journal; the next call of `Reading.read_on` continues there."""


class Lines:
    """Each call of `events` reads a journal's new lines; `number` and `size` count the lines and bytes read so far."""

    def __init__(self, path: Path) -> None:
        self._path, self.chain = path, Chain()
        self.size = 0

    @property
    def number(self) -> int:
        return self.chain.number

    def events(self, file: BinaryIO, prepare: Callable[[list[bytes]], None] = lambda lines: None) -> Iterator[Event]:
        """Passes each chunk of new whole lines to `prepare`, then yields its events; raises OtherFormat or Damaged."""
        file.seek(self.size)
        try:
            for lines in lines_of(file):
                prepare(lines)
                for line in lines:  # takes 6 us per line; a search of 10,000 trials has 170,000 lines
                    event = self.chain.event_of(line, lambda first: check_format(first.pop(FIELD, None), self._path))
                    self.size += len(line) + 1
                    yield event
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(self._path, self.number + 1, str(error)) from None


class Scan(NamedTuple):
    """A journal's events before its first damaged line, the bytes of their lines, the last line's number and CRC, and
    the damage in words, if any.
    """

    events: list[Event]
    size: int
    chain: Chain
    damage: str


def scan(path: Path, most_events: int | None = None) -> Scan:
    """Reads a journal up to its first damaged line; raises OtherFormat, or OSError if `path` is no readable file."""
    lines, events, damage = Lines(path), list[Event](), ""
    with open_in(path.parent, path.name) as file:
        try:
            for event in islice(lines.events(file), most_events):
                events.append(event)
        except Damaged as error:
            damage = error.where
    return Scan(events, lines.size, lines.chain, damage)


def read(path: Path) -> list[Event]:
    """Returns all events, none for a missing file; ignores an incomplete last line, raises RequestError for damage."""
    return list(follow(path, gone=lambda: True)) if path.exists() else []


def follow(path: Path, *, pause_s: float = 0.5, gone: Callable[[], bool] = lambda: False) -> Iterator[Event]:
    """Yields all events, then each new one; ends after a final `ExperimentFinished`, or once `gone` returns True."""
    lines = Lines(path)
    try:
        file = open_in(path.parent, path.name)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None
    with file:
        while True:
            is_last, event = gone(), None
            for event in lines.events(file):
                yield event
            if is_last or isinstance(event, ExperimentFinished):
                return  # only if it is the last event: an earlier one ended an earlier session
            time.sleep(pause_s)  # inotify does not see what another host writes


class Reading:
    """Reads one journal as it grows, up to a size of `most_bytes`."""

    def __init__(self, path: Path, most_bytes: int | None = None) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._folding, self._weight = Folding(), 0  # the weight estimates the bytes of memory that the events take
        self._lines, self._inode = Lines(self._path), 0

    def read_on(self, until: float | None = None, hold: Hold = lambda weight: None) -> Folding:
        """Reads the lines appended since the last call; returns the records of all lines, or none if no journal exists.

        A journal that has shrunk or was replaced is read from its first line. A damaged, too long or unreadable journal
        raises a RequestError.

        Args:
            until: deadline, in seconds of `time.monotonic`; later, NotYet is raised between two chunks of lines.
            hold: called before each chunk is parsed, with the bytes of memory of all events, this chunk included.
        """
        try:
            with open_in(self._path.parent, self._path.name) as file:
                status = os.fstat(file.fileno())
                if status.st_size < self._lines.size or (self._inode and status.st_ino != self._inode):
                    self._begin_anew()
                self._inode, begun = status.st_ino, self._lines.number
                if self._most_bytes is not None and status.st_size > self._most_bytes:
                    raise RequestError(
                        f"{self._path} has {status.st_size:,} bytes; at most {self._most_bytes:,} are read here, "
                        f"but `python -m tuner.report` reads any size"
                    )

                def prepare(lines: list[bytes]) -> None:
                    if until is not None and time.monotonic() > until and self._lines.number > begun:
                        share = f"{self._lines.size >> 20} of {status.st_size >> 20} MiB"
                        raise NotYet(f"the experiment's journal is being read: {share} so far; ask again")
                    more = weight(b"".join(lines))  # joined, because weighing 10,000 trials line by line takes 0.1 s
                    hold(self._weight + more)
                    self._weight += more

                for event in self._lines.events(file, prepare):
                    self._folding.add(event)
        except FileNotFoundError:
            self._begin_anew()
        except Damaged:
            self._begin_anew()
            raise
        except OSError as error:
            raise RequestError(f"{self._path} cannot be read: {error.strerror}") from None
        return self._folding
