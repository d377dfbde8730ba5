"""The stopping rules of Ray's schedulers (2.60.0) without Ray: metric values go in, decisions come out.

A rule gets values in order of arrival, with a sign such that smaller is better, and decides as Ray's scheduler does.
Sources: ASHA, see `tuner.spec.asha`; the median rule of Golovin et al., "Google Vizier", KDD 2017
(`MedianStoppingRule`); HyperBand, Li et al., JMLR 2018 (`HyperBandScheduler`).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, insort
from collections import defaultdict
from itertools import cycle
from typing import Literal, NamedTuple, Protocol

import numpy as np

from tuner.spec.asha import AshaBracket, PromotionRung, milestones
from tuner.spec.experiment import Experiment

Action = Literal["continue", "stop", "pause"]


class Judged(NamedTuple):
    """A rule's decision on one report.

    `rung` is the epoch of the comparison, None if the rule compares nothing at this report. `cutoff` is None if there
    was no value to compare with, or a trial of HyperBand waits. `recorded` is the number of other trials at the rung,
    and `bracket` the number of the rung's bracket; only ASHA's two rules set them.
    """

    action: Action = "continue"
    rung: int | float | None = None
    cutoff: float | None = None
    recorded: int = 0
    bracket: int | None = None


class Rule(Protocol):
    """A stopping rule. Trials are numbered 0, 1, ... in the order in which they were suggested."""

    def added(self, trial: int) -> None:
        """Adds a trial that the searcher has just suggested."""

    def judge(self, trial: int, epoch: int, value: float) -> Judged:
        """Decides on a report of any epoch before max_epochs; its value is finite, and smaller is better."""

    def settled(self, trial: int) -> list[tuple[int, Judged]]:
        """The decisions on paused trials that a trial's report has caused; call it after `judge`."""

    def ended(self, trial: int, epoch: int, value: float | None) -> list[tuple[int, Judged]]:
        """Removes a trial that has ended; returns (trial, decision) for each paused trial that waited only for it.

        Args:
            value: the trial's last value; None if it failed or diverged.
        """

    def idle(self) -> list[tuple[int, Judged]]:
        """The decisions on paused trials when no trial runs and no setting is left; empty if none is paused."""

    def continued(self, trial: int) -> None:
        """Ends a trial's wait for a promotion, because it trains on without one."""

    def learn(self, epochs: int) -> list[tuple[int, Judged]]:
        """Takes note that a trial has ended by itself after this many epochs, fewer than max_epochs.

        Returns (trial, decision) for each paused trial that continues because of it.
        """


class Fifo:
    """The rule of the fifo scheduler: every trial continues."""

    def added(self, trial: int) -> None:
        pass

    def judge(self, trial: int, epoch: int, value: float) -> Judged:
        return Judged()

    def settled(self, trial: int) -> list[tuple[int, Judged]]:
        return []

    def ended(self, trial: int, epoch: int, value: float | None) -> list[tuple[int, Judged]]:
        return []

    def idle(self) -> list[tuple[int, Judged]]:
        return []

    def continued(self, trial: int) -> None:
        pass

    def learn(self, epochs: int) -> list[tuple[int, Judged]]:
        return []


class Brackets:
    """Draws the bracket of each trial of ASHA, with Ray's odds: e times as likely for each rung that a bracket has."""

    def __init__(self, rules: Experiment, brackets: int) -> None:
        shape = rules.max_epochs, rules.grace_period, rules.reduction_factor
        num_rungs = np.array([len(milestones(*shape, bracket)) for bracket in range(brackets)])
        weights = np.e ** (num_rungs - num_rungs.max())
        self._odds = weights / weights.sum()
        self._seed = rules.seed

    def of(self, trial: int) -> int:
        """The trial's bracket. Ray draws it from numpy's global stream, which a search seeds from (seed, trial)."""
        if len(self._odds) == 1:
            return 0
        derived = np.random.SeedSequence((self._seed, 4, trial)).generate_state(1)[0]
        return int(np.random.RandomState(derived).choice(len(self._odds), p=self._odds))


class Asha(Fifo):
    """Stops a trial at a rung if its value is worse than a percentile of the values that earlier trials had there.

    Each further bracket has its first rung later. A trial's bracket is drawn from (seed, trial), as in the search.
    """

    def __init__(self, rules: Experiment, brackets: int) -> None:
        shape = rules.max_epochs, rules.grace_period, rules.reduction_factor
        self._own = [AshaBracket(*shape, bracket) for bracket in range(brackets)]
        self._brackets, self._most = Brackets(rules, brackets), rules.max_epochs

    def judge(self, trial: int, epoch: int, value: float) -> Judged:
        number, reward = self._brackets.of(trial), -value
        compared = self._own[number].comparison(trial, epoch)
        if compared is None:
            return Judged()
        self._own[number].record(trial, compared.rung, reward)
        if compared.rung >= self._most:
            return Judged()  # the rung of the last epoch: to stop a trial there would save nothing
        cutoff = None if compared.cutoff is None else -compared.cutoff
        action: Action = "stop" if compared.stops(reward) else "continue"
        return Judged(action, compared.rung, cutoff, compared.recorded, number)

    def ended(self, trial: int, epoch: int, value: float | None) -> list[tuple[int, Judged]]:
        if value is not None:
            self.judge(trial, epoch, value)  # as in Ray, a completed trial's last value counts at a rung
        return []


