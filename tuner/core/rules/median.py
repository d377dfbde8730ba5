"""The median rule of Golovin et al., "Google Vizier", KDD 2017, as in Ray's `MedianStoppingRule` (2.60.0)."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import defaultdict
from typing import Any

import numpy as np

from tuner.core.rules.rule import Action, Decisions, Rule, RuleDecision
from tuner.spec.experiment import Experiment


class Median(Rule):
    """Stops a trial whose best value is worse than the median of the other trials' running means at the same epoch.

    Ray computes the running means anew at each report (5 ms with 100 trials); here a report costs little.
    A trial continues if fewer than LEAST other trials have a value to compare. Ray would pause it at each epoch while
    other trials wait; a pause costs a restart, and all trained epochs if the trial saves no checkpoint.
    """

    LEAST = 3  # minimum number of other trials at an epoch; with fewer, no trial is stopped

    def __init__(self, experiment: Experiment, brackets: int = 1) -> None:
        super().__init__(experiment)
        self._grace = experiment.grace_period
        self._best: dict[int, float] = defaultdict(lambda: math.inf)
        # Trial -> its values from the grace period on. numpy reads an array without a copy: a mean of 10,000 takes
        # 10 us instead of 400 us. numpy sums pairwise; a running sum would differ in the last digit.
        self._values: dict[int, array[float]] = defaultdict(lambda: array("d"))
        # trial -> epochs in ascending order -> the trial's running mean at the epoch
        self._own: dict[int, dict[int, float]] = defaultdict(dict)
        # epoch -> the running means at that epoch, one per trial, in ascending order
        self._means: dict[int, list[float]] = defaultdict(list)

    def judge(self, trial: int, epoch: int, value: Any, *, saved: bool = True) -> tuple[RuleDecision, Decisions]:
        self._best[trial] = min(self._sign * value, self._best[trial])
        if epoch < self._grace:
            return RuleDecision(), []
        means = self._means[epoch]
        median, recorded, half = None, len(means), len(means) // 2
        if recorded >= self.LEAST:
            median = means[half] if recorded % 2 else float(np.mean(means[half - 1 : half + 1]))
        self._record(trial, epoch, self._sign * value)
        best = self._best[trial]
        own, cutoff = self._sign * best, None if median is None else self._sign * median
        action: Action = "stop" if median is not None and best > median else "continue"
        decision = RuleDecision(action, rung=epoch, cutoff=cutoff, recorded=recorded, compared=own)
        return self._against_cutoff(f"best {self._metric}", own, decision), []

    def ended(self, trial: int, epoch: int, value: Any) -> Decisions:
        if value is not None and epoch >= self._grace:
            self._record(trial, epoch, self._sign * value)  # as in Ray, a value already judged counts twice
        return []

    def _record(self, trial: int, epoch: int, value: float) -> None:
        own, values = self._own[trial], self._values[trial]
        values.append(value)
        if epoch in own:
            means = self._means[epoch]
            del means[bisect_left(means, own.pop(epoch))]
        last = next(reversed(own), epoch)
        # Epochs without a report keep the last mean.
        new = dict.fromkeys(range(last + 1, epoch), own.get(last, 0.0)) | {epoch: float(np.mean(np.frombuffer(values)))}
        for at, mean in new.items():
            insort(self._means[at], mean)
        own |= new
