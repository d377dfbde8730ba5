"""What schedulers need of Ray's private parts: a controller for the replay of a journal, and PBT that ends."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import PopulationBasedTraining


class ReplayController:
    """Holds trials that have a status and no worker.

    Args:
        search_alg: the search algorithm, which schedulers read.
    """

    def __init__(self, search_alg: Any) -> None:
        self.search_alg = search_alg
        self.trials: dict[str, Trial] = {}

    def get_trials(self) -> list[Trial]:
        """Returns all trials."""
        return list(self.trials.values())

    def get_live_trials(self) -> list[Trial]:
        """Returns the trials that have not ended."""
        return [trial for trial in self.trials.values() if not trial.is_finished()]

    def _schedule_trial_save(self, trial: Trial, result: dict[str, Any]) -> Any:
        # Ray's population-based training calls this private method of Ray's controller, which this class replaces. It
        # copies no trial whose last report has no checkpoint.
        return trial.checkpoint if result.get("checkpoint_dir_name") else None

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        """Marks the trial as paused."""
        trial.set_status(Trial.PAUSED)


def set_last_result(trial: Trial, result: dict[str, Any]) -> None:
    """Sets a trial's last report in a replay, before Ray's controller gets the trial."""
    trial.run_metadata.last_result = result


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
