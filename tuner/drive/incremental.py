"""Ray's ASHA and median rule (ray 2.60.0), updated incrementally, so that the cost of a report hardly grows.

When a trial reaches a rung, Ray recomputes the percentile from all values: 0.3 ms with 10,000 trials. At every report,
Ray recomputes the running mean of every trial from all its reports: 5 ms with 100 trials.
"""

from __future__ import annotations

from bisect import insort
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, MedianStoppingRule, TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from tuner.record.records import sign_of
from tuner.spec.experiment import Experiment
from tuner.spec.rules import Median, percentile

TIME = "training_iteration"


class Rung(dict[str, float]):
    """The values of the trials that reached a rung: trial id -> reward, as Ray records it, and a sorted list."""

    def __init__(self) -> None:
        super().__init__()
        self.in_order: list[float] = []

    def __setitem__(self, trial_id: str, reward: float) -> None:
        super().__setitem__(trial_id, reward)
        insort(self.in_order, reward)  # keeps the list sorted: 3 us with 10,000 trials


class Bracket(_Bracket):
    """Ray's bracket, with `Rung` for its rungs."""

    _rungs: list[tuple[float, Rung]]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rungs = [(milestone, Rung()) for milestone, _ in self._rungs]

    def cutoff(self, recorded: Rung) -> float | None:
        return float(percentile(recorded.in_order, (1 - 1 / self.rf) * 100)) if recorded else None


class IncrementalAsha(AsyncHyperBandScheduler):
    """Ray's ASHA with one bracket."""

    def __init__(self, experiment: Experiment) -> None:
        grace, most, factor = experiment.grace_period, experiment.max_epochs, experiment.reduction_factor
        super().__init__(TIME, max_t=most, grace_period=grace, reduction_factor=factor)
        self._brackets = [Bracket(grace, most, factor, 0)]


class IncrementalMedian(MedianStoppingRule):
    """Ray's median rule, but a trial with too few others to compare with continues instead of pausing.

    Ray pauses such a trial after each epoch while other trials wait. This costs a restart per epoch, and a trial that
    saves no checkpoint loses all its epochs.
    """

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(time_attr=TIME, grace_period=experiment.grace_period)
        self._rule = Median(experiment)
        self._sign = sign_of(experiment.mode)

    def compared(self, trial: Trial, epoch: int, value: float) -> tuple[float | None, int, float]:
        """What the rule will compare the next report with: the cutoff, the number of other trials, the trial's best.

        The cutoff is None if nothing will be compared.
        """
        cutoff, num_others = self._rule.median(epoch)
        best = self._sign * self._rule.best(int(trial.trial_id), self._sign * value)
        return None if cutoff is None else self._sign * cutoff, num_others, best

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        judged = self._rule.judge(int(trial.trial_id), result[TIME], self._sign * result[self._metric])
        if judged.action == "continue":
            return str(TrialScheduler.CONTINUE)
        self._stopped_trials.add(trial)
        return str(TrialScheduler.STOP)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._rule.ended(int(trial.trial_id), result[TIME], self._sign * result[self._metric])
