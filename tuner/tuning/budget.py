"""Follows what a search has spent of its budgets, estimates what its trials will cost, and plans its last part.

A budget is time, GPU-hours, CPU-hours or epochs, of all sessions of a search together. A search takes new settings
while the best paused trial could still train to its last epoch afterwards. Then each free worker trains the best paused
trial that it can finish. So the answer is a whole trial, and no worker waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tuner.record.events import BEGINNINGS, Event
from tuner.record.records import Folding, finite
from tuner.record.texts import counted, duration
from tuner.rules.order import best_first
from tuner.spec.constraints import Point
from tuner.spec.experiment import Experiment
from tuner.spec.option_values import option
from tuner.spec.resources import Resources

SLACK = 1.1  # factor of all estimates, because an epoch may take longer than earlier ones
OVERRUN = 1.02  # until this share of a budget, the best trial may train on to its last epoch


class Cost(NamedTuple):
    """A number of epochs of one trial, and the seconds that they take on its worker, with a start before them."""

    seconds: float
    epochs: int

    def and_then(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.epochs + other.epochs)


NOTHING = Cost(0.0, 0)


@dataclass
class Spent:
    """What is known of a trial's cost and value."""

    epoch: int = 0  # its last epoch
    best: float = math.inf  # its best value of the reports that break no constraint, as a loss
    point: Point | None = None  # its last report, if there are several metrics
    since: float = math.nan  # unix time of its last start or report
    resources: Sequence[float] = (0.0, 0.0)  # its CPUs and GPUs
    first_s: float = math.nan  # seconds from its last start to the first report after it; nan without that report
    between_s: float = 0.0  # sum of the seconds between two reports
    gaps: int = 0  # their number


