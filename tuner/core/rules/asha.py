"""ASHA (Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020) in Ray's stopping variant.

Ray's class is `AsyncHyperBandScheduler` (2.60.0).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from typing import Any

from tuner.core.rules.order import Order
from tuner.core.rules.rule import Action, Brackets, Decisions, Rule, RuleDecision, trials
from tuner.spec.experiment import Experiment


class Asha(Rule):
    """Stops a trial at a rung if its value is worse than a percentile of the values of trials that reached it before.

    Each further bracket has its first rung later. A trial's bracket is drawn at random, seeded by (seed, trial).
    """

    def __init__(self, experiment: Experiment, brackets: int) -> None:
        super().__init__(experiment)
        self._brackets = Brackets(experiment, brackets)
        # Each bracket's rungs, the highest first as in Ray.
        self._rungs = [[_Rung(at, len(self._goals)) for at in reversed(rungs)] for rungs in self._brackets.rungs]

    def judge(self, trial: int, epoch: int, value: Any, *, saved: bool = True) -> tuple[RuleDecision, Decisions]:
        bracket = self._brackets.of(trial)
        # A report counts at one rung: the highest rung reached that has no reward of this trial.
        rungs = (rung for rung in self._rungs[bracket] if epoch >= rung.epoch and trial not in rung.trials)
        rung = next(rungs, None)
        if rung is None:
            return RuleDecision(), []
        rung.trials.add(trial)
        if self._goals:
            return self._against_order(rung, bracket, value), []
        reward, least, recorded = -self._sign * value, cutoff(rung.rewards, self._factor), len(rung.rewards)
        insort(rung.rewards, reward)  # moves 8 bytes per reward: 3 us with 10,000 rewards
        if rung.epoch >= self._most:
            return RuleDecision(), []  # the rung of the last epoch: to stop a trial there would save nothing
        action: Action = "stop" if least is not None and reward < least else "continue"
        own = None if least is None else -self._sign * least
        decision = RuleDecision(action, rung=rung.epoch, bracket=bracket, cutoff=own, recorded=recorded)
        return self._against_cutoff(self._metric, value, decision), []

    def _against_order(self, rung: _Rung, bracket: int, values: Any) -> RuleDecision:
        """Compares several metrics: a trial continues at the places that would reach the cutoff with one metric."""
        recorded = rung.order.add(self._losses(values))
        if rung.epoch >= self._most:
            return RuleDecision()
        decision = RuleDecision("continue", "", rung.epoch, bracket, recorded=recorded)
        if not recorded:
            return self._against_cutoff("", 0.0, decision)
        place, last = rung.order.place(recorded), 1 + int((recorded - 1) / self._factor)
        at = f"of the {trials(recorded + 1)} recorded at rung {rung.epoch:g}: {self._shown(values)}"
        reason = f"rank {place} {at}; rank {last} or better continues"
        return decision._replace(action="continue" if place <= last else "stop", reason=reason)

    def ended(self, trial: int, epoch: int, value: Any) -> Decisions:
        if value is not None:
            self.judge(trial, epoch, value)  # as in Ray, an ended trial's last value counts at a rung
        return []


class _Rung:
    """A rung: its trials, and their rewards, ascending. A reward is a value, negated if smaller values are better."""

    def __init__(self, epoch: float, num_metrics: int) -> None:
        self.epoch, self.trials, self.rewards = epoch, set[int](), list[float]()
        self.order = Order(num_metrics)  # in place of the rewards, if there are several metrics


def cutoff(rewards: Sequence[float], factor: float) -> float | None:
    """Returns the least reward with which the next trial continues; None if the rung has no `rewards` (ascending)."""
    return percentile(rewards, (1 - 1 / factor) * 100) if rewards else None


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Returns the `np.percentile` of ascending values without a sort, bit for bit as numpy (`_lerp`) computes it."""
    rank = (len(ordered) - 1) * (percent / 100)
    low = math.floor(rank)
    a, b, part = ordered[low], ordered[min(low + 1, len(ordered) - 1)], rank - low
    return b - (b - a) * (1 - part) if part >= 0.5 else a + (b - a) * part
