"""The rule of asha and asha-promotion: chooses between the two, and moves the rungs to where the trials suggest.

Trials that end by themselves show how long a training is. Trials that early epochs order as later ones do show that the
first rung may come earlier.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import replace
from typing import Any

from tuner.core.rules.asha import Asha
from tuner.core.rules.order import agreement
from tuner.core.rules.promotion import Promotion
from tuner.core.rules.rule import Decisions, Rule, RuleDecision
from tuner.spec.auto import suited_grace
from tuner.spec.experiment import Experiment, milestones
from tuner.spec.option_values import MOST_RUNGS

# A grace period that `auto` chose shrinks to the first epoch that orders at least the share AGREES of the pairs of
# NUM_COMPARED trials as it does. Of 16 random settings, epochs 1 and 2 agree so well in 91 to 100 % of the draws on six
# tables of TaskSet, whose first epoch predicts well, and in 0 to 20 % on 12 of LCBench, where it misleads.
NUM_COMPARED, AGREES = 16, 0.8


def at_length(rules: Experiment, epochs: int, grace: int = 0) -> Experiment:
    """Returns the options with rungs for trials that end by themselves after `epochs` epochs; 0 = not known.

    `grace` is the grace period that the search has learned; 0 = none.
    """
    if grace:
        rules = replace(rules, grace_period=grace, auto_grace=False)
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


def of_grace(before: int, grace: int, rungs: list[int]) -> str:
    """Says that the first rung has moved to an earlier epoch."""
    why = f"epoch {grace} orders the first {NUM_COMPARED} trials nearly as epoch {before} does"
    return f"{why}; trials are now compared after epoch{'s' * (len(rungs) > 1)} {', '.join(map(str, rungs))}"


MOVED = RuleDecision(reason="continues, because the rungs have moved")


class OwnLength(Rule):
    """A rule of ASHA whose rungs follow the longest trial that has ended by itself, once there is one.

    When the length grows, a rule with new rungs gets all calls of `judge` and `ended` again, so ended trials count at
    the new rungs. A trial that has passed a new rung is not stopped there.

    If `auto` chose a grace period above 1, the rungs move in the same way once NUM_COMPARED trials have reached the
    first one, and an earlier epoch orders them nearly as it does. With brackets or several metrics, they do not.

    If the first trial to reach a rung has no checkpoint, asha, which pauses no trial, replaces asha-promotion.
    """

    def __init__(self, experiment: Experiment, brackets: int) -> None:
        super().__init__(experiment)
        self._experiment, self._brackets, self._length = experiment, brackets, 0
        self._compared = set[int]()  # the grace periods that earlier epochs were compared with
        self._is_chosen = experiment.scheduler == "asha"  # whether the choice between asha and asha-promotion is final
        # The calls of `judge` and `ended`: trial, epoch, value, whether the trial has a checkpoint (None for `ended`).
        self._calls: list[tuple[int, int, Any, bool | None]] = []
        self._rule = self._new_rule()

    def added(self, trial: int) -> None:
        self._rule.added(trial)

    def judge(self, trial: int, epoch: int, value: Any, *, saved: bool = True) -> tuple[RuleDecision, Decisions]:
        self._calls.append((trial, epoch, value, saved))
        judged = self._rule.judge(trial, epoch, value, saved=saved)
        if not self._is_chosen and judged[0].rung is not None:
            self._is_chosen = True
            if not saved:
                self._experiment = replace(self._experiment, scheduler="asha", brackets=1)
                return self._replace_rule(set())[0], []
        if not (grace := self._learned_grace(epoch)):
            return judged
        self._experiment = replace(self._experiment, grace_period=grace, auto_grace=False)
        own, moved = self._replace_rule({trial, *self._rule.waiting})
        return own, judged[1] + [(other, decision) for other, decision in moved if other != trial]

    def _learned_grace(self, epoch: int) -> int:
        """Returns the first epoch that orders trials nearly as the grace period does; 0 if none, or not known yet."""
        rules = self.in_force
        learns = rules.auto_grace and self._brackets == 1 and not self._goals
        if not learns or epoch != rules.grace_period or epoch in self._compared:
            return 0
        at: dict[int, dict[int, float]] = {each: {} for each in range(1, epoch + 1)}
        for trial, reported, value, saved in self._calls:
            if saved is not None and reported in at:
                at[reported][trial] = value
        trials = list(at[epoch])[:NUM_COMPARED]
        if len(trials) < NUM_COMPARED:
            return 0
        self._compared.add(epoch)
        late = [at[epoch][trial] for trial in trials]
        for early in range(1, epoch):
            known = at[early].keys() >= set(trials)
            if known and agreement([at[early][trial] for trial in trials], late) >= AGREES:
                return early
        return 0

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
