"""Ray's population-based training, repaired so that it ends when fewer trials run at once than there are."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining


class Population(PopulationBasedTraining):
    """Population-based training in which a trial is set back once at most before it reaches a new epoch.

    With fewer slots than trials, the checkpoint that a poor trial copies may be of an earlier epoch. Ray compares the
    trial there again, and sets it back again: if the values tie or grow worse, no trial ever trains all its epochs.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_back: dict[str, int] = {}  # trial -> the last epoch from which it was set back

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        epoch = self._trial_state[trial].last_train_time
        if self._trial_state[trial_to_clone].last_train_time < epoch:
            if epoch <= self._set_back.get(trial.trial_id, 0):
                return
            self._set_back[trial.trial_id] = epoch
        super()._exploit(tune_controller, trial, trial_to_clone)