class Budget:
    """What a search may spend, has spent, and will spend on its trials; `hear` must get each event once."""

    def __init__(self, experiment: Experiment, resources: Resources, history: Iterable[Event] = ()) -> None:
        self.limits = experiment.budgets
        self.finishing: set[str] = set()  # trials that train to their last epoch, whatever the rule says of them
        self._experiment, self._begun, self._compared = experiment, time.monotonic(), experiment.compared
        self._aim = experiment.aim
        self._per_trial, self._concurrent = (resources.cpus, resources.gpus), resources.concurrent
        self._num_epochs, self._cpu_s, self._gpu_s, self._before_s = 0, 0.0, 0.0, 0.0
        self._trials: dict[str, Spent] = {}
        self._running: dict[str, Spent] = {}
        self._firsts_s, self._num_firsts = 0.0, 0  # sum and number of `first_s` of all starts
        self._between_s, self._num_gaps = 0.0, 0  # sum and number of the seconds between two reports of a trial
        self.on_notice: Callable[[str], None] | None = None  # called once, if one trial needs more than a budget
        if self.limits:
            self._before_s = Folding(events := list(history)).took_s
            for event in events:
                self.hear(event)
            self._running.clear()

    def hear(self, event: Event) -> None:
        kind, trial_id = event["event"], event.get("trial")
        if kind in BEGINNINGS:
            self._running.clear()  # a killed session has not ended its trials
        if trial_id is None or not self.limits:
            return
        trial = self._trials.setdefault(trial_id, Spent())
        if kind == "trial_started":
            held = event["resources"]
            trial.since, trial.first_s = event["time"], math.nan
            trial.resources = held.get("CPU", 0.0), held.get("GPU", 0.0)
            self._running[trial_id] = trial
        elif kind in ("report", "trial_failed", "trial_ended") and trial_id in self._running:
            took_s, trial.since = max(0.0, event["time"] - trial.since), event["time"]
            self._cpu_s += took_s * trial.resources[0]
            self._gpu_s += took_s * trial.resources[1]
            if kind == "report" and math.isnan(trial.first_s):
                trial.first_s = took_s
                self._firsts_s, self._num_firsts = self._firsts_s + took_s, self._num_firsts + 1
            elif kind == "report":
                trial.between_s, trial.gaps = trial.between_s + took_s, trial.gaps + 1
                self._between_s, self._num_gaps = self._between_s + took_s, self._num_gaps + 1
                self._notice_too_long()
        if kind == "report":
            self._num_epochs += 1
            trial.epoch = max(trial.epoch, event["epoch"])
            broken = self._aim.broken_by(event["metrics"])
            value = None if broken else finite(self._compared.value(event["metrics"]))
            if self._aim.several:
                trial.point = self._aim.point(event["metrics"]) or trial.point
            trial.best = min(trial.best, math.inf if value is None else self._compared.sign * value)
        elif kind in ("trial_failed", "trial_ended") or event.get("action") == "pause":
            self._running.pop(trial_id, None)

    def used(self, name: str) -> float:
        """Returns how much of a budget is spent; trials that run now count up to now."""
        if name == "time_budget":
            return self._before_s + time.monotonic() - self._begun
        if name == "epoch_budget":
            return self._num_epochs
        kind, now = ("cpu_hours", "gpu_hours").index(name), time.time()
        running = sum(max(0.0, now - trial.since) * trial.resources[kind] for trial in self._running.values())
        return ((self._cpu_s, self._gpu_s)[kind] + running) / 3600

    def _notice_too_long(self) -> None:
        """Tells once if a trial of all epochs takes longer than a whole budget."""
        if self.on_notice and (text := too_long(self._experiment, self._per_trial, self.epoch_s or 0.0)):
            self.on_notice(text)
            self.on_notice = None

    def line(self) -> str:
        """Says what is used, what an epoch costs, and what is planned with the rest; '' without a budget."""
        if not self.limits:
            return ""
        parts = [" and ".join(f"{_amount(name, self.used(name))} of {self.named(name)}" for name in self.limits)]
        if (epoch_s := self.epoch_s) is not None:
            whole_s = epoch_s * self._experiment.max_epochs
            parts += [f"an epoch takes {_seconds(epoch_s)}, all of a trial's {_seconds(whole_s)}"]
            finishing = sorted(self.finishing & self._running.keys())
            number = self.num_settings(epoch_s)
            plan = f"about {counted(number, 'more setting')}, then the best trials train to their last epoch"
            last = f"the best trials train to their last epoch{': ' * bool(finishing)}{', '.join(finishing)}"
            parts += [plan if number else last]
        return f"budget: {'; '.join(parts)}"

    def num_settings(self, epoch_s: float) -> int:
        """Estimates how many more settings fit into the budgets if an epoch takes `epoch_s` seconds."""
        e, number = self._experiment, math.inf
        for name, limit in self.limits.items():
            left = limit - self.used(name)
            if name != "epoch_budget":
                per_s = 1.0 if name == "time_budget" else self._hourly(name) / 3600
                left = left / (per_s * epoch_s) if per_s * epoch_s else math.inf
            workers = self._concurrent if name == "time_budget" else 1
            number = min(number, workers * (left - e.max_epochs) / mean_epochs(e))
        return max(0, int(min(number, e.most_samples - len(self._trials))))

    def _hourly(self, name: str) -> float:
        return self._per_trial[("cpu_hours", "gpu_hours").index(name)]

    @property
    def left_s(self) -> float | None:
        """The seconds that are left of the time budget; None without one."""
        limit = self.limits.get("time_budget")
        return None if limit is None else max(0.0, limit - self.used("time_budget"))

    def over(self) -> str:
        """Returns which budget is spent, as a sentence; empty if none is, or if the best trial needs a little more."""
        for name, limit in self.limits.items():
            used = self.used(name)
            # Each report is paid before it comes; `plan` starts nothing that needs more epochs than are left.
            if used > limit or (used == limit and name != "epoch_budget"):
                if used >= OVERRUN * limit or not self._is_training_best():
                    return f"{self.named(name)} is over"
        return ""

    def named(self, name: str) -> str:
        limit = self.limits[name]
        if name == "time_budget":
            return f"the time budget of {self._experiment.time_budget}"
        if name == "epoch_budget":
            return f"the budget of {counted(int(limit), 'epoch')}"
        return f"the budget of {limit:g} {'CPU' if name == 'cpu_hours' else 'GPU'}-hours"

    def used_up(self) -> str:
        """Says that what is left of a budget pays for nothing more."""
        name = max(self.limits, key=lambda name: self.used(name) / self.limits[name])
        return f"{self.named(name)} is over: what is left is too little for another trial"

    @property
    def name(self) -> str:
        """All budgets of the search in words."""
        return " and ".join(map(self.named, self.limits))

    def why_finish(self) -> str:
        return f"trains to its last epoch: the best of the paused trials for which {self.name} suffices"

    def _is_training_best(self) -> bool:
        best = min(self._trials, key=self._standings().__getitem__, default="")
        return best in self._running and (best in self.finishing or self._experiment.scheduler != "asha-promotion")

    def _standings(self) -> dict[str, float]:
        """Trial -> its best value as a loss; with several metrics, its place in the order of `best_first`."""
        if not self._aim.several:
            return {trial_id: trial.best for trial_id, trial in self._trials.items()}
        points = {trial_id: trial.point for trial_id, trial in self._trials.items() if trial.point}
        order = [list(points)[at] for at in best_first(list(points.values()))]
        return dict.fromkeys(self._trials, math.inf) | {trial_id: place for place, trial_id in enumerate(order)}

    @property
    def epoch_s(self) -> float | None:
        """The mean seconds of an epoch, which may include a trial's start while no trial has reported twice."""
        if self._num_gaps:
            return self._between_s / self._num_gaps
        return self._firsts_s / self._num_firsts if self._num_firsts else None

    def cost(self, trial_id: str, epochs: int) -> Cost:
        """Estimates the cost of a trial's next epochs ('': of a new trial's); 0 s until a trial has reported."""
        usual_s, trial = self.epoch_s or 0.0, self._trials.get(trial_id, Spent())
        start_s = max(0.0, self._firsts_s / self._num_firsts - usual_s) if self._num_firsts else 0.0
        own_s = trial.between_s / trial.gaps if trial.gaps else trial.first_s
        return Cost(start_s + epochs * (usual_s if math.isnan(own_s) else own_s), epochs)

    def fits(self, cost: Cost, to_come: Cost) -> bool:
        """Whether each budget pays for a cost beside what is `to_come` of other trials; they use no time of it."""
        for name, limit in self.limits.items():
            left = limit - self.used(name)
            if name == "time_budget":
                needed = SLACK * cost.seconds
            elif name == "epoch_budget":
                needed = cost.epochs + to_come.epochs
            else:
                needed = (SLACK * cost.seconds + to_come.seconds) * self._hourly(name) / 3600
            if needed > left:
                return False
        return True

    def rest(self, trial_id: str, rules: Experiment) -> Cost:
        """Returns the cost of a trial's epochs up to its last one."""
        return self.cost(trial_id, max(0, rules.max_epochs - self._trials.get(trial_id, Spent()).epoch))

    def _leg(self, trial_id: str, rules: Experiment) -> Cost:
        """Returns the cost of a trial up to its next rung with asha-promotion, which may pause it there."""
        if rules.scheduler != "asha-promotion" or trial_id in self.finishing:
            return self.rest(trial_id, rules)
        epoch = self._trials.get(trial_id, Spent()).epoch
        return self.cost(trial_id, next((rung for rung in rules.rungs() if rung > epoch), rules.max_epochs) - epoch)

    def _to_come(self, busy: Iterable[str], rules: Experiment) -> Cost:
        """Returns what trials with a worker may still cost."""
        to_come, now = NOTHING, time.time()
        for trial_id in busy:
            rest, running = self.rest(trial_id, rules), self._running.get(trial_id)
            elapsed = now - running.since if running else 0.0
            to_come = to_come.and_then(Cost(max(0.0, rest.seconds - elapsed), rest.epochs))
        return to_come

    def plan(self, paused: Iterable[str], busy: Iterable[str], rules: Experiment) -> tuple[str, bool]:
        """Plans for a free worker: returns the paused trial to finish ('' = none), and whether a setting may start.

        `busy` trials have a worker or will get one.
        """
        to_come, leg = self._to_come(busy, rules), self._leg("", rules)
        best, is_early = self._best(paused, to_come, rules), self.fits(self.rest("", rules), to_come)
        if best and not (is_early and self.fits(leg.and_then(self.rest(best, rules)), to_come)):
            return best, False
        # If no trial can be finished any more, a setting still gets its first epochs, as otherwise the worker waits.
        return "", is_early or (not best and self.fits(leg, to_come))

    def held(self, trial_id: str, paused: Iterable[str], busy: Iterable[str], rules: Experiment) -> str:
        """Says why a trial waits that the rule lets go on at a rung; '' if it goes on."""
        to_come, rest = self._to_come(busy, rules), self.rest(trial_id, rules)
        if not self.fits(rest, to_come):
            return f"waits: its other {counted(rest.epochs, 'epoch')} need more than is left of {self.name}"
        best = self._best(paused, to_come, rules)
        standings = self._standings()
        if not best or standings[trial_id] <= standings[best]:
            return ""
        after = self._leg(trial_id, rules).and_then(self.rest(best, rules))
        return "" if self.fits(after, to_come) else f"waits: what is left of {self.name} is for the better trial {best}"

    def _best(self, paused: Iterable[str], to_come: Cost, rules: Experiment) -> str:
        """Returns the best of the paused trials that can train to their last epoch; '' if none can."""
        for trial_id in sorted(paused, key=self._standings().__getitem__):
            if trial_id not in self.finishing and self.fits(self.rest(trial_id, rules), to_come):
                return trial_id
        return ""


