"""Reads a journal: `read` whole, `follow` as it grows, `scan` up to a damaged line, `Reading` into records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tuner.errors import RequestError
from tuner.record.events import BEGINNINGS, Event, event_of
from tuner.record.format import FIELD, check_format
from tuner.record.records import Folding, TrialRecord
from tuner.record.storage.files import lines_of, open_in, weight

# The exceptions that `event_of` raises for a damaged line.
DAMAGE = (ValueError, KeyError, TypeError)


class Lines:
    """Reads the events of a journal's lines, each line once.

    Attributes:
        number: number of lines read so far.
        size: number of bytes of these lines, with newlines.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.number, self.size = 0, 0

    def events(self, file: BinaryIO, prepare: Callable[[list[bytes]], None] = lambda lines: None) -> Iterator[Event]:
        """Yields the events of the complete lines that were not read yet; leaves out an incomplete last line.

        An event counts as read when the next one is requested. So after an error here or in the caller, line
        `number + 1` is the faulty one.

        Args:
            prepare: called with the lines of each read before they are parsed.

        Raises:
            OtherFormat: the journal has another format.
            ValueError, KeyError, TypeError: a line is damaged.
        """
        file.seek(self.size)
        for lines in lines_of(file):
            prepare(lines)
            for line in lines:  # takes 6 us per line; a search of 10,000 trials has 170,000 lines
                event = event_of(line)
                if self.number == 0:
                    check_format(event.pop(FIELD, None), self._path)
                yield event
                self.number += 1
                self.size += len(line) + 1


@dataclass(frozen=True)
class Scan:
    """The readable part of a journal: its events before the first damaged line.

    `size` is the number of bytes of these events. `damage` names the damaged line and what is wrong with it. It is
    empty if no line is damaged, or if only the last line is incomplete.
    """

    events: list[Event]
    size: int
    damage: str


def scan(path: Path) -> Scan:
    """Reads a journal up to its first damaged line.

    Raises:
        OtherFormat: the journal has another format.
        OSError: the journal is missing or not a regular file.
    """
    lines, events, damage = Lines(path), [], ""
    with open_in(path.parent, path.name) as file:
        try:
            for event in lines.events(file):
                events.append(event)
        except DAMAGE as error:
            damage = f"line {lines.number + 1} ({error})"
    return Scan(events, lines.size, damage)


def read(path: Path) -> list[Event]:
    """Returns all events, none for a missing file; ignores an incomplete last line, raises RequestError for damage."""
    return list(follow(path, once=True))


def follow(
    path: Path, *, once: bool = False, pause_s: float = 0.5, gone: Callable[[], bool] = lambda: False
) -> Iterator[Event]:
    """Yields events as they are appended, until the last one is `experiment_finished`.

    With `once` it stops at the end of the file. If the search's process may be killed, pass `gone`: once it returns
    True, the file is read to its end a last time. An incomplete last line is read again at the next poll. It polls
    every `pause_s` seconds, because inotify does not see what another host writes to a shared file system.
    """
    lines = Lines(path)
    if once and not path.exists():
        return
    with _opened(path) as file:
        while True:
            once = once or gone()
            event: Event = {}
            try:
                for event in lines.events(file):
                    yield event
            except DAMAGE as error:
                raise damaged_journal(path, lines.number + 1, error) from None
            if once or event.get("event") == "experiment_finished":
                return  # only if it is the last event: an earlier experiment_finished ended an earlier session
            time.sleep(pause_s)


