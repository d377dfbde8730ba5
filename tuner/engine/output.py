"""What a trial prints, bounded: one that prints megabytes must not fill the disk of the others.

And never a reason to fail: what it prints while the disk is full is lost, and the trial goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

MOST_BYTES = 10 * 1024 * 1024  # a stream of a trial: 100,000 lines of 100 characters


class Bounded:
    """Takes the place of a stream's `write`: passes text on up to a limit, then says so once and drops the rest.

    The beginning is kept and not the end: it says what the trial ran with, and how a trial ended is in the journal
    and in error.txt.
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
    """Takes the place of a stream's `flush`: as it is, but where there is no room."""

    def flush_if_there_is_room() -> None:
        with contextlib.suppress(OSError):
            flush()

    return flush_if_there_is_room
