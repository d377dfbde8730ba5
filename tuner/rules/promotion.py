"""Promoting ASHA, Algorithm 2 of Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020."""

from __future__ import annotations

from bisect import bisect_left, insort

from tuner.rules.asha import Brackets
from tuner.rules.rule import Action, Decisions, Rule, RuleDecision, trials
from tuner.spec.experiment import Experiment, milestones


class Promotion(Rule):
    """Promoting ASHA: pauses a trial at a rung until it is among the best 1/eta of the trials that reached the rung.

    A trial that is among them when it arrives continues without a pause. The rule never waits for stragglers: each
    arrival promotes at most one trial, at once. When no setting is left and no trial runs, the best trial of the
    highest rung is promoted, until one trial has trained all its epochs. Then all paused trials stop.

    The paper's algorithm promotes whenever a worker is free, and so at each arrival that pauses or ends a trial.

    Each further bracket has its first rung later. A trial's bracket is drawn from (seed, trial), as in `Asha`.
    """

    def __init__(self, experiment: Experiment, brackets: int = 1) -> None:
        super().__init__(experiment)
        self._brackets = Brackets(experiment, brackets)
        shape = experiment.max_epochs, experiment.grace_period, experiment.reduction_factor
        self._rungs = [
            [PromotionRung(at, self._factor) for at in milestones(*shape, bracket) if at < self._most]
            for bracket in range(brackets)
        ]
        self._reached: dict[int, int] = {}  # trial -> the number of rungs that it has reached, in its bracket
        self._waiting: dict[int, PromotionRung] = {}  # paused trial -> its rung
        self._promoted: Decisions = []
        self._completed: set[int] = set()

    def added(self, trial: int) -> None:
        self._completed.discard(trial)  # a resume may continue a trial that had ended

    def judge(self, trial: int, epoch: int, value: float) -> RuleDecision:
        self._withdraw(trial)  # if pausing a trial failed, it trains on and no longer waits
        rungs = self._rungs[self._brackets.of(trial)]
        reached = sum(epoch >= rung.epoch for rung in rungs)
        if reached <= self._reached.get(trial, 0):
            return RuleDecision()
        self._reached[trial] = reached
        rung = rungs[reached - 1]
        promoted = rung.arrive(trial, self._sign * value)
        self._promoted = [
            (other, self._decision("continue", other, rung, f"promoted: {self._among_best(other, rung)}"))
            for other in promoted
            if other != trial
        ]
        if trial in promoted:
            return self._decision("continue", trial, rung, self._among_best(trial, rung))
        self._waiting[trial] = rung
        until = f"waits at rung {rung.epoch:g} until it is among {self._best} of the trials there"
        return self._decision("pause", trial, rung, f"{until}: {self._missed(trial, rung)}")

    def settled(self, trial: int) -> Decisions:
        promoted, self._promoted = self._promoted, []
        for other, _ in promoted:
            del self._waiting[other]
        return promoted

    def continued(self, trial: int) -> None:
        self._withdraw(trial)

    def unsaved(self, trial: int) -> RuleDecision:
        rung = self._withdraw(trial)
        assert rung is not None
        why = f"has no checkpoint to wait with at rung {rung.epoch:g}, not among {self._best} of the trials there"
        return self._decision("stop", trial, rung, f"{why}: {self._missed(trial, rung)}")

    def ended(self, trial: int, epoch: int, value: float | None) -> Decisions:
        self._withdraw(trial)
        if value is not None:
            self._completed.add(trial)  # this rule stops only paused trials: the trial ended by itself
        return []

    def idle(self) -> Decisions:
        if self._completed:
            return [(trial, self._closing(trial)) for trial in list(self._waiting)]
        if not self._waiting:
            return []
        highest = max(rung.epoch for rung in self._waiting.values())
        values = {trial: rung.value(trial) for trial, rung in self._waiting.items() if rung.epoch == highest}
        best = min(values, key=values.__getitem__)
        rung = self._withdraw(best)
        assert rung is not None
        last = "no other trial runs, and none has trained to the end"
        reason = f"promoted: is the best of the trials that wait at rung {rung.epoch:g}; {last}"
        return [(best, self._decision("continue", best, rung, reason))]

    def _closing(self, trial: int) -> RuleDecision:
        """Stops a trial that waited to the end of the search."""
        rung = self._withdraw(trial)
        assert rung is not None
        if rung.cutoff is None:
            why = f"where too few trials came to promote {self._best} of them"
        else:
            why = f"not among {self._best} of the trials there"
        end = f"waited at rung {rung.epoch:g} to the end of the search"
        return self._decision("stop", trial, rung, f"{end}, {why}: {self._missed(trial, rung)}")

    def _withdraw(self, trial: int) -> PromotionRung | None:
        """Ends a trial's wait for a promotion; its value at the rung still counts. Returns the rung, if it waited."""
        rung = self._waiting.pop(trial, None)
        if rung is not None:
            rung.leave(trial)
        return rung

    def _decision(self, action: Action, trial: int, rung: PromotionRung, reason: str) -> RuleDecision:
        cutoff = None if rung.cutoff is None else self._sign * rung.cutoff
        bracket, recorded = self._brackets.of(trial), len(rung) - 1
        return RuleDecision(action, reason, rung.epoch, bracket, cutoff=cutoff, recorded=recorded)

    @property
    def _best(self) -> str:
        return f"the best 1/{self._factor:g}"

    def _own(self, trial: int, rung: PromotionRung) -> str:
        return f"{self._metric} {self._sign * rung.value(trial):.6g}"

    def _among_best(self, trial: int, rung: PromotionRung) -> str:
        limit = "" if rung.cutoff is None else f"; the cutoff is {self._sign * rung.cutoff:.6g}"
        return (
            f"{self._own(trial, rung)} is among {self._best} of the {trials(len(rung))} at rung {rung.epoch:g}{limit}"
        )

    def _missed(self, trial: int, rung: PromotionRung) -> str:
        number = len(rung)
        few = "only this trial has reached it" if number == 1 else f"only {number} trials have reached it"
        cutoff = few if rung.cutoff is None else f"the cutoff is {self._sign * rung.cutoff:.6g} of {trials(number)}"
        return f"{self._own(trial, rung)}, {cutoff}"


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
