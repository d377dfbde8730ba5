"""HyperBand (Li et al., JMLR 2018) and its BOHB variant (Falkner et al., ICML 2018), as in Ray 2.60.0."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tuner.core.rules.rule import Action, Decisions, Rule, RuleDecision, trials
from tuner.spec.experiment import Experiment

ADVICE = (
    "Choose --scheduler asha, or let {more} or more trials run at once (lower --cpus-per-trial or --gpus-per-trial, "
    "raise --max-concurrent-trials)."
)


class BracketShape(NamedTuple):
    """A bracket of HyperBand."""

    size: int  # its number of trials
    rung: int  # the epoch of its first rung
    halvings: int  # how often it is halved


def band_of(max_epochs: int, reduction_factor: float) -> list[BracketShape]:
    """The brackets of one band of HyperBand, in order; as in Ray, without brackets whose first rung is at epoch 0."""
    num = int(np.round(np.log(max_epochs) / np.log(reduction_factor))) + 1
    shapes = [
        BracketShape(int(np.ceil(num / (s + 1) * reduction_factor**s)), int(max_epochs * reduction_factor ** (-s)), s)
        for s in range(num)
    ]
    return [shape for shape in shapes if shape.rung]


def rungs_of(max_epochs: int, reduction_factor: float) -> list[list[int]]:
    """Returns the epochs of the rungs of each bracket of a band; the last ones may lie before max_epochs."""
    rungs = [[shape.rung] for shape in band_of(max_epochs, reduction_factor)]
    for bracket, shape in zip(rungs, band_of(max_epochs, reduction_factor), strict=True):
        for _ in range(shape.halvings):
            bracket.append(next_rung(bracket[-1], reduction_factor, max_epochs))
    return rungs


def last_rungs(max_epochs: int, reduction_factor: float) -> set[int]:
    """Returns the epochs at which the brackets of a band end; they may lie before max_epochs."""
    return {bracket[-1] for bracket in rungs_of(max_epochs, reduction_factor)}


def next_rung(rung: int, reduction_factor: float, max_epochs: int) -> int:
    return int(min(rung * reduction_factor, max_epochs))


class HyperBand(Rule):
    """Pauses trials at a rung until all live trials of their bracket are there; stops the worse, at the last rung all.

    A band is one round over all brackets: in the order of `band_of`, or with the scheduler bohb in the opposite order.
    With bohb, a bracket is halved only after it was full, or when nothing else is left to run: BOHB's model needs the
    values of a whole bracket. A bracket that was full or halved takes no more: they would train alone to a late rung.
    """

    def __init__(self, experiment: Experiment, brackets: int = 1) -> None:
        super().__init__(experiment)
        self._band = list(enumerate(band_of(self._most, self._factor)))  # (number in the band, shape)
        self._for_bohb = experiment.scheduler == "bohb"
        if self._for_bohb:
            # Ray also numbers the brackets that it skips, which come first in this order.
            num = int(np.round(np.log(self._most) / np.log(self._factor))) + 1
            self._band = [(num - 1 - number, shape) for number, shape in reversed(self._band)]
        self._brackets: list[_Bracket] = []
        self._of: dict[int, _Bracket] = {}

    def added(self, trial: int) -> None:
        while not self._brackets or not self._takes_more(self._brackets[-1]):
            band, turn = divmod(len(self._brackets), len(self._band))
            number, shape = self._band[turn]
            self._brackets.append(_Bracket(band, number, *shape))
        self._of[trial] = bracket = self._brackets[-1]
        bracket.live[trial] = math.inf
        bracket.was_full |= bracket.is_full()

    def judge(self, trial: int, epoch: int, value: Any, *, saved: bool = True) -> tuple[RuleDecision, Decisions]:
        bracket = self._of[trial]
        if epoch < bracket.rung:
            return RuleDecision(), []
        bracket.live[trial] = self._sign * value
        bracket.waiting.add(trial)
        reason = f"waits at rung {bracket.rung} for the other trials of its bracket"
        pause = RuleDecision("pause", reason, *bracket.rung_id, recorded=len(bracket.waiting) - 1)
        decided = dict(self._settled(bracket, trial))
        return decided.pop(trial, pause), list(decided.items())

    def ended(self, trial: int, epoch: int, value: Any) -> Decisions:
        bracket = self._of[trial]
        bracket.leave(trial)
        return self._settled(bracket, trial)

    def idle(self) -> Decisions:
        waiting = [bracket for bracket in self._brackets if bracket.waiting]
        return [decision for bracket in waiting for decision in self._settled(bracket, None)]

    def _takes_more(self, bracket: _Bracket) -> bool:
        return not (bracket.was_full if self._for_bohb else bracket.is_full())

    def _settled(self, bracket: _Bracket, trial: int | None) -> Decisions:
        """Halves or ends a bracket if all its live trials have reached the rung.

        As in Ray, a bracket without live trials is also halved: later trials are first compared at its next rung.
        `trial` has reported or ended; it is None if no trial runs and no setting is left.
        """
        if not bracket.live.keys() <= bracket.waiting:
            return []
        if self._for_bohb and trial is not None and self._takes_more(bracket):
            return []
        return self._halve(bracket) if bracket.halvings else self._finish(bracket, trial)

    def _halve(self, bracket: _Bracket) -> Decisions:
        rung_id, values = bracket.rung_id, dict(bracket.live)
        worst_first = sorted(values, key=lambda trial: -values[trial])
        bracket.halvings, bracket.was_full = bracket.halvings - 1, True
        bracket.size = int(np.ceil(bracket.size / self._factor))
        bracket.rung = next_rung(bracket.rung, self._factor, self._most)
        bracket.waiting.clear()
        if not worst_first:
            return []
        bad, good = worst_first[: -bracket.size], worst_first[-bracket.size :]
        cutoff = self._sign * values[good[0]]
        at, others = f"of its bracket at rung {rung_id[0]}", len(worst_first) - 1
        best = f"the best {len(good)} of the {trials(others + 1)} {at}"
        missed = f"is not among {best}; the worst of these {len(good)} has {cutoff:.6g}"
        kept = f"is among {best}" if others else f"is the only one {at}"
        for trial in bad:
            bracket.leave(trial)
        decided: Decisions = []
        for trial in worst_first:
            action: Action = "continue" if trial in bracket.live else "stop"
            why = f"{self._metric} {self._sign * values[trial]:.6g} {missed if action == 'stop' else kept}"
            decided.append((trial, RuleDecision(action, why, *rung_id, cutoff, others)))
        return decided

    def _finish(self, bracket: _Bracket, reported: int | None) -> Decisions:
        """Stops the trials at the last rung. As in Ray, the trial `reported` leaves the bracket only after its end."""
        last = [trial for trial in bracket.live if trial not in bracket.stopped]
        reason = f"its bracket has ended at rung {bracket.rung}"
        for trial in last:
            if trial == reported:
                bracket.stopped.add(trial)
            else:
                bracket.leave(trial)
        return [(trial, RuleDecision("stop", reason, *bracket.rung_id, recorded=len(last) - 1)) for trial in last]


@dataclass
class _Bracket:
    band: int
    number: int
    size: int  # maximum number of live trials
    rung: int  # epoch of the next rung
    halvings: int  # how often it will still be halved
    live: dict[int, float] = field(default_factory=dict)  # running or paused trial -> its loss at the rung
    waiting: set[int] = field(default_factory=set)  # live trials that have reached the rung
    stopped: set[int] = field(default_factory=set)  # live trials that stop at the last rung, until they have ended
    was_full: bool = False  # whether it has been full or halved

    @property
    def rung_id(self) -> tuple[int, int, int]:
        """The rung, the bracket's number and its band, in the order of a decision's fields."""
        return self.rung, self.number, self.band

    def is_full(self) -> bool:
        return len(self.live) == self.size

    def leave(self, trial: int) -> None:
        self.live.pop(trial, None)
        self.waiting.discard(trial)