class Promotion(Fifo):
    """Promoting ASHA: pauses a trial at a rung until it is among the best 1/eta of the trials that reached the rung.

    A trial that is among them when it arrives continues without a pause. The rule never waits for stragglers: each
    arrival promotes at most one trial, at once. When no setting is left and no trial runs, the best trial of the
    highest rung is promoted, until one trial has trained all its epochs. Then all paused trials stop.

    Source: Algorithm 2 of Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020. It promotes
    whenever a worker is free, and so at each arrival that pauses or ends a trial.

    Each further bracket has its first rung later. A trial's bracket is drawn from (seed, trial), as in `Asha`.
    """

    def __init__(self, rules: Experiment, brackets: int = 1) -> None:
        self._brackets = Brackets(rules, brackets)
        shape = rules.max_epochs, rules.grace_period, rules.reduction_factor
        self._rungs = [
            [PromotionRung(at, rules.reduction_factor) for at in milestones(*shape, bracket) if at < rules.max_epochs]
            for bracket in range(brackets)
        ]
        self._reached: dict[int, int] = {}  # trial -> the number of rungs that it has reached, in its bracket
        self._waiting: dict[int, PromotionRung] = {}  # paused trial -> its rung
        self._promoted: list[tuple[int, Judged]] = []
        self._completed: set[int] = set()

    def added(self, trial: int) -> None:
        self._completed.discard(trial)  # a resume may continue a trial that had ended

    def judge(self, trial: int, epoch: int, value: float) -> Judged:
        self._withdraw(trial)  # if pausing a trial failed, it trains on and no longer waits
        rungs = self._rungs[self._brackets.of(trial)]
        reached = sum(epoch >= rung.epoch for rung in rungs)
        if reached <= self._reached.get(trial, 0):
            return Judged()
        self._reached[trial] = reached
        rung = rungs[reached - 1]
        promoted = rung.arrive(trial, value)
        self._promoted = [(other, self._judged("continue", other, rung)) for other in promoted if other != trial]
        if trial in promoted:
            return self._judged("continue", trial, rung)
        self._waiting[trial] = rung
        return self._judged("pause", trial, rung)

    def settled(self, trial: int) -> list[tuple[int, Judged]]:
        promoted, self._promoted = self._promoted, []
        for other, _ in promoted:
            del self._waiting[other]
        return promoted

    def continued(self, trial: int) -> None:
        self._withdraw(trial)

    def ended(self, trial: int, epoch: int, value: float | None) -> list[tuple[int, Judged]]:
        self._withdraw(trial)
        if value is not None:
            self._completed.add(trial)  # this rule stops only paused trials: the trial ended by itself
        return []

    def idle(self) -> list[tuple[int, Judged]]:
        if self._completed:
            return [(trial, self._judged("stop", trial, self._withdraw(trial))) for trial in list(self._waiting)]
        if not self._waiting:
            return []
        highest = max(rung.epoch for rung in self._waiting.values())
        values = {trial: rung.value(trial) for trial, rung in self._waiting.items() if rung.epoch == highest}
        best = min(values, key=values.__getitem__)
        return [(best, self._judged("continue", best, self._withdraw(best)))]

    def _withdraw(self, trial: int) -> PromotionRung | None:
        """Ends a trial's wait for a promotion; its value at the rung still counts. Returns the rung, if it waited."""
        rung = self._waiting.pop(trial, None)
        if rung is not None:
            rung.leave(trial)
        return rung

    def _judged(self, action: Action, trial: int, rung: PromotionRung | None) -> Judged:
        assert rung is not None
        return Judged(action, rung.epoch, rung.cutoff, len(rung) - 1, self._brackets.of(trial))


