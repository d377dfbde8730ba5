"""Ray's HyperBand with three repairs and a memory of halvings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import ray.tune.schedulers
from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler, hyperband


@dataclass(frozen=True)
class Halving:
    """What a HyperBand bracket compared when it was last halved.

    Args:
        rung: the epoch at which it was halved.
        values: the metric of each trial that was live in the bracket, by trial id.
        cutoff: the value of the worst trial that was kept.
        stopped: ids of the trials that were not kept.
    """

    rung: int
    values: dict[str, float]
    cutoff: float
    stopped: frozenset[str]


class HyperBandBracket(hyperband._Bracket):
    """Ray's HyperBand bracket; also remembers its last halving."""

    last_halving: Halving | None = None

    @property
    def rung(self) -> int:
        """The epoch at which the bracket is next halved, or ends."""
        return int(self._cumul_r)

    def num_at_rung(self, trial: Trial) -> int:
        """Returns how many live trials of the bracket, besides `trial`, have reached its next rung."""
        results = [result for other, result in self._live_trials.items() if other is not trial]
        return sum(self._get_result_time(result) >= self._cumul_r for result in results)

    def cleanup_full(self, tune_controller: Any) -> None:
        """Stops the trials that wait at the bracket's last rung, or still save their checkpoint there.

        Ray does not stop a trial that still saves its checkpoint: that trial would stay paused for ever.
        """
        for trial in self.current_trials():
            if trial.status == Trial.PAUSED or trial.is_saving:
                tune_controller.stop_trial(trial)

    def successive_halving(self, metric: str, metric_op: float) -> tuple[list[Trial], list[Trial]]:
        """Halves the bracket as Ray does; returns the trials that it keeps, worst first, and those that it stops.

        Ray also halves a bracket whose last live trial has diverged or failed: nothing is compared then.
        """
        rung, live = self.rung, self._live_trials
        good, bad = super().successive_halving(metric, metric_op)
        if not good:
            return good, bad
        values = {trial.trial_id: float(result[metric]) for trial, result in live.items()}
        stopped = frozenset(trial.trial_id for trial in bad)
        self.last_halving = Halving(rung, values, values[good[0].trial_id], stopped)
        return good, bad


class HyperBand(HyperBandScheduler):
    """Ray's HyperBand, with repairs of three errors that leave trials paused for ever: such a search never ends.

    `_process_bracket`, `on_trial_remove` and `HyperBandBracket.cleanup_full` each repair one. The brackets also
    remember their last halving, and the scheduler the paused trials that halvings promoted.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._promoted: list[Trial] = []

    def _create_bracket(self, s: int) -> HyperBandBracket:
        bracket = super()._create_bracket(s)
        bracket.__class__ = HyperBandBracket  # a new object would need six of Ray's private attributes
        return cast(HyperBandBracket, bracket)

    def _process_bracket(self, tune_controller: Any, bracket: HyperBandBracket) -> str:
        """Halves or ends a bracket as Ray does, if all its live trials have reached its next rung.

        This resets `is_being_processed`, which Ray sets at the first halving and never resets. While it is set, Ray
        does not halve the bracket when a trial ends. If the last trial before a later rung failed, the other trials
        would stay paused for ever.
        """
        action: str = super()._process_bracket(tune_controller, bracket)
        bracket.is_being_processed = False
        return action

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Removes a trial that has ended; if all other trials of its bracket wait at the last rung, stops them.

        Ray does not stop them here; they would stay paused for ever.
        """
        super().on_trial_remove(tune_controller, trial)
        bracket = self.bracket_of(trial)
        if bracket.finished():
            bracket.cleanup_full(tune_controller)

    def _unpause_trial(self, tune_controller: Any, trial: Trial) -> None:
        super()._unpause_trial(tune_controller, trial)
        self._promoted.append(trial)

    def promoted(self) -> list[Trial]:
        """Returns the paused trials that halvings have promoted since the last call."""
        promoted, self._promoted = self._promoted, []
        return promoted

    def bracket_of(self, trial: Trial) -> HyperBandBracket:
        """Returns the bracket that a trial was added to."""
        bracket: HyperBandBracket = self._trial_info[trial][0]
        return bracket

    def place_of(self, bracket: HyperBandBracket) -> tuple[int, int]:
        """Returns the number of a bracket's band, and the bracket's number in its band, both from 0.

        A band is one round over all brackets. In HyperBand, bracket n of a band is halved n times. In BOHB the order is
        reversed: bracket 0 is halved most often.
        """
        return next((n, band.index(bracket)) for n, band in enumerate(self._hyperbands) if bracket in band)


class HyperBandForBOHB(HyperBand, ray.tune.schedulers.HyperBandForBOHB):
    """Ray's variant of HyperBand for BOHB, with the repairs of `HyperBand`."""
