"""ASHA's rule, in Ray's stopping variant: the rungs, the cutoff at a rung, and which trials are compared there.

`tuner.spec.rules` has the rule of all trials; a search, its replay and what-if use it. A reward is a metric's value
with the sign that makes larger values better. Source: Li et al., "A System for Massively Parallel Hyperparameter
Tuning", MLSys 2020, as in Ray's `AsyncHyperBandScheduler` (2.60.0).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Sequence
from dataclasses import dataclass


def milestones(max_epochs: int, grace_period: int, factor: float, bracket: int = 0) -> list[float]:
    """Returns the epochs of a bracket's rungs, in ascending order; bracket n lacks the n lowest rungs of bracket 0.

    A milestone may lie between two epochs. Trials then reach the rung at the later epoch.
    """
    num = int(math.log(max_epochs / grace_period) / math.log(factor) - bracket + 1)
    return [grace_period * factor ** (k + bracket) for k in range(num)]


def cutoff(rewards: Sequence[float], factor: float) -> float | None:
    """Returns the least reward with which the next trial continues; None if no reward is recorded at the rung.

    Args:
        rewards: the rewards recorded at the rung, in ascending order.
    """
    return percentile(rewards, (1 - 1 / factor) * 100) if rewards else None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns what `np.percentile` returns, bit for bit, but without a sort: the values are in ascending order.

    It computes as numpy's linear method (`_lerp`) does: trials are compared with the result by `<`, so each bit counts.
    """
    place = (len(ordered) - 1) * (percent / 100)
    low = math.floor(place)
    a, b, part = ordered[low], ordered[min(low + 1, len(ordered) - 1)], place - low
    return b - (b - a) * (1 - part) if part >= 0.5 else a + (b - a) * part


class Rewards(dict[Hashable, float]):
    """The rewards recorded at a rung: trial -> reward, as Ray keeps them, and also the rewards in ascending order."""

    def __init__(self) -> None:
        super().__init__()
        self.in_order: list[float] = []

    def __setitem__(self, trial: Hashable, reward: float) -> None:
        super().__setitem__(trial, reward)
        if not math.isnan(reward):  # Ray leaves NaN out of the percentile too
            insort(self.in_order, reward)  # moves 8 bytes per reward: 3 us with 10,000 rewards


@dataclass(frozen=True)
class AshaComparison:
    """How ASHA judges a report: the rung, the cutoff as a reward, and the number of trials recorded there earlier."""

    rung: float
    cutoff: float | None
    recorded: int

    def stops(self, reward: float) -> bool:
        """Whether ASHA stops a trial with this reward."""
        return self.cutoff is not None and reward < self.cutoff


class AshaBracket:
    """One bracket of ASHA: its rungs, the highest first as in Ray, each with the rewards recorded there."""

    def __init__(self, max_epochs: int, grace_period: int, factor: float, bracket: int = 0) -> None:
        self._factor = factor
        self.rungs = [(at, Rewards()) for at in reversed(milestones(max_epochs, grace_period, factor, bracket))]

    def comparison(self, trial: Hashable, epoch: int) -> AshaComparison | None:
        """Returns how a trial's report at this epoch will be judged; None if it is not compared.

        A report counts at one rung: the highest rung reached that has no reward of this trial.
        """
        for rung, rewards in self.rungs:
            if epoch >= rung and trial not in rewards:
                return AshaComparison(rung, cutoff(rewards.in_order, self._factor), len(rewards))
        return None

    def record(self, trial: Hashable, rung: float, reward: float) -> None:
        """Adds a trial's reward to a rung."""
        dict(self.rungs)[rung][trial] = reward


class PromotionRung:
    """A rung of promoting ASHA: the values of the trials that reached it, and which of them were promoted.

    Smaller values are better; of equal values, the earlier one. A method takes O(log n) steps and moves at most 8
    bytes per trial in a list.
    """

    def __init__(self, epoch: float, factor: float) -> None:
        self.epoch, self._factor = epoch, factor
        self._ranked: list[tuple[float, int]] = []  # (value, order of arrival), best first
        self._of: dict[int, tuple[float, int]] = {}
        # (value, order of arrival, trial) of the trials that are not promoted, best first
        self._waiting: list[tuple[float, int, int]] = []

    @property
    def num_best(self) -> int:
        """How many of the trials that reached the rung are among its best 1/factor."""
        return int(len(self._ranked) / self._factor)

    @property
    def cutoff(self) -> float | None:
        """The value of the worst trial among the best 1/factor; None if too few trials have reached the rung."""
        return self._ranked[self.num_best - 1][0] if self.num_best else None

    def __len__(self) -> int:
        return len(self._ranked)

    def value(self, trial: int) -> float:
        """The value with which a trial reached the rung."""
        return self._of[trial][0]

    def arrive(self, trial: int, value: float) -> list[int]:
        """Records a trial's value; returns the trials that are now among the best 1/factor and were not promoted."""
        entry = self._of[trial] = value, len(self._of)
        insort(self._ranked, entry)
        insort(self._waiting, (*entry, trial))
        promoted = []
        while self._waiting and bisect_left(self._ranked, self._waiting[0][:2]) < self.num_best:
            promoted.append(self._waiting.pop(0)[2])
        return promoted

    def leave(self, trial: int) -> None:
        """Removes a trial from those that may be promoted; its value still counts."""
        del self._waiting[bisect_left(self._waiting, self._of[trial], key=lambda entry: entry[:2])]
