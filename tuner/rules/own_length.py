"""The rule of asha and asha-promotion: chooses between the two, and fits the rungs to trials that end by themselves."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from typing import Any

from tuner.rules.asha import Asha
from tuner.rules.promotion import Promotion
from tuner.rules.rule import Decisions, Rule, RuleDecision
from tuner.spec.auto import suited_grace
from tuner.spec.experiment import Experiment, milestones
from tuner.spec.option_values import MOST_RUNGS


def at_length(rules: Experiment, epochs: int) -> Experiment:
    """Returns the options with rungs for trials that end by themselves after `epochs` epochs; 0 = not known."""
    if not 0 < epochs < rules.max_epochs:
        return rules
    # Only a grace period that `auto` chose shrinks in proportion.
    grace = suited_grace(epochs) if rules.auto_grace else min(rules.grace_period, epochs)
    # Keeps the number of rungs below MOST_RUNGS.
    grace = max(grace, math.ceil(epochs * rules.reduction_factor ** (2 - MOST_RUNGS)))
    shorter = replace(rules, brackets=1, max_epochs=epochs, grace_period=grace)
    return replace(shorter, brackets=min(rules.brackets, _num_rungs(shorter)))


def _num_rungs(rules: Experiment) -> int:
    return len(milestones(rules.max_epochs, rules.grace_period, rules.reduction_factor))


def of_length(epochs: int, rungs: list[int]) -> str:
    """Says where the rungs lie for trials that end by themselves after this many epochs."""
    length = f"trials end by themselves, the longest so far after {epochs} epoch{'s' * (epochs > 1)}"
    if not rungs:
        return f"{length}; no rung lies before that, so none can be stopped"
    return f"{length}; they are compared after epoch{'s' * (len(rungs) > 1)} {', '.join(map(str, rungs))}"


MOVED = RuleDecision(reason="continues, because the rungs moved to the length of the trials")


class OwnLength(Rule):
    """A rule of ASHA whose rungs follow the longest trial that has ended by itself, once there is one.

    When the length grows, a rule with new rungs gets all calls of `judge` and `ended` again, so ended trials count at
    the new rungs. A trial that has passed a new rung is not stopped there.

    If the first trial to reach a rung has no checkpoint, asha, which pauses no trial, replaces asha-promotion.
    """

    def __init__(self, experiment: Experiment, brackets: int) -> None:
        super().__init__(experiment)
        self._experiment, self._brackets, self._length = experiment, brackets, 0
        self._is_chosen = experiment.scheduler == "asha"  # whether the choice between asha and asha-promotion is final
        # The calls of `judge` and `ended`: trial, epoch, value, whether the trial has a checkpoint (None for `ended`).
        self._calls: list[tuple[int, int, Any, bool | None]] = []
        self._rule = self._new_rule()

    def added(self, trial: int) -> None:
        self._rule.added(trial)

    def judge(self, trial: int, epoch: int, value: Any, *, saved: bool = True) -> tuple[RuleDecision, Decisions]:
        self._calls.append((trial, epoch, value, saved))
        judged = self._rule.judge(trial, epoch, value, saved=saved)
        if self._is_chosen or judged[0].rung is None:
            return judged
        self._is_chosen = True
        if saved:
            return judged
        self._experiment = replace(self._experiment, scheduler="asha", brackets=1)
        return self._replace_rule(set())[0], []

    def ended(self, trial: int, epoch: int, value: Any) -> Decisions:
        self._calls.append((trial, epoch, value, None))
        return self._rule.ended(trial, epoch, value)

    def idle(self) -> Decisions:
        return self._rule.idle()

    def learn_length(self, epochs: int, paused: Set[int]) -> Decisions:
        if epochs <= self._length:
            return []
        self._length = epochs
        return self._replace_rule(paused)[1]

    def _new_rule(self) -> Asha | Promotion:
        kind = Promotion if self.in_force.scheduler == "asha-promotion" else Asha
        return kind(self.in_force, min(self._brackets, _num_rungs(self.in_force)))

    def _replace_rule(self, paused: Set[int]) -> tuple[RuleDecision, Decisions]:
        """Repeats all calls on a new rule; returns its last decision, and decisions on paused trials that continue."""
        self.in_force = at_length(self._experiment, self._length)
        self._rule = self._new_rule()
        judged, waiting, decided = RuleDecision(), set[int](), dict[int, RuleDecision]()
        for trial, epoch, value, saved in self._calls:
            waiting.discard(trial)
            if saved is None:
                others = self._rule.ended(trial, epoch, value)
            else:
                assert value is not None
                judged, others = self._rule.judge(trial, epoch, value, saved=saved)
                waiting |= {trial} if judged.action == "pause" else set()
            waiting.difference_update(other for other, _ in others)
            decided.update(others)
        for trial in waiting - paused:
            self._rule.ended(trial, 0, None)  # the new rule paused it, but it trains on
        return judged, [(trial, decided.get(trial, MOVED)) for trial in sorted(paused - waiting)]
