"""One budget of memory for the records of all experiments, those that are being read among them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from tuner.errors import RequestError
from tuner.record.reading import NotYet

MOST_MEMORY = 2 << 30  # bytes by `files.weight`: 230,000 trials of three reports and decisions: 1.5 GB in fact
LEAST_WEIGHT = 100_000  # bytes, of an experiment whose files are small
IDLE_S = 30.0  # after which records that are half read, and that nobody reads on, may be forgotten


class Crowded(NotYet):
    """The memory is needed for others that are read; what has been read of this one is to be forgotten."""


class Holder(Protocol):
    """Whoever keeps one experiment's records in memory."""

    folder: Path

    @property
    def is_whole(self) -> bool:
        """Whether all of the experiment has been read."""

    def forget(self) -> bool:
        """Gives up its records and says so; False where they are being read."""


class _Held(NamedTuple):
    weight: int
    time: float


class Memory:
    """Counts what all holders have in memory; safe to use from several threads.

    Args:
        stopping: whether the service ends: then nothing more is read.
    """

    def __init__(self, stopping: Callable[[], bool] = lambda: False) -> None:
        self._stopping = stopping
        self._lock = threading.Lock()
        self._held: OrderedDict[Holder, _Held] = OrderedDict()  # the one used last at the end
        self._total = 0

    @property
    def total(self) -> int:
        """Bytes that all holders have."""
        return self._total

    def hold(self, holder: Holder, weight: int) -> None:
        """Makes room for `weight` bytes of a holder, of which it may have some already; others forget theirs.

        Whole records go first, those used longest ago before others. Of several that are half read, the one that has
        been read furthest stays: one of them is always read to its end.

        Raises:
            RequestError: it alone would take more than there is for all.
            NotYet: the service ends, or others that are being read have the memory.
        """
        if self._stopping():
            raise NotYet("the service is ending")
        if weight > MOST_MEMORY:
            raise RequestError(
                f"{holder.folder} holds too many values to be shown here: they take more than {MOST_MEMORY >> 20:,} "
                f"MiB of memory; `python -m tuner.report` takes more"
            )
        with self._lock:
            self._set(holder, weight)
            if self._total <= MOST_MEMORY:
                return
            for other in self._forgettable(holder):
                if self._total <= MOST_MEMORY - MOST_MEMORY // 8:  # room for some time
                    break
                if other.forget():
                    self._set(other, 0)
            if self._total > MOST_MEMORY:
                heavier = any(self._is_lighter(holder, other) for other in self._held if not other.is_whole)
                kind = Crowded if heavier else NotYet
                raise kind("the memory is taken by others that are being read; ask again")

    def settle(self, holder: Holder, weight: int) -> None:
        """Notes what a holder has by now; 0 = nothing."""
        with self._lock:
            self._set(holder, weight)

    def touch(self, holder: Holder) -> None:
        """Notes that the holder's records have been asked for."""
        with self._lock:
            if holder in self._held:
                self._held.move_to_end(holder)

    def _set(self, holder: Holder, weight: int) -> None:
        before = self._held.pop(holder, None)
        self._total -= before.weight if before else 0
        if weight:
            self._held[holder] = _Held(max(weight, LEAST_WEIGHT), time.monotonic())
            self._total += self._held[holder].weight

    def _forgettable(self, holder: Holder) -> list[Holder]:
        """Those that may forget their records for this one, in that order."""
        whole = [other for other in self._held if other is not holder and other.is_whole]
        half = [other for other in self._held if other is not holder and not other.is_whole]
        long_ago = time.monotonic() - IDLE_S
        idle = [other for other in half if self._held[other].time < long_ago]
        lighter = [other for other in half if other not in idle and self._is_lighter(other, holder)]
        return [*whole, *idle, *lighter]

    def _is_lighter(self, one: Holder, other: Holder) -> bool:
        return one is not other and (self._held[one].weight, id(one)) < (self._held[other].weight, id(other))
