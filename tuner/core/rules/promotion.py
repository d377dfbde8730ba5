"""Promoting ASHA: Algorithm 2 of Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Set
from typing import Any

from tuner.core.rules.order import Order
from tuner.core.rules.rule import Action, Brackets, Decisions, Rule, RuleDecision, trials
from tuner.spec.experiment import Experiment

# Trials that the lowest rung waits for in a search with --start-from. Of three poor known settings alone there, one
# would go up, and later trials would then continue because they beat it; docs/searchers.md has the figures.
FEWEST_BESIDE_KNOWN = 6


class Promotion(Rule):
    """Promoting ASHA: pauses a trial at a rung unless it is among the best 1/eta of the trials that reached the rung.

    Without a checkpoint, the trial stops instead. Each arrival promotes at most one trial, at once. (The paper promotes
    whenever a worker is free.) When no setting is left and no trial runs, the best paused trial of the highest rung is
    promoted, until one trial has trained all its epochs. Then all paused trials stop. Brackets work as in `Asha`. In a
    search with --start-from, no arrival at the lowest rung promotes a trial until `FEWEST_BESIDE_KNOWN` have come; that
    one promotes all that are among the best.
    """

    def __init__(self, experiment: Experiment, brackets: int) -> None:
        super().__init__(experiment)
        self._brackets, self._best = Brackets(experiment, brackets), f"the best 1/{self._factor:g}"
        self._rungs = [[self._new_rung(at) for at in rungs if at < self._most] for rungs in self._brackets.rungs]
        if experiment.start_from and self._rungs[0]:
            self._rungs[0][0].fewest = FEWEST_BESIDE_KNOWN
        self._values: dict[int, Any] = {}  # trial -> its last values, of several metrics
        self._reached: dict[int, int] = {}  # trial -> the number of rungs that it has reached, in its bracket
        self._waiting: dict[int, PromotionRung] = {}  # paused trial -> its rung
        self._completed: set[int] = set()
        self._stopped: set[int] = set()  # trials without a checkpoint that this rule stopped at a rung

    @property
    def waiting(self) -> Set[int]:
        return self._waiting.keys()

    def _new_rung(self, epoch: float) -> PromotionRung:
        goals, factor = self._goals, self._factor
        return OrderedRung(epoch, factor, len(goals)) if goals else PromotionRung(epoch, factor)

    def added(self, trial: int) -> None:
        self._completed.discard(trial)  # a resume may continue a trial that had ended

    def judge(self, trial: int, epoch: int, value: Any, *, saved: bool = True) -> tuple[RuleDecision, Decisions]:
        self._withdraw(trial)  # if pausing a trial failed, it trains on and no longer waits
        rungs = self._rungs[self._brackets.of(trial)]
        reached = sum(epoch >= rung.epoch for rung in rungs)
        if reached <= self._reached.get(trial, 0):
            return RuleDecision(), []
        self._reached[trial] = reached
        rung = rungs[reached - 1]
        self._values[trial] = value
        arrived = self._losses(value) if self._goals else self._sign * value
        promoted, others = rung.arrive(trial, arrived), Decisions()
        for other in promoted:
            if other != trial:
                del self._waiting[other]
                reason = f"promoted: {self._among_best(other, rung)}"
                others.append((other, self._decision("continue", other, rung, reason)))
        if trial in promoted:
            return self._decision("continue", trial, rung, self._among_best(trial, rung)), others
        if saved:
            self._waiting[trial] = rung
            why = f"waits at rung {rung.epoch:g} until it is among {self._best} of the trials there"
            return self._decision("pause", trial, rung, f"{why}: {self._missed(trial, rung)}"), others
        rung.leave(trial)
        self._stopped.add(trial)
        why = f"has no checkpoint to wait with at rung {rung.epoch:g}, not among {self._best} of the trials there"
        return self._decision("stop", trial, rung, f"{why}: {self._missed(trial, rung)}"), others

    def ended(self, trial: int, epoch: int, value: Any) -> Decisions:
        self._withdraw(trial)
        if value is not None and trial not in self._stopped:
            self._completed.add(trial)
        return []

    def idle(self) -> Decisions:
        if not self._waiting:
            return []
        if self._completed:
            decided = [(trial, self._closing(trial, rung)) for trial, rung in self._waiting.items()]
        else:
            # The best trial of the highest rung; of equal trials, the first to wait.
            highest = max(rung.epoch for rung in self._waiting.values())
            there = [(trial, rung) for trial, rung in self._waiting.items() if rung.epoch == highest]
            best, rung = min(there, key=lambda each: each[1].value(each[0]))
            last = "no other trial runs, and none has trained to the end"
            reason = f"promoted: is the best of the trials that wait at rung {rung.epoch:g}; {last}"
            decided = [(best, self._decision("continue", best, rung, reason))]
        for trial, _ in decided:
            self._withdraw(trial)
        return decided

    def _closing(self, trial: int, rung: PromotionRung) -> RuleDecision:
        why = f"not among {self._best} of the trials there"
        if len(rung) < rung.fewest:
            why = f"before {rung.fewest} trials had come there"
        elif not rung.num_best:
            why = f"with too few trials there to promote {self._best} of them"
        end = f"waited at rung {rung.epoch:g} to the end of the search"
        return self._decision("stop", trial, rung, f"{end}, {why}: {self._missed(trial, rung)}")

    def _withdraw(self, trial: int) -> None:
        """Ends a trial's wait for a promotion; its value at the rung still counts."""
        if trial in self._waiting:
            self._waiting.pop(trial).leave(trial)

    def _decision(self, action: Action, trial: int, rung: PromotionRung, reason: str) -> RuleDecision:
        cutoff = None if rung.cutoff is None or self._goals else self._sign * rung.cutoff
        bracket, recorded = self._brackets.of(trial), len(rung) - 1
        return RuleDecision(action, reason, rung.epoch, bracket, cutoff=cutoff, recorded=recorded)

    def _own(self, trial: int, rung: PromotionRung) -> str:
        if self._goals:
            return f"rank {rung.value(trial):.0f} of the {trials(len(rung))} there ({self._shown(self._values[trial])})"
        return f"{self._metric} {self._sign * rung.value(trial):.6g}"

    def _among_best(self, trial: int, rung: PromotionRung) -> str:
        assert rung.cutoff is not None
        at = f"at rung {rung.epoch:g}"
        at += "" if self._goals else f"; the cutoff is {self._sign * rung.cutoff:.6g}"
        return f"{self._own(trial, rung)} is among {self._best} of the {trials(len(rung))} {at}"

    def _missed(self, trial: int, rung: PromotionRung) -> str:
        if rung.cutoff is not None and self._goals:
            return self._own(trial, rung)
        if rung.cutoff is not None:
            why = f"the cutoff is {self._sign * rung.cutoff:.6g}, from {trials(len(rung))}"
        else:
            why = f"only {'this trial has' if len(rung) == 1 else f'{len(rung)} trials have'} reached it"
            if len(rung) < rung.fewest:
                why += (
                    f"; the first promotion waits for {rung.fewest} trials there, as those of --start-from may be poor"
                )
        return f"{self._own(trial, rung)}, {why}"


