"""Creates Ray's trials and registers checkpoints of earlier sessions with them."""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import Any

from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.experiment import Experiment as RayExperiment
from ray.tune.experiment import Trial


class SearchTrial(Trial):
    """A trial whose retries the controller decides; Ray's own count of failures is ignored."""

    def set_retry(self, will_retry: bool) -> None:
        """Makes Ray retry the trial after the current failure, or not: -1 allows any number of failures, 0 none."""
        self.max_failures, self.run_metadata.num_failures = -1 if will_retry else 0, 1

    def handle_error(self, exc: Any = None) -> None:
        """Writes the error into the trial's folder; a full disk does not end the search."""
        with contextlib.suppress(OSError):
            super().handle_error(exc)


def new_trial(
    experiment: RayExperiment,
    trial_id: str,
    config: dict[str, Any],
    keep: CheckpointConfig,
    log_files: tuple[str | None, str | None],
) -> SearchTrial:
    """Returns a pending trial; its id is also its name and the name of its folder."""
    spec = experiment.spec
    trial = SearchTrial(
        experiment.run_identifier,
        config=config,
        trial_id=trial_id,
        storage=spec.get("storage"),
        evaluated_params=config,
        placement_group_factory=spec.get("resources_per_trial"),
        checkpoint_config=keep,
        trial_name_creator=attrgetter("trial_id"),
        log_to_file=log_files,
    )
    # Without this line, Ray would give a trial another folder if two searches of a cluster start in the same second.
    trial.relative_logdir = trial.storage.trial_dir_name = trial_id
    return trial


def note_checkpoint(trial: Trial, checkpoint: Checkpoint, metrics: dict[str, Any]) -> None:
    """Registers a checkpoint with Ray as the trial's latest one; the index of the next checkpoint stays."""
    index = trial.storage.current_checkpoint_index
    trial.on_checkpoint(_TrainingResult(checkpoint, metrics))
    count_checkpoints_from(trial, index)


def count_checkpoints_from(trial: Trial, index: int) -> None:
    """Sets the index of the trial's latest checkpoint; the next one gets the next index."""
    trial.storage.current_checkpoint_index = index
