"""Stands in for Ray's controller while a journal is replayed, so that schedulers can be called without workers."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial


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
