"""Runs one session of a search: checks the request, creates the folder, searches, and writes the answer.

The first run of a search is a session, and so is each `--resume`, which opens the existing folder. The answer is
trials.csv and, in `best/`, the best trial with its model.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tuner.errors import RequestError
from tuner.record.events import Event
from tuner.record.journal import Journal
from tuner.record.object_store import ObjectStore, Uploader
from tuner.record.results import ExperimentRecord, load
from tuner.record.saved_experiment import BEGUN, save_experiment
from tuner.spec.experiment import Experiment
from tuner.spec.places import is_uri
from tuner.spec.resources import resources_of
from tuner.tuning import driver
from tuner.tuning.answer.conclusion import Answer, conclude
from tuner.tuning.assembly import assemble
from tuner.tuning.requests import Request
from tuner.views.report import write_report

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """The result of a session: its request, the record of the search, the answer and how it ended."""

    request: Request
    record: ExperimentRecord
    answer: Answer | None
    outcome: driver.Outcome

    @property
    def exit_code(self) -> int:
        """0 done; 1 no trial has a finite metric, every trial failed, or the search gave up; 130 interrupted."""
        if self.outcome.state == "interrupted":
            return 130
        succeeded = any(trial.status != "failed" for trial in self.record.trials)
        return 0 if self.answer and succeeded and self.outcome.state == "finished" else 1


def make_folder(request: Request) -> None:
    """Creates the folder of a new experiment; raises a RequestError if another driver has just created it."""
    try:
        request.experiment.folder.mkdir(parents=True)
    except FileExistsError:
        name = request.experiment.name
        raise RequestError(f"--name {name}: {request.experiment.folder} already exists; give another name") from None


def stored(experiment: Experiment) -> AbstractContextManager[object]:
    """Copies the experiment's folder to the object store of --results while in the context, if --results is one."""
    if not is_uri(experiment.results):
        return nullcontext()
    return Uploader(ObjectStore(experiment.results), experiment.name, experiment.folder)


def open_journal(request: Request) -> Journal:
    """Writes experiment.json, opens the journal, and writes the start of this session to it."""
    experiment, folder = request.experiment, request.experiment.folder
    save_experiment(experiment, folder, request.facts)
    journal = Journal(folder / "journal.jsonl")
    journal_start(journal, experiment, request.history, request.loaded_space.sha256)
    if not request.facts.get(BEGUN):
        # The first event is on the disk before BEGUN is, and BEGUN before a trial starts. So after a crash in between
        # a journal without events is never refused by mistake, and no trial is ever lost without a word.
        journal.sync()
        save_experiment(experiment, folder, {**request.facts, BEGUN: True})
    return journal


def journal_start(journal: Journal, experiment: Experiment, history: list[Event], sha256: str) -> None:
    """Writes the start of a session to the journal, with all that a replay of the session depends on."""
    journal.write(
        "experiment_resumed" if history else "experiment_started",
        name=experiment.name,
        num_samples=experiment.num_samples,
        max_epochs=experiment.max_epochs,
        space_sha256=sha256,
    )


def conduct(request: Request, journal: Journal) -> Done:
    """Runs the search and writes its answer.

    Raises:
        RequestError: a trial fits on no node, a report or the journal contradicts the request, or writing fails.
        KeyboardInterrupt: the search was stopped while its folder was missing or the disk was full.
    """
    resources = request.resources or resources_of(request.experiment, driver.nodes())
    experiment, folder = request.experiment, request.experiment.folder
    try:
        assembly = assemble(
            experiment, request.loaded_space, request.splits, journal, request.history, resources, request.table
        )
        outcome = driver.search(assembly, journal)
    finally:
        journal.close()
    if journal.lost:
        raise KeyboardInterrupt  # the journal could not be written before the interrupt, so neither can the answer
    record = load(folder)
    answer = None
    try:
        ended = outcome.state == "finished"
        answer = conclude(record, request.loaded_space, request.splits, resources.cpus, resources.gpus, ended=ended)
        write_report(record)
    except OSError as error:
        again = f"the search itself is saved: free some space, then --resume {experiment.name} writes them"
        if outcome.state != "interrupted":
            raise RequestError(f"{folder}: the result files cannot be written ({error}); {again}") from None
        logger.warning("%s: the result files cannot be written (%s); %s", folder, error, again)
    return Done(request, record, answer, outcome)
