"""The clock of a search: unix time that never jumps, so that durations and budgets hold if somebody sets the time."""

from __future__ import annotations

import time

# CLOCK_BOOTTIME also counts while a laptop sleeps, as its users do; only Linux has it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_offset = time.time() - time.clock_gettime(_CLOCK)


def now() -> float:
    """Returns the wall clock's time when this process began, in unix seconds, plus the seconds since then."""
    return _offset + time.clock_gettime(_CLOCK)


def not_before(earliest: float) -> None:
    """Sets this clock forward if it is behind a time: a session does not begin before the last one has ended."""
    global _offset
    _offset += max(0.0, earliest - now())
