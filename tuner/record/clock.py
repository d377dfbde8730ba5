"""The clock of a search: unix time that ignores changes of the machine's clock, so that durations and budgets hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# CLOCK_BOOTTIME includes the time during which the machine sleeps; only Linux has it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_offset = time.time() - time.clock_gettime(_CLOCK)
BEAT_S = 1.0  # seconds between two beats of `standstills`
STILL_S = 5.0  # without a beat for so long, this process stood still; on a busy machine a beat is some 0.1 s late


def now() -> float:
    """Returns unix seconds: the wall clock's time at this module's import plus the seconds since, or `not_before`'s."""
    return _offset + time.clock_gettime(_CLOCK)


def not_before(earliest: float) -> None:
    """Sets this clock forward if it is behind a time: a session does not begin before the last one has ended."""
    global _offset
    _offset += max(0.0, earliest - now())


@contextmanager
def standstills() -> Iterator[Callable[[], float]]:
    """Notices when this process stands still: the machine sleeps, or a signal has stopped it (Ctrl-Z).

    Yields a function that returns for how many seconds it stood still since the last call; 0 if it did not.
    """
    lock, ended = threading.Lock(), threading.Event()
    last, still_s = time.clock_gettime(_CLOCK), 0.0

    def beat() -> None:
        nonlocal last, still_s
        with lock:
            before, last = last, time.clock_gettime(_CLOCK)
            still_s += last - before if last - before > STILL_S else 0.0

    def beat_on() -> None:
        while not ended.wait(BEAT_S):
            beat()

    def take() -> float:
        nonlocal still_s
        beat()  # after a standstill, the caller may run before the thread does
        with lock:
            taken, still_s = still_s, 0.0
        return taken

    thread = threading.Thread(target=beat_on, name="standstills", daemon=True)
    thread.start()
    try:
        yield take
    finally:
        ended.set()
        thread.join()
