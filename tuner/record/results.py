"""Reads an experiment's folder into frozen records, and writes nothing."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.core.events import Report
from tuner.core.rules.own_length import at_length
from tuner.core.timing import Session
from tuner.errors import RequestError
from tuner.record.checkpoints import SavedCheckpoints
from tuner.record.confirm import Confirmation, confirmation
from tuner.record.format import JOURNAL
from tuner.record.ray_folder import is_ray_folder, read_ray
from tuner.record.reading import Hold, Reading
from tuner.record.records import TrialRecord, kept
from tuner.record.saved_experiment import BEGUN, FILE, check_same_search, load_experiment, lost_journal, no_experiment
from tuner.record.search_stats import SearchStats
from tuner.record.storage.files import MOST_BYTES, SWELL
from tuner.record.storage.lock import abandoned
from tuner.record.texts import counted
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import is_in_main
from tuner.training.task import trial_seed, whole_config

END = "interrupted"  # the state of a killed search, and of its trials that were running
KILLED = "the search's process was ended; what was reported is kept, and --resume goes on"


@dataclass(frozen=True)
class ExperimentRecord:
    """An experiment, read from its folder.

    Attributes:
        state: running, finished, interrupted or failed; `reason` says why the search ended before all trials did.
        refused: whether the search ended because its request was wrong.
        out_of_time: whether a budget ended it; `state` is then finished.
        unchecked: the parameters of which no trial could tell that they reach the training, with what it saw instead.
        changed: why the search used the rule of asha although asha-promotion was chosen; empty if it did not.
        length: epochs of the longest trial that ended by itself, if the rungs were moved to this length; else 0.
        grace: the grace period that the search has learned from early epochs; 0 if it learned none.
        took_s: the seconds of all sessions together.
        updated: the time of the last event, in unix seconds; None without events.
        lines: how many lines of the journal the record was built from.
    """

    experiment: Experiment
    facts: dict[str, Any]
    trials: tuple[TrialRecord, ...]
    state: str
    reason: str = ""
    refused: bool = False
    out_of_time: bool = False
    unchecked: dict[str, str] = field(default_factory=dict)
    changed: str = ""
    length: int = 0
    grace: int = 0
    sessions: tuple[Session, ...] = field(default=(), compare=False, repr=False)
    took_s: float = field(default=0.0, compare=False)
    updated: float | None = field(default=None, compare=False)
    lines: int = field(default=0, compare=False)

    @cached_property
    def stats(self) -> SearchStats:
        return SearchStats(self.rules, self.trials, self.refused, self.length + self.grace > 0)

    @cached_property
    def searched(self) -> tuple[TrialRecord, ...]:
        """The trials of the search without those of `--confirm`, which no rule judges."""
        return tuple(trial for trial in self.trials if not trial.confirms)

    @cached_property
    def confirmation(self) -> Confirmation:
        return confirmation(self.experiment, self.stats)

    @cached_property
    def contenders(self) -> SearchStats:
        """The trials among which the best is the answer: those that confirmed the winner, else those of the search."""
        if len(self.searched) == len(self.trials):
            return self.stats
        winner = self.confirmation.winner
        chosen = tuple(trial for trial in self.trials if winner and trial.id in winner.trials) or self.searched
        return SearchStats(self.rules, chosen, self.refused, self.length + self.grace > 0)

    @cached_property
    def rules(self) -> Experiment:
        """The options with the rungs in force, which `tuner.core.rules.own_length` moves."""
        return at_length(self.experiment, self.length, self.grace)

    @property
    def constants(self) -> dict[str, Any]:
        """The space's constants, which trials' configs in the journal lack."""
        return dict(self.facts.get("space", {}).get("constants", {}))

    def config_of(self, trial: TrialRecord) -> dict[str, Any]:
        """Returns the whole config of a trial: its parameters, constants, and its seed and length if it gets them."""
        space = self.facts.get("space", {})
        seed = trial_seed(self.experiment.seed, trial.id) if space.get("seeded") else None
        length = name if isinstance(name := space.get("length"), str) else ""
        epoch, most = self.shorter(trial)
        max_epochs = most if most and epoch == trial.last_epoch else self.experiment.max_epochs
        return whole_config(trial.config, self.constants, seed=seed, length=length, max_epochs=max_epochs)

    def elapsed(self, time: float) -> float:
        """Converts a unix time to seconds of the search, which leave out the time between sessions."""
        place = bisect_right(self.sessions, time, key=lambda session: session.begun)
        session = self.sessions[max(0, place - 1)] if self.sessions else Session(0.0, 0.0)
        return max(0.0, session.before_s + time - session.begun)

    def shorter(self, trial: TrialRecord) -> tuple[int, int]:
        """Returns the last epoch that a trial trained under another `max_epochs` than the present one, and that number.

        Both are 0 if there is no such epoch.
        """
        found = 0, 0
        for report in trial.reports:
            place = bisect_right(self.sessions, report.time, key=lambda session: session.begun)
            most = self.sessions[place - 1].max_epochs if place else 0
            if most and most != self.experiment.max_epochs:
                found = report.epoch, most
        return found

    def epochs_of(self, trial: TrialRecord) -> int:
        """Returns how many epochs a trial trained: its last reports may have the searched metric alone."""
        return trial.length(self.experiment.compared, self.experiment.wanted)

    @property
    def retrainable(self) -> bool:
        """Whether `tuner.train` and `tuner.audit` can train its trials: the space is a file or module with a task."""
        space = self.experiment.space
        return bool(space) and not is_in_main(space) and "data" in self.facts

    def whole_length(self) -> tuple[int, str, bool]:
        """Returns a trial's length in epochs (0 if unknown), the same in words, and whether some may train fewer."""
        e, lengths = self.experiment, self.stats.lengths
        is_task = "data" in self.facts  # a task's trial trains max_epochs, a function's may end by itself
        if is_task or (e.stop and (self.length or e.max_epochs in lengths)):
            most = e.max_epochs if is_task else self.length or e.max_epochs
            return most, f"{most} epochs", bool(e.stop)
        if not lengths or e.stop:
            return 0, "", False
        most = max(lengths)
        if len(lengths) == 1:
            return most, counted(most, "epoch"), False
        return most, f"as long as the longest of the others ({most} epochs)", True

    @property
    def cut_short(self) -> list[TrialRecord]:
        """The trials that a rule stopped, and after the end of a search those that asha-promotion left paused.

        A paused trial that the rule had promoted is not among them: the budget ended it.
        """
        is_over = self.state == "finished" and self.experiment.scheduler == "asha-promotion"
        lasts = [(t, t.decisions[-1]) for t in self.trials if t.status == "paused" and t.decisions and is_over]
        return [*self.stats.stopped, *(t for t, last in lasts if last.action == "pause" and not last.budget)]

    @kept
    def epochs_saved(self) -> dict[str, int]:
        """Estimates how many epochs pruning saved: for each trial of `cut_short`, those up to `whole_length`."""
        length = self.whole_length()[0]
        return {trial.id: max(0, length - self.epochs_of(trial)) for trial in self.cut_short}

    @kept
    def best(self) -> tuple[TrialRecord, Report] | None:
        """The best trial and report by `experiment.BEST_RULE`, if possible among reports whose checkpoint exists."""
        return self.contenders.best_saved(SavedCheckpoints(self.experiment.folder)) or self.best_journaled

    @kept
    def front(self) -> list[tuple[TrialRecord, Report]]:
        """The Pareto front of trials that keep the constraints, its knee first; with one metric only `best`."""
        best = self.best()
        if not (best and self.experiment.aim.several):
            return [best] if best else []
        saved = SavedCheckpoints(self.experiment.folder)
        return self.stats.front(saved) or self.stats.front(None) or self.stats.whole_front()

    def broken(self) -> str:
        """Says which constraints the best trial breaks; empty if it keeps all, or if there is no best trial."""
        best = self.best()
        return best[0].broken(self.experiment.aim, best[1]) if best else ""

    @property
    def best_journaled(self) -> tuple[TrialRecord, Report] | None:
        """The best trial and report as the journal has them: what `best` returns while all checkpoints exist."""
        return self.contenders.best_saved(None) or self.contenders.best()


