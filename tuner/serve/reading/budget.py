"""One memory budget for the records of all experiments, including those that are still being read."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Protocol

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


class MemoryBudget:
    """Counts the memory of all holders and drops records to stay below MOST_MEMORY; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses: dict[Holder, tuple[int, float]] = {}  # weight and time of the last use; the latest use is last
        self.total = 0  # estimated bytes that all holders use

    def hold(self, holder: Holder, weight: int) -> None:
        """Sets a holder's reserved memory to `weight` bytes; other holders drop their records if necessary.

        Completely read records are dropped first, the least recently used ones before the others. Then partly read
        records are dropped: those unused for IDLE_S, and those smaller than this holder's. The largest partly read
        records in use are kept, so that one experiment is read to its end.

        Raises:
            RequestError: this holder alone would exceed MOST_MEMORY.
            NotYet: other experiments that are being read use the memory.
        """
        if weight > MOST_MEMORY:
            raise RequestError(
                f"{holder.folder} has too many values to be shown here: they need more than {MOST_MEMORY >> 20:,} "
                f"MiB of memory; run python -m tuner.report, which accepts more"
            )
        with self._lock:
            self._set(holder, weight)
            if self.total <= MOST_MEMORY:
                return
            rank = self._rank(holder)
            others = [other for other in self._uses if other is not holder]
            for other in sorted((other for other in others if self._rank(other) < max(1, rank)), key=self._rank):
                if self.total <= MOST_MEMORY - MOST_MEMORY // 8:  # an eighth is freed for the next calls
                    return
                if other.forget():
                    self._set(other, 0)
            if self.total > MOST_MEMORY:
                kind = Crowded if any(self._rank(other) >= rank for other in others) else NotYet
                raise kind("other experiments that are being read use the memory; send the request again")

    def settle(self, holder: Holder, weight: int) -> None:
        """Records how many bytes of memory a holder's records use now; 0 = it holds none."""
        with self._lock:
            self._set(holder, weight)

    def touch(self, holder: Holder) -> None:
        """Marks the holder's records as the most recently used, so that they are dropped last, if it has any."""
        with self._lock:
            if holder in self._uses:
                self._uses[holder] = self._uses.pop(holder)

    def _set(self, holder: Holder, weight: int) -> None:
        self.total -= self._uses.pop(holder, (0, 0.0))[0]
        if weight:
            self._uses[holder] = max(weight, LEAST_WEIGHT), time.monotonic()
            self.total += self._uses[holder][0]

    def _rank(self, holder: Holder) -> int:
        """Returns 0 if a holder's records may be dropped for any other's, or else the weight of its partial records."""
        weight, used = self._uses.get(holder, (0, 0.0))
        return 0 if holder.is_whole or time.monotonic() - used >= IDLE_S else weight
