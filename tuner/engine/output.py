"""Limits how much a trial's output takes on the disk, so that one trial cannot fill the disk for all others.

A full disk does not fail a trial that prints: its output is dropped and the trial continues. This file also drops Ray's
own long line about each dead worker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MOST_BYTES = 10 * 1024 * 1024  # limit per output stream and start of a trial: 100,000 lines of 100 characters
DEAD = "A worker died or was killed while executing"  # how Ray's line starts


class Bounded:
    """A replacement for a stream's `write`: passes text on up to a limit, then writes one note and drops the rest.

    It keeps the beginning because that shows what the trial ran with. The journal and error.txt show how the trial
    ended.
    """

    def __init__(self, write: Callable[[str], Any], most_bytes: int = MOST_BYTES) -> None:
        self._write, self._left = write, most_bytes
        self._note = f"\n[what follows was not kept: a trial's output is cut after {most_bytes:,} bytes]\n"

    def __call__(self, text: str) -> int:
        if self._left > 0:
            self._left -= len(text.encode(errors="replace"))
            with contextlib.suppress(OSError):
                self._write(text if self._left >= 0 else text[: self._left])
                if self._left <= 0:
                    self._write(self._note)
        return len(text)


def flushed(flush: Callable[[], Any]) -> Callable[[], None]:
    """Returns a replacement for a stream's `flush` that ignores a full disk."""

    def flush_if_there_is_room() -> None:
        with contextlib.suppress(OSError):
            flush()

    return flush_if_there_is_room


@contextmanager
def no_reports_of_dead_workers() -> Iterator[None]:
    """Drops Ray's line of 1,000 characters about each dead worker; tuner's own line names the trial and the cause."""
    from ray._private import worker

    theirs = worker.print_to_stdstream

    def shown(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") != "raylet" or not any(DEAD in line for line in data["lines"]):
            theirs(data, ignore_prefix)

    worker.print_to_stdstream = shown
    try:
        yield
    finally:
        worker.print_to_stdstream = theirs
