"""Follows what a search has spent of its budgets, estimates what its trials will cost, and plans its last part.

A budget is time, GPU-hours, CPU-hours or epochs, of all sessions of a search together. A search takes new settings
while the best paused trial could still train to its last epoch afterwards. Then each free worker trains the best paused
trial that it can finish. So the answer is a whole trial, and no worker waits. What the trials of `--confirm` will cost
is kept back for them, at most half of each budget.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from tuner.core.events import Event, Report, TrialSuggested
from tuner.core.rules.order import best_first
from tuner.core.state import State, TrialState
from tuner.record import clock
from tuner.record.texts import counted, duration, exact_duration
from tuner.spec.experiment import Experiment
from tuner.spec.methods import SCHEDULERS
from tuner.spec.option_values import option
from tuner.spec.resources import Resources
from tuner.spec.script_text import MOST_REPORTS

SLACK = 1.1  # factor of all estimates, because an epoch may take longer than earlier ones
HOURS = ("cpu_hours", "gpu_hours")
OVERRUN = 1.02  # until this share of a budget, the best trial may train on to its last epoch


class Cost(NamedTuple):
    """A number of epochs of one trial, and the seconds that they take on its worker, with a start before them."""

    seconds: float
    epochs: int

    def and_then(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.epochs + other.epochs)


NOTHING = Cost(0.0, 0)


class Budget:
    """What a search may spend, has spent, and will spend on its trials; `hear` must get each event once."""

    def __init__(
        self,
        experiment: Experiment,
        resources: Resources,
        state: State,
        num_settings: int = 0,  # maximum number of settings that the searcher proposes; 0 = --num-samples
    ) -> None:
        self.limits = experiment.budgets
        self.finishing: set[str] = set()  # trials that train to their last epoch, whatever the rule says of them
        self.confirming = False  # whether what is left is for the trials of --confirm
        self.state, self._experiment, self._begun = state, experiment, clock.now()
        self._aim, self._num_settings = experiment.aim, num_settings or experiment.most_samples
        self._per_trial, self._concurrent = (resources.cpus, resources.gpus), resources.concurrent
        self._standings: dict[str, float] = {}  # what `_standing` looks up; empty after a report
        self.on_notice: Callable[[str], None] | None = None  # called once, if one trial needs more than a budget
        self.before_s = state.sessions.took_s  # the seconds of earlier sessions

    def hear(self, event: Event) -> None:
        """Takes an event that `state` has applied."""
        if isinstance(event, Report):
            self._standings.clear()
            self._notice_too_long()
        elif isinstance(event, TrialSuggested):
            self._standings.clear()
            self.confirming |= event.confirms is not None

    @property
    def rules(self) -> Experiment:
        return self.state.options

    def used(self, name: str) -> float:
        """Returns how much of a budget is spent; trials that run now count up to now."""
        if name == "time_budget":
            return self.before_s + clock.now() - self._begun
        if name == "epoch_budget":
            return self.state.num_epochs
        kind, now = HOURS.index(name), clock.now()
        running = sum(max(0.0, now - trial.since) * trial.resources[kind] for trial in self.state.running.values())
        return ((self.state.cpu_s, self.state.gpu_s)[kind] + running) / 3600

    def _notice_too_long(self) -> None:
        """Tells once if a trial of all epochs takes longer than a whole budget."""
        if self.on_notice and self.state.num_gaps and (text := self.too_long()):
            self.on_notice(text)
            self.on_notice = None

    def too_long(self) -> str:
        """Says that one trial needs more than a whole budget; empty if none does, as far as is known."""
        whole = self.cost("", self.rules.max_epochs)
        needs = {"epoch_budget": float(whole.epochs), "time_budget": whole.seconds if self.epoch_s else 0.0}
        needs |= {name: needs["time_budget"] * self._hourly(name) / 3600 for name in HOURS}
        name = next((name for name, limit in self.limits.items() if needs[name] > limit), "")
        if not name or self._is_length_open:
            return ""
        given = self._experiment.time_budget if name == "time_budget" else f"{self.limits[name]:.10g}"
        takes = f", which takes {_amount(name, needs[name])}" if name != "epoch_budget" else ""
        trial = f"too little for a trial of {counted(whole.epochs, 'epoch')}{takes}"
        return f"{option(name)} {given}: {trial}; raise it, or lower --max-epochs"

    def line(self) -> str:
        """Says what is used, what an epoch costs, and what is planned with the rest; '' without a budget."""
        if not self.limits:
            return ""
        parts = [" and ".join(f"{_amount(name, self.used(name))} of {self.named(name)}" for name in self.limits)]
        if (epoch_s := self.epoch_s) is not None:
            parts += [f"an epoch takes {exact_duration(epoch_s)}"]
        if epoch_s is not None and not self._is_length_open:
            parts[-1] += f", all of a trial's {exact_duration(epoch_s * self.rules.max_epochs)}"
            finishing, number = sorted(self.finishing & self.state.running.keys()), self.num_settings(epoch_s)
            more = f"about {counted(number, 'more setting')}" if number else "no more settings"
            if self._none_ends(self.state.trials):
                more = "too little is left for a whole trial"
            elif SCHEDULERS[self.rules.scheduler].pauses:
                more = f"{more}, then " if number else ""
                more += f"the best trials train to their last epoch{': ' * bool(finishing)}{', '.join(finishing)}"
            again = "the best settings train again with other seeds"
            parts += [again if self.confirming else f"{more}{f', then {again}' * bool(self._experiment.confirm)}"]
        return f"budget: {'; '.join(parts)}{'; it is used up' if self.spent() else ''}"

    @property
    def _is_length_open(self) -> bool:
        """Whether a trial's length is unknown: that of a script with the default of --max-epochs, until one ends."""
        return self.rules.max_epochs == MOST_REPORTS and not self.state.any_whole

    def num_settings(self, epoch_s: float) -> int:
        """Estimates how many more settings fit into the budgets if an epoch takes `epoch_s` seconds."""
        mean, number = mean_epochs(self.rules), math.inf
        pauses = SCHEDULERS[self.rules.scheduler].pauses
        kept = self.rules.max_epochs if pauses else 0  # at the end, for the best paused trial
        begun = sum(max(0.0, mean - trial.epoch) for trial in self.state.running.values())
        for name in self.limits:
            left = self._left(name, Cost(self.rules.max_epochs * epoch_s, self.rules.max_epochs))
            if name != "epoch_budget":
                per_s = 1.0 if name == "time_budget" else self._hourly(name) / 3600
                left = left / (per_s * epoch_s) if per_s * epoch_s else math.inf
            workers = self._concurrent if name == "time_budget" else 1
            number = min(number, (workers * (left - kept) - begun) / mean)
        num_begun = sum(not trial.confirms for trial in self.state.trials.values())
        return max(0, int(min(number, self._num_settings - num_begun)))

    def _left(self, name: str, whole: Cost) -> float:
        """Returns what is left of a budget, less what --confirm will need if a whole trial costs `whole`."""
        e, left = self._experiment, self.limits[name] - self.used(name)
        number = 0 if self.confirming else e.confirm * e.confirm_seeds
        if name == "epoch_budget":
            kept: float = number * whole.epochs
        elif name == "time_budget":
            kept = SLACK * whole.seconds * math.ceil(number / max(1, self._concurrent))
        else:
            kept = SLACK * whole.seconds * number * self._hourly(name) / 3600
        return left - min(kept, self.limits[name] / 2)

    def _hourly(self, name: str) -> float:
        return self._per_trial[HOURS.index(name)]

    def spent(self) -> str:
        """Returns the name of a budget of which nothing is left; empty if there is none."""
        return next((name for name, limit in self.limits.items() if self.used(name) >= limit), "")

    def over(self) -> str:
        """Returns which budget is spent, as a sentence; empty if none is, or if the best trial needs a little more."""
        if not (name := self.spent()):
            return ""
        used, limit = self.used(name), self.limits[name]
        # After its last epoch, a trial may send one more report; this epoch is paid already.
        ends = all(trial.epoch >= self.rules.max_epochs for trial in self.state.running.values())
        is_paid = name == "epoch_budget" and used == limit and ends
        return "" if is_paid or (used < OVERRUN * limit and self._is_training_best()) else f"{self.named(name)} is over"

    def named(self, name: str) -> str:
        limit = self.limits[name]
        if name == "time_budget":
            return f"the time budget of {self._experiment.time_budget}"
        if name == "epoch_budget":
            return f"the budget of {counted(int(limit), 'epoch')}"
        return f"the budget of {limit:.10g} {'CPU' if name == 'cpu_hours' else 'GPU'}-hours"

    def used_up(self, confirmed: bool = False) -> str:
        """Says that a budget pays for nothing more, or that its last part has `confirmed` the best settings."""
        name = max(self.limits, key=lambda name: self.used(name) / self.limits[name])
        if confirmed:
            return f"{self.named(name)} is over: its last part was for --confirm"
        if self.spent():
            return f"{self.named(name)} is over"
        return f"what is left of {self.named(name)} is too little for another trial"

    @property
    def name(self) -> str:
        """All budgets of the search in words."""
        return " and ".join(map(self.named, self.limits))

    def why_finish(self) -> str:
        return f"trains to its last epoch: the best of the paused trials for which {self.name} suffices"

    def _is_training_best(self) -> bool:
        best = min(self.state.trials, key=self._standing, default="")
        return best in self.state.running and (best in self.finishing or self.rules.scheduler != "asha-promotion")

    def _standing(self, trial_id: str) -> float:
        """Returns a trial's best value as a loss; with several metrics, its place in the order of `best_first`."""
        if not self._aim.several:
            return self.state.trials[trial_id].compared
        if not self._standings:  # with 1,000 trials, this takes 35 ms
            points = {each: trial.point for each, trial in self.state.trials.items() if trial.point}
            places = {list(points)[at]: place for place, at in enumerate(best_first(list(points.values())))}
            self._standings = dict.fromkeys(self.state.trials, math.inf) | places
        return self._standings[trial_id]

    @property
    def epoch_s(self) -> float | None:
        """The mean seconds of an epoch; None until a trial has sent two reports in one run, unless each sends one."""
        state = self.state
        if state.num_gaps:
            return state.between_s / state.num_gaps
        return state.firsts_s / state.num_firsts if state.num_firsts and self.rules.max_epochs == 1 else None

    def cost(self, trial_id: str, epochs: int) -> Cost:
        """Estimates the cost of a trial's next epochs ('': of a new trial's).

        The first report of a run also pays for its start. Until `epoch_s` is known, all of that counts as start. A
        running trial that has reported needs no start.
        """
        epoch_s, trial = self.epoch_s or 0.0, self.state.trials.get(trial_id, TrialState())
        start_s = max(0.0, self.state.firsts_s / self.state.num_firsts - epoch_s) if self.state.num_firsts else 0.0
        if trial.gaps:
            epoch_s = trial.between_s / trial.gaps
        elif epoch_s and not math.isnan(trial.first_s):
            epoch_s = max(epoch_s, trial.first_s - start_s)
        is_started = trial_id in self.state.running and not math.isnan(trial.first_s)
        return Cost((0.0 if is_started else start_s) + epochs * epoch_s, epochs)

    def fits(self, cost: Cost, to_come: Cost) -> bool:
        """Whether each budget pays for a cost beside what is `to_come` of other trials; they use no time of it."""
        whole = self.cost("", self.rules.max_epochs)
        for name in self.limits:
            left = self._left(name, whole)
            if name == "time_budget":
                needed = SLACK * cost.seconds
            elif name == "epoch_budget":
                needed = cost.epochs + to_come.epochs
            else:
                needed = (SLACK * cost.seconds + to_come.seconds) * self._hourly(name) / 3600
            if needed > left:
                return False
        return True

    def rest(self, trial_id: str) -> Cost:
        """Returns the cost of a trial's epochs up to its last one, less the seconds since its last start or report."""
        rest = self.cost(trial_id, max(0, self.rules.max_epochs - self.state.trials.get(trial_id, TrialState()).epoch))
        running = self.state.running.get(trial_id)
        spent_s = clock.now() - running.since - running.still_s if running else 0.0
        return rest._replace(seconds=max(0.0, rest.seconds - spent_s))

    def _leg(self, trial_id: str) -> Cost:
        """Returns the cost of a trial up to its next rung with asha-promotion, which may pause it there."""
        if self.rules.scheduler != "asha-promotion" or trial_id in self.finishing:
            return self.rest(trial_id)
        epoch, most = self.state.trials.get(trial_id, TrialState()).epoch, self.rules.max_epochs
        return self.cost(trial_id, next((rung for rung in self.rules.rungs() if rung > epoch), most) - epoch)

    def _to_come(self, busy: Iterable[str]) -> Cost:
        """Returns what trials with a worker may still cost."""
        return functools.reduce(Cost.and_then, map(self.rest, busy), NOTHING)

    def _none_ends(self, trials: Iterable[str]) -> bool:
        """Whether the search gets no whole trial: none has completed, and the budget pays for the rest of none."""
        return not (self.state.any_whole or any(self.fits(self.rest(trial_id), NOTHING) for trial_id in ("", *trials)))

    def plan(self, paused: Sequence[str], busy: Sequence[str], none_left: bool = False) -> tuple[str, bool]:
        """Plans for a free worker: returns the paused trial to finish ('' = none), and whether a setting may start.

        `busy` trials have a worker or will get one; `none_left` says that there is no setting to start.
        """
        to_come, leg = self._to_come(busy), self._leg("")
        if self.confirming:
            return "", not none_left and self.fits(self.rest(""), to_come)
        best, is_early = self._best(paused, to_come), self.fits(self.rest(""), to_come)
        if none_left or (best and not (is_early and self.fits(leg.and_then(self.rest(best)), to_come))):
            return best, False
        # If no trial can be finished any more, a setting still gets its first epochs, as otherwise the worker waits.
        # Without a whole trial, this holds for each scheduler, as the search would end with its budget unused.
        may_start = is_early or (not best and self.fits(leg, to_come))
        return "", may_start or (self.fits(self.cost("", 1), NOTHING) and self._none_ends([*paused, *busy]))

    def held(self, trial_id: str, paused: Sequence[str], busy: Sequence[str]) -> str:
        """Says why a trial waits that the rule lets go on at a rung; '' if it goes on."""
        if self.confirming:
            return f"waits: what is left of {self.name} is for --confirm"
        to_come, rest = self._to_come(busy), self.rest(trial_id)
        if not self.fits(rest, to_come):
            why = f"waits: its other {counted(rest.epochs, 'epoch')} need more than is left of {self.name}"
            return "" if self._none_ends([trial_id, *paused, *busy]) else why
        best = self._best(paused, to_come)
        if not best or self._standing(trial_id) <= self._standing(best):
            return ""
        after = self._leg(trial_id).and_then(self.rest(best))
        return "" if self.fits(after, to_come) else f"waits: what is left of {self.name} is for the better trial {best}"

    def _best(self, paused: Iterable[str], to_come: Cost) -> str:
        """Returns the best of the paused trials that can train to their last epoch; '' if none can."""
        for trial_id in sorted(paused, key=self._standing):
            if trial_id not in self.finishing and self.fits(self.rest(trial_id), to_come):
                return trial_id
        return ""


def mean_epochs(e: Experiment) -> float:
    """Returns how many epochs a setting trains on average, if each rung of `has_rungs` lets 1 in N pass."""
    if not SCHEDULERS[e.scheduler].has_rungs:
        return e.max_epochs
    rungs = [0, *e.rungs()]
    if rungs[-1] < e.max_epochs:
        rungs.append(e.max_epochs)
    return sum((b - a) / e.reduction_factor**n for n, (a, b) in enumerate(pairwise(rungs)))


def _amount(name: str, amount: float) -> str:
    if name == "time_budget":
        return duration(amount)
    kind = name[:3].upper()
    return counted(int(amount), "epoch") if name == "epoch_budget" else f"{round(amount, 3):,.7g} {kind}-hours"
