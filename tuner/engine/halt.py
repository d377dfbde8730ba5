"""The one way in which a whole search ends early: a time budget, a request found to be wrong, a signal."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

from ray.tune import Stopper

from tuner.errors import RequestError

TELL_S = 60.0


class Halt(Stopper):
    """Ray asks `stop_all` after each event; once a reason is there, every trial is stopped.

    Args:
        budget: what the user wrote ("30m"); `left_s` is what remains of it, None = no limit.
    """

    def __init__(self, budget: str = "", left_s: float | None = None) -> None:
        self.reason = ""
        self.interrupted = False
        self.error: RequestError | None = None
        self._told = -math.inf
        self._budget = budget
        self._deadline = None if left_s is None else time.monotonic() + left_s

    def refuse(self, error: RequestError) -> None:
        """The request turned out to be wrong: stop, and let the driver raise the error."""
        self.error = self.error or error
        self.reason = self.reason or str(error)

    def interrupt(self, reason: str) -> None:
        """A person or the system asks to stop; what is there is kept for `--resume`."""
        self.reason, self.interrupted = self.reason or reason, True

    def left_s(self) -> float | None:
        """Seconds of the budget left; None = no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def blocked(self, error: OSError, path: Path) -> bool:
        """The disk is full, read-only or gone: waits, and says whether to try again.

        While it waits the search stands still; trials wait for the answers to their reports.
        """
        self.waiting(f"{path.parent}: {error.strerror or error}")
        time.sleep(1)
        return not self.interrupted

    def waiting(self, why: str) -> None:
        """Tells, once a minute, that the search cannot go on."""
        now = time.monotonic()
        if now - self._told > TELL_S:
            self._told = now
            print(f"\ntuner: {why}; the search waits until it can be written to; Ctrl-C stops it", file=sys.stderr)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if not self.reason and self._deadline is not None and time.monotonic() >= self._deadline:
            self.reason = f"the time budget of {self._budget} is over"
        return bool(self.reason)
