"""The methods that every stopping rule has, and the decisions that they return."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, Literal, NamedTuple

import numpy as np

from tuner.spec.experiment import Experiment, milestones

Action = Literal["continue", "stop", "pause"]


class RuleDecision(NamedTuple):
    """A rule's decision on one trial, as the journal records it."""

    action: Action = "continue"
    reason: str = ""  # empty if the report leads to no comparison
    rung: int | float | None = None  # the epoch of the comparison; None if the rule compares nothing at this report
    bracket: int | None = None  # the rung's bracket; with hyperband and bohb its number in its band
    band: int | None = None  # the bracket's band; only with hyperband and bohb
    cutoff: float | None = None  # value that the trial had to reach, with the metric's own sign; None = no cutoff
    recorded: int = 0  # the number of other trials that have a value at the rung
    compared: float | None = None  # the trial's best value, if the rule compares it instead of the report's value


Decisions = list[tuple[int, RuleDecision]]  # (trial, decision) in the order in which they take effect


class Rule:
    """The rule of the fifo scheduler: every trial continues. The other rules override its methods.

    Trials are numbered 0, 1, ... in the order in which they were suggested. Values are those of `Experiment.compared`,
    with this metric's own sign. With several metrics, a value is a tuple, and trials are compared by their `Order`.
    """

    def __init__(self, experiment: Experiment, brackets: int = 1) -> None:
        self.in_force = experiment  # the options in force; asha and asha-promotion may change them during a search
        self._metric, self._sign = experiment.compared.metric, experiment.compared.sign
        self._goals = experiment.aim.goals if experiment.aim.several else ()
        self._factor, self._most = experiment.reduction_factor, experiment.max_epochs

    @property
    def waiting(self) -> Set[int]:
        """The trials that the rule has paused."""
        return set()

    def added(self, trial: int) -> None:
        """Adds a trial that the searcher has just suggested, or an ended trial that a resume continues."""

    def judge(self, trial: int, epoch: int, value: Any, *, saved: bool = True) -> tuple[RuleDecision, Decisions]:
        """Decides on a report with a finite value before max_epochs, and on the paused trials that waited for it.

        `saved` says whether the trial has a checkpoint; without one, asha-promotion does not pause it.
        """
        return RuleDecision(), []

    def ended(self, trial: int, epoch: int, value: Any) -> Decisions:
        """Removes a trial that has ended; returns the decisions on paused trials that waited only for it.

        `value` is the trial's last value; None if the trial failed, diverged, or was stopped while it was paused.
        """
        return []

    def idle(self) -> Decisions:
        """The decisions on paused trials when no trial runs and no setting is left; empty if none is paused."""
        return []

    def learn_length(self, epochs: int, paused: Set[int]) -> Decisions:
        """Notes that a trial ended by itself after `epochs` < max_epochs; returns decisions on some `paused` trials."""
        return []

    def _losses(self, values: Any) -> tuple[float, ...]:
        return tuple(goal.sign * value for goal, value in zip(self._goals, values, strict=True))

    def _shown(self, values: Any) -> str:
        return ", ".join(f"{goal.metric} {value:.6g}" for goal, value in zip(self._goals, values, strict=True))

    def _against_cutoff(self, what: str, value: float, decision: RuleDecision) -> RuleDecision:
        """Adds the reason to a decision that compares a value with a cutoff."""
        at, number = f"at rung {decision.rung:g}", decision.recorded
        if decision.cutoff is None:
            few = f"only {trials(number)}" if number else "no other trial"
            return decision._replace(reason=f"{few} to compare with {at}")
        better = "not worse than" if decision.action == "continue" else "worse than"
        cutoff = f"the cutoff {decision.cutoff:.6g} of the {trials(number)} recorded {at}"
        return decision._replace(reason=f"{what} {value:.6g} is {better} {cutoff}")


class Brackets:
    """The rungs of each bracket of ASHA, in ascending order, and the bracket of each trial.

    A trial's bracket is drawn with Ray's odds: each further rung makes a bracket e times as likely.
    """

    def __init__(self, experiment: Experiment, brackets: int) -> None:
        shape = experiment.max_epochs, experiment.grace_period, experiment.reduction_factor
        self.rungs = [milestones(*shape, bracket) for bracket in range(brackets)]
        num_rungs = np.array(list(map(len, self.rungs)))
        weights = np.e ** (num_rungs - num_rungs.max())
        self._odds = weights / weights.sum()
        self._seed = experiment.seed

    def of(self, trial: int) -> int:
        """The trial's bracket; Ray draws the same one if numpy's global stream is seeded with `derived`."""
        if len(self._odds) == 1:
            return 0
        derived = np.random.SeedSequence((self._seed, 4, trial)).generate_state(1)[0]
        return int(np.random.RandomState(derived).choice(len(self._odds), p=self._odds))


def trials(count: int) -> str:
    """The number of trials in words: `1 trial`, `2 trials`."""
    return f"{count} trial" + ("" if count == 1 else "s")
