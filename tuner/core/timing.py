"""Tells how long a search and its trials took, by the times of their events."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tuner.core.events import ENDINGS, Beginning, Event


class Session(NamedTuple):
    """One run of a search, up to its end or the next resume: the start in unix seconds, and earlier runs' seconds."""

    begun: float
    before_s: float
    max_epochs: int = 0  # 0 = unknown


class Sessions(list[Session]):
    """The sessions of a search, in their order."""

    updated: float | None = None  # time of the last event in unix seconds

    def apply(self, event: Event) -> None:
        if isinstance(event, Beginning):
            self.append(Session(event.time, self.took_s, event.max_epochs or 0))
        elif not self:
            self.append(Session(event.time, 0.0))
        self.updated = event.time

    @property
    def took_s(self) -> float:
        """Total seconds of all sessions, without the time between sessions."""
        return self[-1].before_s + (self.updated or 0.0) - self[-1].begun if self else 0.0


@dataclass(slots=True)
class Pace:
    """How fast a trial trains on its workers, without what the search stood still."""

    since: float = math.nan  # unix time of its last start or report; nan without a worker
    still_s: float = 0.0  # seconds since then in which the search stood still, which are no epoch's
    first_s: float = math.nan  # seconds from its last start to the first report after it; nan without that report
    between_s: float = 0.0  # sum of the seconds between two reports of one attempt
    gaps: int = 0  # their number

    def start(self, time: float) -> None:
        self.since, self.still_s, self.first_s = time, 0.0, math.nan

    def reach(self, time: float, *, reports: bool) -> float:
        """Notes a report, or an end; returns the seconds on the worker since the last start or report."""
        took_s, trained_s = max(0.0, time - self.since), max(0.0, time - self.since - self.still_s)
        self.since, self.still_s = time if reports else math.nan, 0.0
        if reports and math.isnan(self.first_s):
            self.first_s = trained_s
        elif reports:
            self.between_s, self.gaps = self.between_s + trained_s, self.gaps + 1
        return took_s


def seconds_left(
    trials: Iterable[tuple[str, int]],
    num_open: float,
    num_reports: int,
    took_s: float,
    budgets: Iterable[tuple[float, float]],
    scheduler: str,
) -> float | None:
    """Estimates by the pace so far when the last trial has ended or a budget is spent; None if nothing tells.

    Trials that have not ended are expected to train as many epochs as the ended ones did on average. With
    asha-promotion, most paused trials end when the search does, so they count as ended.

    Args:
        trials: the status, as users see it, and the epochs of each trial.
        num_open: how many trials have not ended; infinite if only a budget limits them.
        num_reports, took_s: the reports and the seconds of all sessions.
        budgets: what is used of each budget, and the budget.
    """
    known = list(trials)
    settled = (*ENDINGS, "paused") if scheduler == "asha-promotion" else ENDINGS
    lengths = [epochs for status, epochs in known if status in settled]
    rests = [max(0.0, limit - used) * took_s / used for used, limit in budgets if used > 0]
    if lengths and num_reports and num_open < math.inf:
        usual = sum(lengths) / len(lengths)
        num_left = num_open - sum(status == "paused" for status, _ in known if "paused" in settled)
        trained = sum(min(usual, epochs) for status, epochs in known if status in {"running", "paused"} - {*settled})
        rests.append(max(0.0, usual * num_left - trained) * took_s / num_reports)
    return min(rests, default=None)
