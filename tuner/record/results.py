"""Reads an experiment's folder into frozen records; writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.record.saved_experiment import load_experiment

from tuner.errors import RequestError
from tuner.record.foreign import is_ray_folder, read_ray
from tuner.record.kept import kept
from tuner.record.lock import abandoned
from tuner.record.reading import Reading
from tuner.record.records import Report, TrialRecord
from tuner.record.standing import Standing, Tally
from tuner.spec.experiment import Experiment

KILLED = "the search's process was ended; what was reported is kept, and --resume goes on"


@dataclass(frozen=True)
class ExperimentRecord:
    """An experiment as its folder has it; `state` is running, finished, interrupted or failed.

    `reason` says why it ended before its last trial, if so.
    `followed` is how its trials stand where a journal that is followed has told; it is left aside for other trials.
    """

    experiment: Experiment
    facts: dict[str, Any]
    trials: tuple[TrialRecord, ...]
    state: str
    reason: str = ""
    followed: Standing | None = field(default=None, compare=False, repr=False)

    @cached_property
    def standing(self) -> Standing:
        """How its trials stand together."""
        if self.followed and self.followed.trials is self.trials:
            return self.followed
        return Tally(self.experiment).update(self.trials)

    @kept
    def best(self) -> tuple[TrialRecord, Report] | None:
        """The winner by `experiment.BEST_RULE` and its best report."""
        asked = self.experiment.metric, self.experiment.mode
        return self.standing.best_saved(*asked, self.experiment.folder) or self.standing.best(*asked)


def load(folder: Path) -> ExperimentRecord:
    """Reads one experiment's folder, also one that plain Ray Tune wrote; RequestError where it is none."""
    return Following(folder).load()


class Following:
    """One experiment's folder, read again and again: of its journal only what is new.

    Args:
        most_bytes: of a journal, as `Reading` has it.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self.folder = folder
        self.reading = Reading(folder / "journal.jsonl", most_bytes)
        self._tally: Tally | None = None
        self._beginnings = 0

    def load(self, until: float | None = None) -> ExperimentRecord:
        """The folder as it is now.

        Raises:
            NotYet: the journal is longer than could be read until then.
            RequestError: it is no experiment's, damaged, or cannot be read.
        """
        try:
            return self._load(until)
        except OSError as error:
            raise RequestError(f"{self.folder} cannot be read: {error.strerror or error}") from None

    def _load(self, until: float | None) -> ExperimentRecord:
        folder, reading = self.folder, self.reading
        if not (folder / "experiment.json").exists() and is_ray_folder(folder):
            return ExperimentRecord(*read_ray(folder))
        experiment, facts = load_experiment(folder)
        experiment = replace(experiment, results=str(folder.parent), name=folder.name)
        trials, state, reason = reading.read_on(until), reading.state, reading.reason
        if state == "running" and abandoned(folder):  # a driver that is killed writes no end
            state, reason = "interrupted", KILLED
            trials = [replace(t, status=state, reason=reason) if t.status == "running" else t for t in trials]
        if self._tally is None or reading.beginnings != self._beginnings:
            self._tally, self._beginnings = Tally(experiment), reading.beginnings
        standing = self._tally.update(trials)
        return ExperimentRecord(experiment, facts, standing.trials, state, reason, standing)
