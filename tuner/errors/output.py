"""Limits what the user's code prints: a trial must not fill the disk for all others, nor a function the terminal.

A full disk does not fail a trial that prints: its output is dropped and the trial continues.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

MOST_BYTES = 10 * 1024 * 1024  # limit per output stream and start of a trial: 100,000 lines of 100 characters
MOST_SHOWN = 1024 * 1024  # limit per output stream and call of the user's code by the driver: 10,000 such lines


class Bounded:
    """A replacement for a stream's `write`: passes text on up to a limit, then writes one note and drops the rest."""

    def __init__(self, write: Callable[[str], Any], most_bytes: int = MOST_BYTES, whose: str = "a trial") -> None:
        self._write, self._left = write, most_bytes
        self._note = f"\n[what follows was not kept: the output of {whose} is cut after {most_bytes:,} bytes]\n"

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


@contextlib.contextmanager
def bounded_output() -> Iterator[None]:
    """Limits what the space's functions print in the context to MOST_SHOWN bytes on each of the output streams."""
    with contextlib.ExitStack() as stack:
        for stream in (sys.stdout, sys.stderr):
            stack.callback(setattr, stream, "write", stream.write)
            stream.write = Bounded(stream.write, MOST_SHOWN, "the space's functions")  # type: ignore[method-assign]
        yield
