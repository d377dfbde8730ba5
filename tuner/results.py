"""Reads an experiment's folder into frozen records; writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.experiment import Experiment, load_experiment
from tuner.foreign import is_ray_folder, read_ray
from tuner.kept import kept
from tuner.reading import Reading
from tuner.records import Report, TrialRecord, best_of


@dataclass(frozen=True)
class ExperimentRecord:
    """An experiment as its folder has it; `state` is running, finished, interrupted or failed."""

    experiment: Experiment
    facts: dict[str, Any]
    trials: tuple[TrialRecord, ...]
    state: str

    @kept
    def best(self) -> tuple[TrialRecord, Report] | None:
        """The winner by `experiment.BEST_RULE` and its best report."""
        folder = self.experiment.folder
        return best_of(self.trials, self.experiment, folder) or best_of(self.trials, self.experiment, None)


def load(folder: Path) -> ExperimentRecord:
    """Reads one experiment's folder, also one that plain Ray Tune wrote; RequestError where it is none."""
    return load_on(folder, Reading(folder / "journal.jsonl"))


def load_on(folder: Path, reading: Reading) -> ExperimentRecord:
    """As `load`, with a journal that may have been read up to a place before."""
    if not (folder / "experiment.json").exists() and is_ray_folder(folder):
        return ExperimentRecord(*read_ray(folder))
    experiment, facts = load_experiment(folder)
    experiment = replace(experiment, results=str(folder.parent), name=folder.name)
    trials = tuple(reading.read_on())
    return ExperimentRecord(experiment, facts, trials, reading.state)
