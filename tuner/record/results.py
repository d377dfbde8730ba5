"""Reads an experiment's folder into frozen records, and writes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.checkpoints import SavedCheckpoints
from tuner.record.ray_folder import is_ray_folder, read_ray
from tuner.record.reading import Hold, Reading, unbounded
from tuner.record.records import Report, Session, TrialRecord, kept
from tuner.record.saved_experiment import FILE, load_experiment, no_experiment
from tuner.record.search_stats import SearchStats
from tuner.record.storage.files import MOST_BYTES, SWELL
from tuner.record.storage.lock import abandoned
from tuner.rules.own_length import at_length
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import is_in_main

KILLED = "the search's process was ended; what was reported is kept, and --resume goes on"


@dataclass(frozen=True)
class ExperimentRecord:
    """An experiment, read from its folder.

    Attributes:
        state: running, finished, interrupted or failed.
        reason: why the search ended before its last trial, if it did.
        refused: whether it ended because its request was wrong.
        out_of_time: whether its time budget ended it; its state is finished.
        changed: why asha-promotion used the rule of asha instead of its own; empty if it did not.
        length: the most epochs after which a trial ended by itself, if the rungs moved to it; 0 if they did not.
        sessions: the search's sessions in order; empty for a folder without a journal.
    """

    experiment: Experiment
    facts: dict[str, Any]
    trials: tuple[TrialRecord, ...]
    state: str
    reason: str = ""
    refused: bool = False
    out_of_time: bool = False
    changed: str = ""
    length: int = 0
    sessions: tuple[Session, ...] = field(default=(), compare=False, repr=False)

    @cached_property
    def stats(self) -> SearchStats:
        """The counts, ranking, rungs and history of all trials."""
        return SearchStats(self.experiment, self.trials, refused=self.refused)

    @property
    def rules(self) -> Experiment:
        """The experiment with the stopping rules now in force: its rungs are at the length that the trials have."""
        return at_length(self.experiment, self.length)

    @property
    def constants(self) -> dict[str, Any]:
        """The space's constants, which trials' configs in the journal lack."""
        return dict(self.facts.get("space", {}).get("constants", {}))

    @property
    def retrainable(self) -> bool:
        """Whether `tuner.train` and `tuner.audit` can train the settings: the space is a file or module with a task."""
        space = self.experiment.space
        return bool(space) and not is_in_main(space) and "data" in self.facts

    @kept
    def best(self) -> tuple[TrialRecord, Report] | None:
        """Returns the best trial by `experiment.BEST_RULE` and its best report; None if there is none.

        A report whose checkpoint is gone counts only if all are gone.
        """
        return self.stats.best_saved(SavedCheckpoints(self.experiment.folder)) or self.best_journaled

    @property
    def best_journaled(self) -> tuple[TrialRecord, Report] | None:
        """The best trial and report as `best` returns them while no checkpoint is gone."""
        return self.stats.best_saved(None) or self.stats.best()


def load(folder: Path) -> ExperimentRecord:
    """Reads an experiment's folder, also one of plain Ray Tune.

    Raises:
        RequestError: the folder has no experiment, is damaged, or cannot be read.
    """
    if not folder.is_dir():
        raise RequestError(no_experiment(folder))
    return Following(folder).load()


class Following:
    """Reads one experiment's folder repeatedly: each time only the new lines of its journal, a Ray folder whole.

    Args:
        most_bytes: the maximum size of the journal; None = no limit.
        hold: called with each new `weight` before the memory is used; raises an error to forbid it.
    """

    def __init__(self, folder: Path, most_bytes: int | None = None, hold: Hold = unbounded) -> None:
        self.folder = folder
        self.reading = Reading(folder / "journal.jsonl", most_bytes, lambda more: hold(self._others + more))
        self._hold = hold
        self._others = 0  # memory of experiment.json, or of a Ray folder
        self._stats: SearchStats | None = None

    @property
    def weight(self) -> int:
        """Estimated bytes of memory that the experiment's data take."""
        return self._others + self.reading.weight

    def load(self, until: float | None = None) -> ExperimentRecord:
        """Returns the experiment as the folder now has it.

        Args:
            until: the time (`time.monotonic`) after which to stop reading the journal; None = read all.

        Raises:
            NotYet: the time was over before the journal was read.
            RequestError: the folder has no experiment, is damaged, or cannot be read.
        """
        try:
            return self._load(until)
        except OSError as error:
            raise RequestError(f"{self.folder} cannot be read: {error.strerror or error}") from None

    def _load(self, until: float | None) -> ExperimentRecord:
        folder = self.folder
        if not (folder / FILE).exists() and is_ray_folder(folder):
            try:
                return ExperimentRecord(*read_ray(folder, self._hold_others))
            except RequestError:
                self._others = 0  # the error frees the values that were read
                raise
        size = (folder / FILE).lstat().st_size if os.path.lexists(folder / FILE) else 0
        self._hold_others(SWELL * min(size, MOST_BYTES))  # `json_in` refuses longer files
        experiment, facts = load_experiment(folder)
        experiment = replace(experiment, results=str(folder.parent), name=folder.name)
        trials, folding = self.reading.read_on(until), self.reading.folding
        search = folding.search
        if search["state"] == "running" and abandoned(folder):  # a killed driver writes no final event
            search = {**search, "state": "interrupted", "reason": KILLED}
            trials = [replace(t, status="interrupted", reason=KILLED) if t.status == "running" else t for t in trials]
        record = ExperimentRecord(experiment, facts, tuple(trials), **search, sessions=tuple(folding.sessions))
        if self._stats:
            record.stats.take_over(self._stats)
        self._stats = record.stats
        return record

    def _hold_others(self, weight: int) -> None:
        self._hold(weight + self.reading.weight)
        self._others = weight