class Median(Fifo):
    """Stops a trial whose best value is worse than the median of the other trials' running means at the same epoch."""

    LEAST = 3  # minimum number of other trials at an epoch; with fewer, nothing is compared

    def __init__(self, rules: Experiment) -> None:
        self._grace = rules.grace_period
        self._curves: dict[int, _Curve] = defaultdict(_Curve)  # trial -> its reports from the grace period on
        self._best: dict[int, float] = defaultdict(lambda: math.inf)
        # trial -> epochs in ascending order -> the trial's running mean at the epoch
        self._own: dict[int, dict[int, float]] = defaultdict(dict)
        # epoch -> the running means at that epoch, one per trial, in ascending order
        self._means: dict[int, list[float]] = defaultdict(list)

    def median(self, epoch: int) -> tuple[float | None, int]:
        """The median of the running means at an epoch (None for fewer than LEAST), and their number."""
        means = self._means[epoch]
        half = len(means) // 2
        if len(means) < self.LEAST:
            return None, len(means)
        return (means[half] if len(means) % 2 else float(np.mean(means[half - 1 : half + 1]))), len(means)

    def best(self, trial: int, value: float) -> float:
        """The best of the trial's reported values and this value."""
        return min(value, self._best[trial])

    def judge(self, trial: int, epoch: int, value: float) -> Judged:
        if epoch < self._grace:
            self._record(trial, epoch, value)
            return Judged()
        self._forget(trial, epoch)
        cutoff, _ = self.median(epoch)
        self._record(trial, epoch, value)
        return Judged("stop" if cutoff is not None and self._best[trial] > cutoff else "continue", epoch, cutoff)

    def ended(self, trial: int, epoch: int, value: float | None) -> list[tuple[int, Judged]]:
        if value is not None:
            self._record(trial, epoch, value)  # as in Ray, a completed trial's last result counts twice
        return []

    def _record(self, trial: int, epoch: int, value: float) -> None:
        self._best[trial] = self.best(trial, value)
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


class _Bracket:
    """A bracket of HyperBand: its maximum number of trials, its next rung's epoch, and its number of halvings left."""

    def __init__(self, size: int, rung: int, halvings: int) -> None:
        self.size, self.rung, self.halvings = size, rung, halvings
        self.live: dict[int, tuple[int, float]] = {}  # running or paused trial -> its last epoch and value there
        self.stopped: set[int] = set()  # live trials that stop at the last rung, until they have ended

    def complete(self) -> bool:
        return all(epoch >= self.rung for epoch, _ in self.live.values())


class BracketShape(NamedTuple):
    """A bracket of HyperBand: its number of trials, the epoch of its first rung, and how often it is halved."""

    size: int
    rung: int
    halvings: int


def band_of(max_epochs: int, reduction_factor: float) -> list[BracketShape]:
    """The brackets of one band of Ray's HyperBand, in order; Ray skips those whose first rung is at epoch 0."""
    num = int(np.round(np.log(max_epochs) / np.log(reduction_factor))) + 1
    shapes = [
        BracketShape(int(np.ceil(num / (s + 1) * reduction_factor**s)), int(max_epochs * reduction_factor ** (-s)), s)
        for s in range(num)
    ]
    return [shape for shape in shapes if shape.rung]


class HyperBand(Fifo):
    """Pauses trials at a rung until all live trials of their bracket have reached it; then stops all but the best."""

    def __init__(self, rules: Experiment) -> None:
        self._factor, self._most = rules.reduction_factor, rules.max_epochs
        self._shapes = cycle(band_of(self._most, self._factor))
        self._bracket: _Bracket | None = None
        self._of: dict[int, _Bracket] = {}

    def added(self, trial: int) -> None:
        while self._bracket is None or len(self._bracket.live) == self._bracket.size:
            self._bracket = _Bracket(*next(self._shapes))
        self._bracket.live[trial] = 0, math.inf
        self._of[trial] = self._bracket

    def judge(self, trial: int, epoch: int, value: float) -> Judged:
        bracket = self._of[trial]
        bracket.live[trial] = epoch, value
        return Judged() if epoch < bracket.rung else Judged("pause", bracket.rung)

    def ended(self, trial: int, epoch: int, value: float | None) -> list[tuple[int, Judged]]:
        self._of[trial].live.pop(trial, None)
        return self.settled(trial)

    def settled(self, trial: int) -> list[tuple[int, Judged]]:
        """The decisions for a trial's bracket once all its live trials have reached the rung, else none.

        As in Ray, a bracket is also halved when its last live trial has ended: the next trials start at a later rung.
        """
        bracket = self._of[trial]
        if not bracket.complete():
            return []
        if bracket.halvings == 0:
            last = [t for t in bracket.live if t not in bracket.stopped]
            bracket.stopped.add(trial)  # paused trials leave at once, the trial that reported leaves when it has ended
            bracket.live = {t: bracket.live[t] for t in bracket.live if t in bracket.stopped}
            return [(t, Judged("stop", bracket.rung)) for t in last]
        rung = bracket.rung
        bracket.halvings -= 1
        bracket.size = int(np.ceil(bracket.size / self._factor))
        bracket.rung = int(min(bracket.rung * self._factor, self._most))
        if not bracket.live:
            return []
        worst_first = sorted(bracket.live, key=lambda t: -bracket.live[t][1])
        bad, good = worst_first[: -bracket.size], worst_first[-bracket.size :]
        cutoff = bracket.live[good[0]][1]
        for stopped in bad:
            del bracket.live[stopped]
        return [(t, Judged("stop", rung, cutoff)) for t in bad] + [(t, Judged("continue", rung, cutoff)) for t in good]
