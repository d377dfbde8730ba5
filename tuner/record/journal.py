"""Writes the journal: one JSON event per line, append only. Records, tables and figures are derived from it."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.core.events import Event, Report, StoodStill, kind_of, trial_of
from tuner.errors import RequestError
from tuner.record import clock
from tuner.record.format import FIELD, FORMAT
from tuner.record.lines import MOST_SEAL, MOST_TIME, text_of
from tuner.record.reading import scan
from tuner.record.storage.files import MOST_BYTES, open_in, replacing, sync, sync_open
from tuner.record.storage.made import shorten

MOST_UNSYNCED = 1 << 20  # maximum bytes of lines between two syncs: about 5,000 lines
LONG = 10_000  # if a report is too long for a line, a note replaces each metric of this many characters or more


class Journal:
    """Appends events, each as one line in one write call, so that a killed process can damage only the last line.

    Opening removes an incomplete last line. It also removes a damaged line and all after it, and lines after the first
    `most_events`, but first copies the file.

    A killed process loses no line; a power failure may lose or damage those after the last `sync`. So whoever does
    something that a resume must know (stops a trial, deletes a checkpoint) calls `sync` first: one sync for all lines
    since the last. `write` calls it after MOST_UNSYNCED bytes of lines.

    Attributes:
        blocked: called when a write or sync fails (full disk); waits, then returns whether to retry. None = raise it.
        lost: whether `blocked` returned False; `write` then appends nothing more, so that the journal has no gap.
        listeners: called with each event that `write` does not skip, before the write, also when the journal is lost.
        stood_still: returns how many seconds the search stood still since its last call; `write` journals them first.
        repeated: `key_of` events that a replay produces again and `write` skips, and their numbers; None: skip all.
    """

    def __init__(self, path: Path, most_events: int | None = None) -> None:
        self._path = path
        self.blocked: Callable[[OSError, Path], bool] | None = None
        self.lost = False
        self.listeners: list[Callable[[Event], None]] = []
        self.stood_still: Callable[[], float] = float
        self.repeated: Counter[tuple[str, str | None, Any]] | None = Counter()
        # These flags create a missing file, and wait for no pipe and follow no link.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        self._file = open(fd, "ab", buffering=0)
        scanned = scan(path, most_events)
        with open_in(path.parent, path.name) as whole:
            whole.seek(scanned.size)
            if scanned.damage or b"\n" in whole.read(MOST_BYTES):
                whole.seek(0)
                with replacing(path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")) as copy:
                    shutil.copyfileobj(whole, copy)
        if scanned.size < os.fstat(fd).st_size:
            shorten(fd, scanned.size)
        self._size, self._chain = scanned.size, scanned.chain
        self._unsynced, self._is_failed = bytearray(), False  # the lines since the last sync; whether that failed
        sync_open(fd)  # lines that a killed session wrote may not be on the disk either
        if scanned.events:
            clock.not_before(min(scanned.events[-1].time, MOST_TIME - 1e9))
        sync(path.parent)  # its name in the folder

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles its Tuner and all objects that the Tuner refers to, but tuner never reads that pickle

    def write(self, event: Event) -> None:
        """Appends one event with the current time, unless it is in `repeated`."""
        key = key_of(event)
        if self.repeated is None:
            return
        if self.repeated[key]:
            self.repeated[key] -= 1
            return
        if not isinstance(event, StoodStill) and (seconds := self.stood_still()):
            self.write(StoodStill(round(seconds, 3)))
        event = event._replace(time=round(clock.now(), 3), order=self._chain.number + 1)
        for listener in self.listeners:
            listener(event)
        own = {} if self._size else {FIELD: FORMAT}
        text = text_of(event, **own)
        if len(text) + MOST_SEAL > MOST_BYTES:  # readers refuse such a line
            text = text_of(_shortened(event, len(text)), **own)
        sealed = self._chain.line_of(text)
        self._until_it_works(lambda: self._append(sealed))
        if len(self._unsynced) > MOST_UNSYNCED:
            self.sync()

    def _until_it_works(self, action: Callable[[], None]) -> None:
        while not self.lost:
            try:
                return action()
            except OSError as error:
                if self.blocked is None:
                    raise
                self.lost = not self.blocked(error, self._path)

    def _append(self, line: bytes) -> None:
        self._check_place()
        if self._file.write(line) != len(line):
            shorten(self._file.fileno(), self._size)  # a full disk took only part of the line; this removes that part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += len(line)
        self._unsynced += line

    def _check_place(self) -> None:
        # An open file accepts lines even after its folder was moved or deleted, but `--resume` would not find them.
        # So each write first checks that the path still leads to the open file, which takes 2 us.
        here, there = os.fstat(self._file.fileno()), os.stat(self._path)
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise FileNotFoundError(errno.ENOENT, "another file lies there now", str(self._path))

    def sync(self) -> bool:
        """Waits until all lines are on the disk (0.3 ms on an SSD, 10 ms on a hard disk); False if the journal is lost.

        Does nothing if there is no new line.
        """
        if self._unsynced:
            self._until_it_works(self._sync)
        return not self.lost

    def _sync(self) -> None:
        # After a failed sync, the next one may succeed without writing these lines: Linux marks their pages as clean,
        # and NFS drops them. So they are written again first.
        if self._is_failed:
            self._check_place()
            with open(self._path, "r+b", buffering=0) as file:  # no O_APPEND, with which Linux ignores the position
                file.seek(self._size - len(self._unsynced))
                file.write(self._unsynced)
        self._is_failed = True
        sync_open(self._file.fileno())
        self._is_failed = False
        self._unsynced.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a failed sync must not keep the file open
            self._sync()
        self._file.close()


def key_of(event: Event) -> tuple[str, str | None, int | None]:
    """Returns what a replay knows an event by: its kind, trial and epoch."""
    return kind_of(event), trial_of(event), getattr(event, "epoch", None)


def _shortened(event: Event, size: int) -> Report:
    """Replaces a report's long metrics by notes; RequestError for other events, which a resume needs unshortened."""
    if not isinstance(event, Report):
        raise RequestError(
            f"trial {trial_of(event)}: {kind_of(event)} takes {size:,} bytes in the journal, at most {MOST_BYTES:,}; "
            f"in the space's params, name each large value by a short text, and let the training code look up the "
            f"value by that text"
        )
    kept = {name: value if len(str(value)) < LONG else f"left out: {type(value).__name__} of {len(str(value)):,} "
            f"characters" for name, value in event.metrics.items()}  # fmt: skip
    return event._replace(metrics=kept)
