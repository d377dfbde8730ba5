"""Decides which failed trials are retried, and counts the retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from tuner.engine.controller.failures import kind_of, oom_kills, with_cause
from tuner.record.events import Event


@dataclass(frozen=True)
class Failure:
    """A trial's failure: kind, one-line text, whether the trial is retried, and from which epoch (0 = the start)."""

    kind: str
    error: str
    will_retry: bool
    from_epoch: int = 0


class Retries:
    """Decides by the kind of a failure whether its trial is retried.

    Each trial has one count of retries per kind, over all sessions.

    * worker_lost is retried `max_failures` times: a process was killed, a node was lost or reclaimed, or a host ran
      out of memory. The number is limited because the trial itself may kill its worker.
    * cuda is retried once, in a new process: another trial on the GPU may be the cause.
    * oom and user are never retried: the same setting with the same seed usually fails again at the same place. A hang
      counts as user: each retry would cost its whole timeout.

    Args:
        max_failures: how many lost workers a trial survives, at least 0.
        history: the events of earlier sessions; their retries count too.
        here: whether all workers run on this machine, whose kernel then says if memory ran out.
    """

    def __init__(self, max_failures: int, history: Iterable[Event] = (), here: bool = False) -> None:
        self._killed_before = oom_kills() if here else None
        self._most = {"worker_lost": max_failures, "cuda": 1}
        failed = [event for event in history if event["event"] == "trial_failed"]
        self._used = Counter((e["trial"], e["kind"]) for e in failed if e["will_retry"])

    def judge(self, trial_id: str, error: Exception, from_epoch: int) -> Failure:
        """Returns a failure with its kind and `will_retry`; counts the retry, if there is one.

        Args:
            error: the exception that Ray caught.
            from_epoch: the epoch of the trial's last checkpoint; 0 = it has none.
        """
        kind, text = kind_of(error)
        if self._killed_before is not None:
            text = with_cause(text, (oom_kills() or 0) - self._killed_before)
        used, most = self._used[trial_id, kind], self._most.get(kind, 0)
        will_retry = used < most
        if will_retry:
            self._used[trial_id, kind] += 1
        elif used:
            text = f"{text} (tried again {'once' if used == 1 else f'{used} times'} before)"
        return Failure(kind, text, will_retry, from_epoch if will_retry else 0)
