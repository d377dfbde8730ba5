"""One memory budget for the records of all experiments, including those that are still being read."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from tuner.errors import RequestError
from tuner.record.reading import NotYet

# MOST_MEMORY is in bytes as `files.weight` estimates them. 230,000 trials of three reports and decisions reach it; they
# take 1.5 GB as measured.
MOST_MEMORY = 2 << 30
LEAST_WEIGHT = 100_000  # bytes counted for an experiment, even if its records take less
IDLE_S = 30.0  # seconds; partly read records that nobody reads on may be dropped after this time


class Crowded(NotYet):
    """Raised if a larger experiment that is being read needs the memory; the caller must drop what it has read."""


class Holder(Protocol):
    """An object that keeps one experiment's records in memory."""

    folder: Path

    @property
    def is_whole(self) -> bool:
        """Whether the experiment has been read completely and its records are in memory."""

    def forget(self) -> bool:
        """Drops its records and returns True; returns False if the experiment is being read."""


class _Use(NamedTuple):
    weight: int
    time: float


class Memory:
    """Counts the memory of all holders and drops records to stay below MOST_MEMORY; thread-safe.

    Args:
        stopping: returns True once the service shuts down; nothing more is read then.
    """

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self._stopping = stopping
        self._lock = threading.Lock()
        self._uses: OrderedDict[Holder, _Use] = OrderedDict()  # the most recently used holder is last
        self._total = 0

    @property
    def total(self) -> int:
        """Estimated bytes that all holders use."""
        return self._total

    def hold(self, holder: Holder, weight: int) -> None:
        """Sets a holder's reserved memory to `weight` bytes; other holders drop their records if necessary.

        A holder keeps the records of one experiment. Completely read records are dropped first, the least recently
        used ones before the others. Then partly read records are dropped: those unused for IDLE_S, and those smaller
        than this holder's. The largest partly read records in use are kept, so that one experiment is read to its end.

        Raises:
            RequestError: this holder alone would exceed MOST_MEMORY.
            NotYet: the service shuts down, or other experiments that are being read use the memory.
        """
        if self._stopping():
            raise NotYet("the service is shutting down")
        if weight > MOST_MEMORY:
            raise RequestError(
                f"{holder.folder} has too many values to be shown here: they need more than {MOST_MEMORY >> 20:,} "
                f"MiB of memory; run python -m tuner.report, which accepts more"
            )
        with self._lock:
            self._set(holder, weight)
            if self._total <= MOST_MEMORY:
                return
            for other in self._forgettable(holder):
                if self._total <= MOST_MEMORY - MOST_MEMORY // 8:  # an eighth is freed for the next calls
                    break
                if other.forget():
                    self._set(other, 0)
            if self._total > MOST_MEMORY:
                heavier = any(self._is_lighter(holder, other) for other in self._uses if not other.is_whole)
                kind = Crowded if heavier else NotYet
                raise kind("other experiments that are being read use the memory; send the request again")

    def settle(self, holder: Holder, weight: int) -> None:
        """Records how many bytes of memory a holder's records use now; 0 = it holds none."""
        with self._lock:
            self._set(holder, weight)

    def touch(self, holder: Holder) -> None:
        """Marks the holder's records as the most recently used, so that they are dropped last, if it has any."""
        with self._lock:
            if holder in self._uses:
                self._uses.move_to_end(holder)

    def _set(self, holder: Holder, weight: int) -> None:
        before = self._uses.pop(holder, None)
        self._total -= before.weight if before else 0
        if weight:
            self._uses[holder] = _Use(max(weight, LEAST_WEIGHT), time.monotonic())
            self._total += self._uses[holder].weight

    def _forgettable(self, holder: Holder) -> list[Holder]:
        """Returns the holders whose records may be dropped to make room for this holder's, in the order to drop them.

        Completely read experiments come first, the least recently used one first. Then come partly read ones: those
        unused for IDLE_S, then those smaller than this one.
        """
        whole = [other for other in self._uses if other is not holder and other.is_whole]
        half = [other for other in self._uses if other is not holder and not other.is_whole]
        long_ago = time.monotonic() - IDLE_S
        idle = [other for other in half if self._uses[other].time < long_ago]
        lighter = [other for other in half if other not in idle and self._is_lighter(other, holder)]
        return [*whole, *idle, *lighter]

    def _is_lighter(self, one: Holder, other: Holder) -> bool:
        return one is not other and (self._uses[one].weight, id(one)) < (self._uses[other].weight, id(other))
