"""Registers with Ray, for a resumed search, the undamaged checkpoints that its journal names."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from ray.tune import Checkpoint
from ray.tune.experiment import Trial

from tuner.engine.controller.trials import count_checkpoints_from, note_checkpoint
from tuner.errors import RequestError
from tuner.record.checkpoints import damage, within
from tuner.record.events import Event
from tuner.record.records import sign_of
from tuner.spec.experiment import Experiment

logger = logging.getLogger(__name__)


class JournalCheckpoints:
    """Collects the checkpoints that the journal names, and registers with Ray those that trials can continue from."""

    def __init__(self, experiment: Experiment) -> None:
        self._folder, self._sign = experiment.folder, sign_of(experiment.mode)
        self._metric = experiment.metric
        self._at_once = experiment.scheduler == "pbt"  # pbt copies checkpoints between trials during a replay
        self._best: dict[str, tuple[float, int]] = {}
        self._named: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
        self._last: dict[str, tuple[Path, int]] = {}  # trial -> path and epoch of the last checkpoint in the journal

    def add(self, trial: Trial, report: Event) -> None:
        """Notes the path and the metrics of the checkpoint that a journaled report names, for `register`.

        With pbt it calls `register` at once.
        """
        value = report["metrics"].get(self._metric)
        value = self._sign * value if isinstance(value, (int, float)) else math.nan
        best, at = self._best.get(trial.trial_id, (math.inf, 0))
        improved = value < best or (value == best and report["epoch"] == at)  # the trial repeated its best epoch
        if improved:
            self._best[trial.trial_id] = value, report["epoch"]
        if "checkpoint" not in report:
            return
        try:
            path = within(self._folder, report["checkpoint"])
        except RequestError as error:
            logger.warning("trial %s: %s", trial.trial_id, error)
            return
        # Ray reads `improved` to decide which checkpoints to keep; a worker counts epochs from `training_iteration`.
        metrics = {**report["metrics"], "training_iteration": report["epoch"]}
        metrics["improved"] = report["epoch"] if improved else 0
        count_checkpoints_from(trial, int(path.name.rpartition("_")[2]))
        self._named.setdefault(trial.trial_id, []).append((path, metrics))
        self._last[trial.trial_id] = path, report["epoch"]
        if self._at_once:
            self.register(trial)

    def register(self, trial: Trial) -> None:
        """Registers the trial's existing, undamaged checkpoints with Ray; the trial continues from the last of them."""
        for path, metrics in self._named.pop(trial.trial_id, ()):
            if not path.exists():
                continue  # Ray has deleted it: of a Task it keeps the best and the latest, except with pbt
            why = damage(path)
            if why:
                logger.warning("trial %s: its checkpoint %s is damaged: %s", trial.trial_id, path, why)
                continue
            note_checkpoint(trial, Checkpoint.from_directory(path.absolute()), metrics)

    def reaches(self, trial_id: str, epoch: int) -> bool:
        """Whether the trial's last checkpoint in the journal is of this epoch and exists."""
        path, last = self._last.get(trial_id, (Path(), 0))
        return last == epoch and path.exists()
