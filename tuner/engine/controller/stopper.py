"""Ends a whole search early: after its budget, a wrong request, a signal or repeated failures."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune import Stopper

from tuner.errors import RequestError, say

TELL_S = 60.0  # minimum seconds between two lines on standard error that say why the search waits


class SearchStopper(Stopper):
    """Ends the search as soon as it has a reason to; `over` says which budget is spent, '' if none is."""

    def __init__(self, over: Callable[[], str] = str) -> None:
        self.reason = ""
        self.interrupted = self.gave_up = self.out_of_time = False
        self.error: RequestError | None = None
        self._printed_at = -math.inf
        self._over = over

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles it with its Tuner, but tuner never reads that pickle

    def refuse(self, error: RequestError) -> None:
        """Stops the search because the request is wrong; the driver then raises the error."""
        self.error = self.error or error
        self.reason = self.reason or str(error)

    def interrupt(self, reason: str) -> None:
        """Stops the search because of a signal; the experiment can be resumed with `--resume`."""
        self.reason, self.interrupted = self.reason or reason, True

    def give_up(self, reason: str) -> None:
        """Stops the search because its first failures are alike; after a correction, `--resume` continues it."""
        self.reason, self.gave_up = self.reason or reason, True

    def use_up(self, reason: str) -> None:
        """Stops the search because its budget is spent."""
        if not self.reason:
            self.reason, self.out_of_time = reason, True

    def blocked(self, error: OSError, path: Path) -> bool:
        """May print why a write to disk failed; waits a second; returns whether to retry it (False after a signal)."""
        self.waiting(f"{path.parent}: {error.strerror or error}")
        time.sleep(1)
        return not self.interrupted

    def waiting(self, why: str) -> None:
        """Prints, at most once a minute, why the search or a trial waits until it can write to the disk."""
        now = time.monotonic()
        if now - self._printed_at > TELL_S:
            self._printed_at = now
            say("", f"tuner: {why}; the search waits until it can be written to; Ctrl-C stops it", to=sys.stderr)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if not self.reason and (spent := self._over()):
            self.use_up(spent)
        return bool(self.reason)
