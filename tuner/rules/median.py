"""The median rule of Golovin et al., "Google Vizier", KDD 2017, as in Ray's `MedianStoppingRule` (2.60.0)."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import defaultdict

import numpy as np

from tuner.rules.rule import Decisions, Rule, RuleDecision
from tuner.spec.experiment import Experiment


class Median(Rule):
    """Stops a trial whose best value is worse than the median of the other trials' running means at the same epoch.

    A report costs little, however many there were: Ray computes the running means anew at each (5 ms with 100 trials).
    A trial continues if fewer than LEAST others have a value to compare. Ray pauses such a trial after each epoch while
    others wait, which costs a restart per epoch, and all trained epochs if the trial saves no checkpoint.
    """

    LEAST = 3  # minimum number of other trials at an epoch; with fewer, nothing is compared

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment)
        self._grace = experiment.grace_period
        self._curves: dict[int, _Curve] = defaultdict(_Curve)  # trial -> its reports from the grace period on
        self._best: dict[int, float] = defaultdict(lambda: math.inf)
        # trial -> epochs in ascending order -> the trial's running mean at the epoch
        self._own: dict[int, dict[int, float]] = defaultdict(dict)
        # epoch -> the running means at that epoch, one per trial, in ascending order
        self._means: dict[int, list[float]] = defaultdict(list)

    def judge(self, trial: int, epoch: int, value: float) -> RuleDecision:
        self._forget(trial, epoch)
        median, recorded = self._median(epoch)
        self._record(trial, epoch, self._sign * value)
        if epoch < self._grace:
            return RuleDecision()
        best = self._best[trial]
        own, cutoff = self._sign * best, None if median is None else self._sign * median
        decision = RuleDecision(
            "stop" if median is not None and best > median else "continue",
            rung=epoch,
            cutoff=cutoff,
            recorded=recorded,
            compared=own,
        )
        return self._against_cutoff(f"best {self._metric}", own, decision)

    def ended(self, trial: int, epoch: int, value: float | None) -> Decisions:
        if value is not None:
            self._record(trial, epoch, self._sign * value)  # as in Ray, a completed trial's last result counts twice
        return []

    def _median(self, epoch: int) -> tuple[float | None, int]:
        """The median of the running means at an epoch (None for fewer than LEAST), and their number."""
        means = self._means[epoch]
        half = len(means) // 2
        if len(means) < self.LEAST:
            return None, len(means)
        return (means[half] if len(means) % 2 else float(np.mean(means[half - 1 : half + 1]))), len(means)

    def _record(self, trial: int, epoch: int, value: float) -> None:
        self._best[trial] = min(value, self._best[trial])
        self._forget(trial, epoch)
        if epoch >= self._grace:
            own, curve = self._own[trial], self._curves[trial]
            curve.add(epoch, value)
            last = next(reversed(own), None)
            between = range(last + 1, epoch) if last is not None else ()  # epochs without a report keep the last mean
            known = own[last] if last is not None else math.nan
            for at, mean in [*((at, known) for at in between), (epoch, curve.mean(epoch))]:
                own[at] = mean
                insort(self._means[at], mean)

    def _forget(self, trial: int, epoch: int) -> None:
        """Removes a trial's means from this epoch on: a trial that restarted has not yet reached later epochs again."""
        own = self._own[trial]
        while own and (later := next(reversed(own))) >= epoch:
            means = self._means[later]
            del means[bisect_left(means, own.pop(later))]


class _Curve:
    """A trial's reports in order of arrival, and their mean as Ray computes it."""

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._values = array("d")  # numpy reads it without a copy: a mean of 10,000 takes 10 us, a list's 400 us
        self._highest = 0

    def add(self, epoch: int, value: float) -> None:
        self._epochs.append(epoch)
        self._values.append(value)
        self._highest = max(self._highest, epoch)

    def mean(self, epoch: int) -> float:
        """The mean of all values up to an epoch. numpy adds in pairs; a running sum would differ in the last digit."""
        if epoch >= self._highest:
            return float(np.mean(np.frombuffer(self._values)))
        return float(np.mean([value for at, value in zip(self._epochs, self._values, strict=True) if at <= epoch]))
