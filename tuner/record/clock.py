"""The clock of a search: unix time that ignores changes of the machine's clock, so that durations and budgets hold."""

from __future__ import annotations

import time

# CLOCK_BOOTTIME includes the time during which the machine sleeps; only Linux has it.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_offset = time.time() - time.clock_gettime(_CLOCK)


def now() -> float:
    """Returns unix seconds: the wall clock's time at this module's import plus the seconds since, or `not_before`'s."""
    return _offset + time.clock_gettime(_CLOCK)


def not_before(earliest: float) -> None:
    """Sets this clock forward if it is behind a time: a session does not begin before the last one has ended."""
    global _offset
    _offset += max(0.0, earliest - now())