def mean_epochs(e: Experiment) -> float:
    """Returns how many epochs a setting trains on average, if each rung of asha or asha-promotion lets 1 in N pass."""
    if e.scheduler not in ("asha", "asha-promotion"):
        return e.max_epochs
    rungs = [0, *e.rungs()]
    if rungs[-1] < e.max_epochs:
        rungs.append(e.max_epochs)
    return sum((b - a) / e.reduction_factor**n for n, (a, b) in enumerate(pairwise(rungs)))


def too_long(e: Experiment, per_trial: Sequence[float], epoch_s: float) -> str:
    """Says that one trial needs more than a whole budget, if an epoch takes `epoch_s` seconds; empty if none does."""
    hours = e.max_epochs * epoch_s / 3600
    needs = {"time_budget": 3600 * hours, "cpu_hours": per_trial[0] * hours, "gpu_hours": per_trial[1] * hours}
    needs["epoch_budget"] = e.max_epochs
    name = next((name for name, limit in e.budgets.items() if needs[name] > limit), "")
    if not name:
        return ""
    given = e.time_budget if name == "time_budget" else f"{e.budgets[name]:g}"
    return (
        f"{option(name)} {given}: a trial of {counted(e.max_epochs, 'epoch')} takes {_amount(name, needs[name])}, so "
        f"none can train to its end; raise it, or lower --max-epochs"
    )


def _amount(name: str, amount: float) -> str:
    if name == "time_budget":
        return duration(amount)
    return counted(int(amount), "epoch") if name == "epoch_budget" else f"{amount:.2g} {name[:3].upper()}-hours"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)