def _opened(path: Path) -> BinaryIO:
    try:
        return open_in(path.parent, path.name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None


def damaged_journal(path: Path, line: int, error: Exception) -> RequestError:
    """Returns the error for a journal whose lines from number `line` on cannot be read."""
    return RequestError(f"{path} is damaged at line {line} ({error}); --resume goes on from the lines before it")


# Called with the total bytes of memory that a reader will use, before it uses them; raises an error to forbid it.
Hold = Callable[[int], None]


class NotYet(RequestError):
    """Reading took too long and stopped inside the journal; the next reading continues from there."""


def unbounded(weight: int) -> None:
    """A `Hold` that forbids nothing: a reader may use any amount of memory."""


MOST_CHANGED = 1000  # the most characters of a reason that a reader keeps


class Session(NamedTuple):
    """One run of a search, until its end or the next resume: its start in unix seconds, and the seconds run before."""

    begun: float
    before_s: float


class Reading:
    """Reads one journal as it grows.

    Attributes:
        state, reason: the search's state, and why it ended before its last trial, if it did.
        refused: whether it ended because its request was wrong.
        out_of_time: whether its time budget ended it.
        changed: why asha-promotion used the rule of asha instead of its own; empty if it did not.
        length: the most epochs after which a trial ended by itself, as the search noted; 0 = it noted none.
        took_s: total seconds of all sessions, without the time between sessions.
        sessions: the sessions in order.
        beginnings: how often reading began at the journal's first line, the first time included.
        weight: estimated bytes of memory that its events take.

    Args:
        most_bytes: the maximum size of the journal; None = no limit, for commands that a user runs.
        hold: called with each new `weight` before the memory is used; raises an error to forbid it.
    """

    def __init__(self, path: Path, most_bytes: int | None = None, hold: Hold = unbounded) -> None:
        self._path, self._most_bytes, self._hold = path, most_bytes, hold
        self.beginnings = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.beginnings += 1
        self.state, self.reason, self.took_s = "running", "", 0.0
        self.refused = self.out_of_time = False
        self.changed, self.length = "", 0
        self.updated: float | None = None
        self.sessions: list[Session] = []
        self._folding = Folding()
        self._lines, self._inode = Lines(self._path), 0
        self.weight = 0

    @property
    def lines(self) -> int:
        """Number of lines read so far."""
        return self._lines.number

    def read_on(self, until: float | None = None) -> list[TrialRecord]:
        """Reads the lines appended since the last call and returns the records of all trials.

        An incomplete last line is left for the next call. A journal that has shrunk or was replaced is read from its
        first line. Without a journal there are no records.

        Args:
            until: the time (`time.monotonic`) after which to stop, once a chunk of lines was read; None = read all.

        Raises:
            NotYet: the time was over, or `hold` raised it; the next call continues from there.
            RequestError: a line is damaged, or the journal is too long, unreadable or not a regular file.
        """
        try:
            with open_in(self._path.parent, self._path.name) as file:
                status = os.fstat(file.fileno())
                if status.st_size < self._lines.size or (self._inode and status.st_ino != self._inode):
                    self._begin_anew()
                self._inode = status.st_ino
                if self._most_bytes is not None and status.st_size > self._most_bytes:
                    raise RequestError(
                        f"{self._path} has {status.st_size:,} bytes: the service reads at most {self._most_bytes:,}; "
                        f"`python -m tuner.report` reads any size"
                    )
                for event in self._lines.events(file, self._prepared(status.st_size, until)):
                    self._folding.add(event)
                    self._note(event)
        except FileNotFoundError:
            self._begin_anew()
        except DAMAGE as error:
            number = self.lines + 1
            self._begin_anew()  # the records may already contain half of the damaged event
            raise damaged_journal(self._path, number, error) from None
        except OSError as error:
            raise RequestError(f"{self._path} cannot be read: {error.strerror}") from None
        return self._folding.records()

    def _prepared(self, size: int, until: float | None) -> Callable[[list[bytes]], None]:
        """Returns the function that is called before lines are parsed: it checks the time and the memory."""
        begun = self.lines

        def prepare(lines: list[bytes]) -> None:
            if until is not None and time.monotonic() > until and self.lines > begun:
                share = f"{self._lines.size >> 20} of {size >> 20} MiB"
                raise NotYet(f"the experiment's journal is being read: {share} so far; ask again")
            heavier = self.weight + weight(b"".join(lines))  # line by line takes 0.1 s for 10,000 trials
            self._hold(heavier)
            self.weight = heavier

        return prepare

    def _note(self, event: Event) -> None:
        """Updates the search's state, reason and running time with an event."""
        kind, time = event["event"], event["time"]
        if kind in BEGINNINGS or not self.sessions:
            self.sessions.append(Session(time, self.took_s))
        if kind in BEGINNINGS:
            self.state, self.reason, self.refused, self.out_of_time = "running", "", False, False
        else:
            if kind == "scheduler_changed":
                self.changed = event.get("reason", "")[:MOST_CHANGED]
            if kind == "length_learned":
                self.length = event["epochs"]
            if kind == "experiment_finished":
                self.state, self.reason = event["state"], event.get("reason", "")
                self.refused, self.out_of_time = event.get("refused", False), event.get("out_of_time", False)
                self.state = "failed" if self.refused else self.state
            self.took_s += time - (self.updated if self.updated is not None else time)
        self.updated = time
