"""The rungs of ASHA for trials that end by themselves."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace

from tuner.rules.asha import Asha
from tuner.rules.promotion import Promotion
from tuner.rules.rule import Decisions, Rule, RuleDecision
from tuner.spec.auto import suited_grace
from tuner.spec.experiment import MOST_RUNGS, Experiment, milestones


def at_length(rules: Experiment, epochs: int) -> Experiment:
    """Returns the rules for trials that end by themselves after `epochs` epochs; 0 = unknown number.

    A grace period that `auto` chose shrinks in proportion. The user's grace period and the reduction factor stay.
    """
    if not 0 < epochs < rules.max_epochs:
        return rules
    grace = suited_grace(epochs) if rules.auto_grace else min(rules.grace_period, epochs)
    # A lower grace period gives more rungs; this keeps their number below MOST_RUNGS.
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

    At a new length, the same rule with other rungs gets all earlier calls again, in their order. So the trials that
    have ended count at the new rungs. A trial that has passed a new rung is not stopped there.
    """

    def __init__(self, experiment: Experiment, brackets: int) -> None:
        super().__init__(experiment)
        self._experiment, self._brackets = experiment, brackets
        self._length = 0
        # The calls of `judge` and `ended`: trial, epoch, value, and whether the trial ended.
        self._calls: list[tuple[int, int, float | None, bool]] = []
        self._rule = self._new_rule()

    @property
    def rules(self) -> Experiment:
        """The rules in force; their max_epochs is the length of the trials, as far as it is known."""
        return at_length(self._experiment, self._length)

    def added(self, trial: int) -> None:
        self._rule.added(trial)

    def judge(self, trial: int, epoch: int, value: float) -> RuleDecision:
        self._calls.append((trial, epoch, value, False))
        return self._rule.judge(trial, epoch, value)

    def settled(self, trial: int) -> Decisions:
        return self._rule.settled(trial)

    def ended(self, trial: int, epoch: int, value: float | None) -> Decisions:
        self._calls.append((trial, epoch, value, True))
        return self._rule.ended(trial, epoch, value)

    def idle(self) -> Decisions:
        return self._rule.idle()

    def unsaved(self, trial: int) -> RuleDecision:
        self._calls.append((trial, 0, None, True))
        return self._rule.unsaved(trial)

    def learn(self, epochs: int, paused: Set[int]) -> Decisions:
        """Moves the rungs to the length of a trial that has ended by itself, if it is the longest so far.

        Returns (trial, decision) for each paused trial that continues, because the new rule does not pause it there.
        """
        if epochs <= self._length:
            return []
        self._length = epochs
        return self._replace_rule(paused)[1]

    def stop_instead(self) -> RuleDecision:
        """Replaces promoting ASHA by the rule that stops trials; returns its decision on the latest report."""
        self._experiment = replace(self._experiment, scheduler="asha", brackets=1)
        return self._replace_rule(set())[0]

    def _new_rule(self) -> Asha | Promotion:
        rules = self.rules
        kind = Promotion if rules.scheduler == "asha-promotion" else Asha
        return kind(rules, min(self._brackets, _num_rungs(rules)))

    def _replace_rule(self, paused: Set[int]) -> tuple[RuleDecision, Decisions]:
        """Gives all calls to a new rule; returns its latest decision, and those on the paused trials that continue."""
        self._rule = self._new_rule()
        judged, waiting, decided = RuleDecision(), set[int](), dict[int, RuleDecision]()
        for trial, epoch, value, is_end in self._calls:
            waiting.discard(trial)
            if is_end:
                freed = self._rule.ended(trial, epoch, value)
            else:
                assert value is not None
                judged = self._rule.judge(trial, epoch, value)
                waiting |= {trial} if judged.action == "pause" else set()
                freed = self._rule.settled(trial)
            waiting.difference_update(other for other, _ in freed)
            decided.update(freed)
        for trial in waiting - paused:
            self._rule.continued(trial)
        return judged, [(trial, decided.get(trial, MOVED)) for trial in sorted(paused - waiting)]
