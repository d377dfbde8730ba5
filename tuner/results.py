"""Reads an experiment's folder into frozen records; writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.experiment import Experiment, load_experiment
from tuner.journal import read
from tuner.records import Report, TrialRecord, best_of, records_of


@dataclass(frozen=True)
class ExperimentRecord:
    """An experiment as its folder has it; `state` is running, finished, interrupted or failed."""

    experiment: Experiment
    facts: dict[str, Any]
    trials: tuple[TrialRecord, ...]
    state: str

    def best(self) -> tuple[TrialRecord, Report] | None:
        """The winner by `experiment.BEST_RULE` and its best report."""
        folder = self.experiment.folder
        return best_of(self.trials, self.experiment, folder) or best_of(self.trials, self.experiment, None)


def load(folder: Path) -> ExperimentRecord:
    """Reads one experiment's folder; RequestError where it is none."""
    experiment, facts = load_experiment(folder)
    experiment = replace(experiment, results=str(folder.parent), name=folder.name)
    events = read(folder / "journal.jsonl")
    states = {"experiment_started": "running", "experiment_resumed": "running"}
    state = "running"
    for event in events:
        if event["event"] == "experiment_finished":
            state = event["state"]
        state = states.get(event["event"], state)
    return ExperimentRecord(experiment, facts, tuple(records_of(events)), state)
