"""Explains the decisions of Ray's schedulers by reading their state.

Sources: ASHA, Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, in Ray's stopping
variant; the median rule of Golovin et al., "Google Vizier", KDD 2017; HyperBand, Li et al., JMLR 2018; BOHB, Falkner
et al., ICML 2018; population-based training, Jaderberg et al., 2017.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from tuner.engine.controller.rungs import HyperBand
from tuner.record.events import is_trial_id
from tuner.record.records import sign_of
from tuner.tuning.scheduling.incremental import IncrementalMedian
from tuner.tuning.scheduling.ruling import RuleScheduler
from tuner.views.labels import trials


@dataclass(frozen=True)
class Comparison:
    """What a scheduler compared a report with.

    Attributes:
        rung: the epoch of the comparison; None if nothing is compared at this report, and with pbt.
        bracket: the bracket's number: 0 for asha, from 0 on for asha-promotion; the number within the band for
            HyperBand and BOHB; else None.
        band: the band's number for HyperBand and BOHB; else None.
        cutoff: the value that the trial had to reach, with the metric's own sign; None if no value is known yet.
        recorded: the number of other trials that have a value at the rung.
        kept: for a halving of HyperBand or BOHB, how many trials of the bracket continue; 0 otherwise.
        value: for the median rule, the trial's best value, which is compared; None if the report's value is compared.
        factor: with asha-promotion, the best 1 in `factor` trials at the rung are promoted; 0 otherwise.
        closing: with asha-promotion, whether it decided because no trial ran and no setting was left.
        promoted: with asha-promotion, whether the trial had paused at the rung and now continues.
        copied: with pbt, the trial whose state the trial copied; empty if it copied none.
    """

    rung: float | None = None
    bracket: int | None = None
    band: int | None = None
    cutoff: float | None = None
    recorded: int = 0
    value: float | None = None
    kept: int = 0
    factor: float = 0
    closing: bool = False
    promoted: bool = False
    copied: str = ""


class Explainer:
    """Explains the decisions of one scheduler. Call `before` before the scheduler gets a report."""

    def __init__(self, scheduler: TrialScheduler, metric: str, mode: str) -> None:
        self._scheduler, self._metric = scheduler, metric
        self._sign = -float(sign_of(mode))

    def before(self, trial: Trial, result: dict[str, Any]) -> Comparison:
        """Returns what the scheduler will compare the report with; the caller must ask before the scheduler decides."""
        scheduler, epoch, value = self._scheduler, result["training_iteration"], result[self._metric]
        if isinstance(scheduler, IncrementalMedian):
            return self._median(scheduler, trial, epoch, value)
        if isinstance(scheduler, HyperBand):
            return self._waiting(scheduler, trial) if epoch >= scheduler.bracket_of(trial).rung else Comparison()
        return Comparison()

    def after(self, trial: Trial, before: Comparison) -> Comparison:
        """Returns `before`, or the comparison at a halving that the decision caused: it has HyperBand's cutoff.

        For asha and asha-promotion returns the decision's own comparison.
        """
        if isinstance(self._scheduler, RuleScheduler):
            return self._of_rule(self._scheduler, trial)
        halving = self._halving(trial)
        return before if halving is None or halving.rung != before.rung else halving

    def copying(self, trial: Trial, compared: Comparison) -> Comparison:
        """Adds the trial whose checkpoint the trial continues from, after population-based training changed it."""
        checkpoint = trial.checkpoint
        owner = PurePath(checkpoint.path).parent.name if checkpoint else ""  # as in `ray/00003/checkpoint_000001`
        return replace(compared, copied=owner if is_trial_id(owner) and owner != trial.trial_id else "")

    def removed(self, trial: Trial) -> Comparison:
        """Returns the rung at which the scheduler stops a paused trial, and the cutoff if the trial missed one."""
        if isinstance(self._scheduler, RuleScheduler):
            return self._of_rule(self._scheduler, trial)
        if not isinstance(self._scheduler, HyperBand):
            return Comparison()
        halving = self._scheduler.bracket_of(trial).last_halving
        if halving and trial.trial_id in halving.stopped:
            return self._halving(trial) or Comparison()
        return self._waiting(self._scheduler, trial)

    def promoted(self) -> list[tuple[Trial, Comparison]]:
        """Returns the paused trials that continue since the last call, and what each was compared with."""
        if isinstance(self._scheduler, RuleScheduler):
            promoted = self._scheduler.promoted()
            return [(trial, replace(self._of_rule(self._scheduler, trial), promoted=True)) for trial in promoted]
        trials = self._scheduler.promoted() if isinstance(self._scheduler, HyperBand) else []
        return [(trial, compared) for trial in trials if (compared := self._halving(trial))]

    def _waiting(self, scheduler: HyperBand, trial: Trial) -> Comparison:
        bracket = scheduler.bracket_of(trial)
        band, number = scheduler.place_of(bracket)
        return Comparison(bracket.rung, number, band, recorded=bracket.num_at_rung(trial))

    def _halving(self, trial: Trial) -> Comparison | None:
        """Returns what the last halving of the trial's bracket compared the trial with; None if it compared nothing."""
        if not isinstance(self._scheduler, HyperBand):
            return None
        bracket = self._scheduler.bracket_of(trial)
        halving = bracket.last_halving
        if halving is None or trial.trial_id not in halving.values:
            return None
        band, number = self._scheduler.place_of(bracket)
        kept = len(halving.values) - len(halving.stopped)
        return Comparison(halving.rung, number, band, halving.cutoff, len(halving.values) - 1, kept=kept)

    def reason(self, action: str, value: Any, compared: Comparison, changed: dict[str, tuple[Any, Any]]) -> str:
        """Says in words why a decision was made.

        Args:
            changed: the parameters that population-based training changed: name -> (old value, new value).
        """
        if changed:
            steps = ", ".join(f"{name} {short(old)} -> {short(new)}" for name, (old, new) in changed.items())
            return f"is in the worst quarter: copies the state of a better trial, with {steps}"
        if compared.factor:
            return self._of_promotion(action, value, compared)
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
        if compared.kept:
            return self._of_bracket(action, f"{what} {value:.6g}", compared, at)
        return f"{what} {value:.6g} is {better} {cutoff}"

    def _of_bracket(self, action: str, value: str, compared: Comparison, at: str) -> str:
        """Says why a trial continues or stops at a halving, in which a bracket keeps a fixed number of trials."""
        if not compared.recorded:
            return f"{value} is the only one of its bracket{at}"
        best = f"the best {compared.kept} of the {trials(compared.recorded + 1)} of its bracket{at}"
        if action == "continue":
            return f"{value} is among {best}"
        return f"{value} is not among {best}; the worst of them has {compared.cutoff:.6g}"

    def _of_promotion(self, action: str, value: Any, compared: Comparison) -> str:
        """Says why a trial waits for its promotion, is promoted, or is stopped while it waits."""
        at, number, best = f"at rung {compared.rung:g}", compared.recorded + 1, f"the best 1/{compared.factor:g}"
        few = "only this trial has" if number == 1 else f"only {number} trials have"
        cutoff = f"{few} reached it" if compared.cutoff is None else (
            f"the cutoff is {compared.cutoff:.6g} of {trials(number)}"
        )  # fmt: skip
        own = f"{self._metric} {value:.6g}, {cutoff}"
        begin = "promoted: " if compared.promoted else ""
        if action == "pause":
            return f"waits {at} until it is among {best} of the trials there: {own}"
        if action == "continue" and compared.closing:
            last = "no other trial runs, and none has trained to the end"
            return f"{begin}is the best of the trials that wait {at}; {last}"
        if action == "continue":
            limit = f"; the cutoff is {compared.cutoff:.6g}" if compared.cutoff is not None else ""
            return f"{begin}{self._metric} {value:.6g} is among {best} of the {trials(number)} {at}{limit}"
        if compared.closing and compared.cutoff is None:
            return f"waited {at} to the end of the search, where too few trials came to promote {best} of them: {own}"
        if compared.closing:
            return f"waited {at} to the end of the search, not among {best} of the trials there: {own}"
        return f"has no checkpoint to wait with {at}, not among {best} of the trials there: {own}"

    def _why_paused(self, compared: Comparison) -> str:
        if isinstance(self._scheduler, PopulationBasedTraining):
            return "waits until the other trials of the population have trained"
        return f"waits at rung {compared.rung:g} for the other trials of its bracket"

    def _of_rule(self, scheduler: RuleScheduler, trial: Trial) -> Comparison:
        judged = scheduler.judged.get(trial.trial_id)
        if judged is None or judged.rung is None:
            return Comparison()
        compared = Comparison(
            judged.rung,
            judged.bracket,
            cutoff=None if judged.cutoff is None else -self._sign * judged.cutoff,
            recorded=judged.recorded,
        )
        if scheduler.stops:
            return compared
        return replace(compared, factor=scheduler.factor, closing=trial.trial_id in scheduler.closing)

    def _median(self, scheduler: IncrementalMedian, trial: Trial, epoch: int, value: float) -> Comparison:
        if epoch < scheduler.grace_period:
            return Comparison()
        cutoff, recorded, best = scheduler.compared(trial, epoch, value)
        return Comparison(epoch, cutoff=cutoff, recorded=recorded, value=best)


def short(value: Any) -> str:
    """Formats a float with six significant digits, and any other value with `str`."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