def load(folder: Path) -> ExperimentRecord:
    """Reads an experiment's folder, or a folder of plain Ray Tune; raises RequestError if it cannot."""
    if not folder.is_dir():
        raise RequestError(no_experiment(folder))
    return Following(folder).load()


def load_named(name: str, results: str) -> ExperimentRecord:
    """Loads an experiment by its name in `results` or, as --resume does, by its path; raises RequestError as `load`."""
    return load(Path("" if "/" in name.rstrip("/") else results, name))


class Following:
    """Reads one experiment's folder repeatedly: new lines of a journal of `most_bytes` at most, or Ray's files."""

    def __init__(self, folder: Path, most_bytes: int | None = None) -> None:
        self.folder = folder
        self._reading = Reading(folder / JOURNAL, most_bytes)
        self._stats: SearchStats | None = None

    def load(self, until: float | None = None, hold: Hold = lambda weight: None) -> ExperimentRecord:
        """Returns the experiment as its folder now has it; for arguments and errors, see `Reading.read_on`."""
        folder = self.folder
        try:
            if not (folder / FILE).exists() and is_ray_folder(folder):
                experiment, facts, folding = read_ray(folder, hold)
                return ExperimentRecord(experiment, facts, **folding.fields() | {"lines": 0})
            size = (folder / FILE).lstat().st_size if os.path.lexists(folder / FILE) else 0
        except OSError as error:
            raise RequestError(f"{folder} cannot be read: {error.strerror or error}") from None
        facts_weight = SWELL * min(size, MOST_BYTES)  # `json_in` refuses longer files
        hold(facts_weight)
        experiment, facts = load_experiment(folder)
        experiment = replace(experiment, results=str(folder.parent), name=folder.name)
        journal = folder / JOURNAL
        if facts.get(BEGUN) and not (journal.exists() and journal.stat().st_size):
            raise lost_journal(journal)
        folding = self._reading.read_on(until, lambda weight: hold(facts_weight + weight))
        check_same_search(folding.first, facts, journal)
        record = ExperimentRecord(experiment, facts, **folding.fields())
        if record.state == "running" and abandoned(folder):  # a killed driver writes no final event
            trials = [replace(t, status=END, reason=KILLED) if t.status == "running" else t for t in record.trials]
            record = replace(record, trials=tuple(trials), state=END, reason=KILLED)
        if self._stats:
            record.stats.take_over(self._stats)
        self._stats = record.stats
        return record
