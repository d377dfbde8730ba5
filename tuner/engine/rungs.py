"""Ray's ASHA with the rule of `tuner.spec.asha`; reads the place of a trial in Ray's HyperBand."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, HyperBandScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from tuner.spec.asha import AshaBracket, AshaComparison, Rewards, cutoff


class Bracket(_Bracket):
    """Ray's ASHA bracket with the rungs and the cutoff of `tuner.spec.asha`.

    The cost of this cutoff does not grow with the number of recorded trials.
    """

    def __init__(self, grace_period: int, max_t: int, reduction_factor: float) -> None:
        super().__init__(grace_period, max_t, reduction_factor, 0)
        self.rule = AshaBracket(max_t, grace_period, reduction_factor)
        self._rungs = self.rule.rungs

    def cutoff(self, recorded: Rewards) -> float | None:
        """Returns the reward that a trial must reach to continue; None if the rung is empty."""
        return cutoff(recorded.in_order, self.rf)


class AshaScheduler(AsyncHyperBandScheduler):
    """Ray's ASHA with one bracket."""

    def __init__(self, time_attr: str, grace_period: int, max_t: int, reduction_factor: float) -> None:
        super().__init__(time_attr, max_t=max_t, grace_period=grace_period, reduction_factor=reduction_factor)
        self._bracket = Bracket(grace_period, max_t, reduction_factor)
        self._brackets = [self._bracket]

    def comparison(self, trial_id: str, epoch: int) -> AshaComparison | None:
        """Returns how ASHA will judge a trial's report of this epoch; None if it compares that report with nothing."""
        return self._bracket.rule.comparison(trial_id, epoch)


@dataclass(frozen=True)
class HyperBandPlace:
    """A trial's bracket in HyperBand and the bracket's next rung.

    Args:
        bracket: the bracket's number.
        rung: the epoch at which the bracket is next halved.
        size: number of trials in the bracket after its latest halving.
        kept: number of trials that the next halving keeps.
        halves: whether the bracket is halved at `rung`; at its last rung it ends instead.
        live: ids of the trials in the bracket.
    """

    bracket: int
    rung: int
    size: int
    kept: int
    halves: bool
    live: frozenset[str]


def place_of(scheduler: HyperBandScheduler, trial: Trial) -> HyperBandPlace:
    """Returns a trial's current bracket and the bracket's next rung."""
    bracket, _ = scheduler._trial_info[trial]
    band = next(band for band in scheduler._hyperbands if bracket in band)
    return HyperBandPlace(
        scheduler._hyperbands.index(band) * len(band) + band.index(bracket),
        int(bracket._cumul_r),
        int(bracket._n),
        math.ceil(bracket._n / bracket._eta),
        bracket._halves > 0,
        frozenset(trial.trial_id for trial in bracket._live_trials),
    )