class PromotionRung:
    """A rung of promoting ASHA. Smaller values are better; of equal ones, the first. O(log n) comparisons per call."""

    def __init__(self, epoch: float, factor: float) -> None:
        self.epoch, self._factor = epoch, factor
        self.fewest = 1  # trials that must have reached the rung before it promotes one
        self._of: dict[int, tuple[float, int, int]] = {}  # trial -> (value, order of arrival, trial)
        self._ranked: list[tuple[float, int, int]] = []  # all entries of `_of`, the best first
        self._waiting: list[tuple[float, int, int]] = []  # entries of trials that may be promoted, best first

    @property
    def num_best(self) -> int:
        return int(len(self) / self._factor) if len(self) >= self.fewest else 0

    @property
    def cutoff(self) -> float | None:
        """The value of the worst trial among the best 1/factor; None if too few trials have reached the rung."""
        return self._ranked[self.num_best - 1][0] if self.num_best else None

    def __len__(self) -> int:
        return len(self._ranked)

    def value(self, trial: int) -> float:
        return self._of[trial][0]

    def arrive(self, trial: int, value: Any) -> list[int]:
        """Records a value; promotes and returns the waiting trials, maybe this one, that are in the best 1/factor."""
        entry = self._of[trial] = value, len(self._of), trial
        insort(self._ranked, entry)
        insort(self._waiting, entry)
        promoted = []
        while self._waiting and bisect_left(self._ranked, self._waiting[0]) < self.num_best:
            promoted.append(self._waiting.pop(0)[2])
        return promoted

    def leave(self, trial: int) -> None:
        """Removes a trial from those that may be promoted; its value still counts."""
        del self._waiting[bisect_left(self._waiting, self._of[trial])]


class OrderedRung(PromotionRung):
    """A rung of trials with several metrics: a trial's value is its place among all, which each arrival may change."""

    def __init__(self, epoch: float, factor: float, num_metrics: int) -> None:
        super().__init__(epoch, factor)
        self._order = Order(num_metrics)
        self._numbers: dict[int, int] = {}  # trial -> its number in the order
        self._trials: dict[int, int] = {}  # the number of a trial that may be promoted -> the trial

    @property
    def cutoff(self) -> float | None:
        return self.num_best or None

    def __len__(self) -> int:
        return len(self._order)

    def value(self, trial: int) -> float:
        return self._order.place(self._numbers[trial])

    def arrive(self, trial: int, value: Any) -> list[int]:
        self._numbers[trial] = number = self._order.add(value)
        self._trials[number] = trial
        best, before = self._order.first(self._trials)
        # At most one: `fewest` is 1, as --start-from is refused with several metrics.
        return [self._trials.pop(best)] if before < self.num_best else []

    def leave(self, trial: int) -> None:
        del self._trials[self._numbers[trial]]
