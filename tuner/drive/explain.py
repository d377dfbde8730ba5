"""Explains a scheduler's decisions, by reading the state of Ray's schedulers.

Sources: ASHA, Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, in Ray's stopping
variant; the median rule of Golovin et al., "Google Vizier", KDD 2017; HyperBand, Li et al., JMLR 2018; BOHB, Falkner
et al., ICML 2018; population-based training, Jaderberg et al., 2017.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining, TrialScheduler

from tuner.drive.incremental import IncrementalMedian
from tuner.engine.rungs import AshaScheduler, place_of
from tuner.record.records import sign_of


@dataclass(frozen=True)
class Comparison:
    """What a scheduler compared a report with.

    Attributes:
        cutoff: the value that the trial had to reach, with the metric's own sign; None if nothing was compared.
        recorded: the number of other trials that the cutoff was computed from.
        value: the compared value, if it is not the metric of this report but, for example, the trial's best.
    """

    rung: float | None = None
    bracket: int | None = None
    cutoff: float | None = None
    recorded: int = 0
    value: float | None = None


class Explainer:
    """Explains the decisions of one scheduler. Call `before` before the scheduler gets a report."""

    def __init__(self, scheduler: TrialScheduler, metric: str, mode: str) -> None:
        self._scheduler, self._metric, self._mode = scheduler, metric, mode
        self._sign = -float(sign_of(mode))
        # The values of all trials that reached a rung of a HyperBand bracket; the scheduler drops them at a halving.
        self._reached: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
        self._at: dict[str, tuple[int, int]] = {}

    def before(self, trial: Trial, result: dict[str, Any]) -> Comparison:
        """What the scheduler will compare the report with; `rung` is None if it will compare nothing."""
        scheduler, epoch, value = self._scheduler, result["training_iteration"], result[self._metric]
        if isinstance(scheduler, AshaScheduler):
            return self._asha(scheduler, trial.trial_id, epoch)
        if isinstance(scheduler, IncrementalMedian):
            return self._median(scheduler, trial, epoch, value)
        if isinstance(scheduler, HyperBandScheduler):
            return self._hyperband(scheduler, trial, epoch, value)
        return Comparison()

    def removed(self, trial: Trial) -> Comparison:
        """For a paused trial that the scheduler stops: the rung that it waited at, and the cutoff that it missed."""
        place = self._at.get(trial.trial_id)
        if place is None or not isinstance(self._scheduler, HyperBandScheduler):
            return Comparison()
        best_first = sorted(self._reached[place].values(), reverse=self._mode == "max")
        # HyperBand halves the bracket before it stops trials, so `size` is the number of trials that it keeps.
        kept = place_of(self._scheduler, trial).size
        cutoff = best_first[kept - 1] if 0 < kept <= len(best_first) else None
        if cutoff is not None and self._sign * self._reached[place][trial.trial_id] >= self._sign * cutoff:
            cutoff = None  # it did not miss the cutoff: the whole bracket has ended
        return Comparison(place[1], place[0], cutoff, len(best_first) - 1)

    def reason(self, action: str, value: Any, compared: Comparison, changed: dict[str, tuple[Any, Any]]) -> str:
        """The reason of a decision in words.

        Args:
            changed: the parameters that population-based training has changed: name -> (old value, new value).
        """
        if changed:
            steps = ", ".join(f"{name} {short(old)} -> {short(new)}" for name, (old, new) in changed.items())
            return f"is in the worst quarter: copies the state of a better trial, with {steps}"
        if action == "pause":
            return self._why_paused(compared)
        at = "" if compared.rung is None else f" at rung {compared.rung:g}"
        value = value if compared.value is None else compared.value
        if compared.cutoff is None or not isinstance(value, (int, float)):
            few = f"only {trials(compared.recorded)}" if compared.recorded else "no other trial"
            return f"{few} to compare with{at}" if action == "continue" else f"its bracket has ended{at}"
        what = "best " + self._metric if compared.value is not None else self._metric
        better = "not worse than" if action == "continue" else "worse than"
        cutoff = f"the cutoff {compared.cutoff:.6g} of the {trials(compared.recorded)} recorded{at}"
        return f"{what} {value:.6g} is {better} {cutoff}"

    def _why_paused(self, compared: Comparison) -> str:
        if isinstance(self._scheduler, PopulationBasedTraining):
            return "waits until the other trials of the population have trained"
        return f"waits at rung {compared.rung:g} for the other trials of its bracket"

    def _asha(self, scheduler: AshaScheduler, trial_id: str, epoch: int) -> Comparison:
        compared = scheduler.comparison(trial_id, epoch)
        if compared is None:
            return Comparison()
        own_sign = None if compared.cutoff is None else float(self._sign * compared.cutoff)
        return Comparison(compared.rung, 0, own_sign, compared.recorded)

    def _median(self, scheduler: IncrementalMedian, trial: Trial, epoch: int, value: float) -> Comparison:
        if epoch < scheduler.grace_period:
            return Comparison()
        return Comparison(epoch, None, *scheduler.compared(trial, epoch, value))

    def _hyperband(self, scheduler: HyperBandScheduler, trial: Trial, epoch: int, value: float) -> Comparison:
        stands = place_of(scheduler, trial)
        if epoch < stands.rung:
            return Comparison()
        place = stands.bracket, stands.rung
        reached = self._reached[place]
        reached[trial.trial_id] = value
        self._at[trial.trial_id] = place
        best_first = sorted(reached.values(), reverse=self._mode == "max")
        # The cutoff is known once the whole bracket has reached the rung; until then a trial waits.
        halved = stands.halves and set(reached) >= stands.live  # at the last rung it ends, with nobody compared
        cutoff = float(best_first[stands.kept - 1]) if halved and stands.kept <= len(best_first) else None
        return Comparison(stands.rung, stands.bracket, cutoff, len(reached) - 1)


def short(value: Any) -> str:
    """Formats a float with six significant digits, and any other value with `str`."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def trials(count: int) -> str:
    """The number of trials in words: `1 trial`, `2 trials`."""
    return f"{count} trial" if count == 1 else f"{count} trials"
