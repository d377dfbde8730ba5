"""Decides which failed trials are tried again, and counts; `controller.py` puts those back into the queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.engine.failures import kind_of
from tuner.record.events import Event


@dataclass(frozen=True)
class Failure:
    """One failure of a trial: its kind and one line, whether the trial goes on, and after which epoch (0 = anew)."""

    kind: str
    error: str
    will_retry: bool
    from_epoch: int = 0


class Retries:
    """Judges failures. A kind that is tried again has its own count in each trial, over all of its sessions:

    * worker_lost, `max_failures` times: a killed process, a lost node or one reclaimed, a host out of memory. Not the
      trial's fault, so its last checkpoint goes on elsewhere; bounded, because a trial may be what kills its worker.
    * cuda, once, in a new process: the context is poisoned for good, and the cause may have been a neighbour.
    * oom, user and nan, never: the same setting with the same seed fails again in the same place. What memory can be
      saved has been saved inside (`--on-oom shrink`), and a hang costs its whole timeout each time.

    Args:
        max_failures: lost workers that a trial survives, at least 0.
        history: the events of earlier sessions, whose retries count.
    """

    def __init__(self, max_failures: int, history: Iterable[Event] = ()) -> None:
        self._most = {"worker_lost": max_failures, "cuda": 1}
        failed = [event for event in history if event["event"] == "trial_failed"]
        self._used = Counter((e["trial"], e["kind"]) for e in failed if e["will_retry"])
        self.last: dict[str, Failure] = {}

    def judge(self, trial_id: str, error: object, from_epoch: int) -> Failure:
        """Counts one failure and says whether the trial goes on after `from_epoch`; `last` keeps it.

        Args:
            error: the exception that Ray gave.
            from_epoch: the epoch of the trial's last checkpoint, 0 where it has none.
        """
        kind, text = kind_of(error)
        used, most = self._used[trial_id, kind], self._most.get(kind, 0)
        will_retry = used < most
        if will_retry:
            self._used[trial_id, kind] += 1
        elif used:
            text = f"{text} (tried again {'once' if used == 1 else f'{used} times'} before)"
        self.last[trial_id] = Failure(kind, text, will_retry, from_epoch if will_retry else 0)
        return self.last[trial_id]
