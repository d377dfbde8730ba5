"""One run of the command: from a request to the answer. Checks, makes the folder, searches, concludes.

A search may take several sessions: the first, and one for each `--resume`.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tuner import driver
from tuner.answer import Answer, conclude
from tuner.errors import RequestError, nearest
from tuner.experiment import EXTENDABLE, Experiment, latest_experiment, load_experiment, option
from tuner.facts import facts_of
from tuner.journal import Event, Journal, read
from tuner.records import records_of
from tuner.resources import Resources, local_cluster, resources_of
from tuner.results import ExperimentRecord, load
from tuner.schedulers import check_scheduler
from tuner.searchers import check_searcher
from tuner.space import Found, find_space
from tuner.training.data import DataError, Splits, hold_out
from tuner.wandb_mirror import wandb_mode


@dataclass(frozen=True)
class Saved:
    """An experiment as its folder has it."""

    experiment: Experiment
    facts: dict[str, Any]


@dataclass(frozen=True)
class Request:
    """A checked request: nothing in it can be refused any more, but for its data and a cluster's resources."""

    experiment: Experiment
    found: Found
    facts: dict[str, Any]
    history: list[Event]
    resources: Resources | None  # None where a cluster is to be asked
    wandb_mode: str
    splits: Splits | None = None


@dataclass(frozen=True)
class Done:
    """What a session left."""

    request: Request
    record: ExperimentRecord
    answer: Answer | None
    outcome: driver.Outcome

    @property
    def exit_code(self) -> int:
        """0 done, 1 no trial with a finite metric, 130 interrupted."""
        if self.outcome.state == "interrupted":
            return 130
        return 0 if self.answer else 1


def defaults_of(found: Found) -> Experiment:
    """The space's own choices, over which the command line's go."""
    space = found.space
    return Experiment(
        space=found.name,
        num_samples=space.num_samples,
        max_epochs=space.max_epochs,
        grace_period=min(space.grace_period, space.max_epochs),
        reduction_factor=space.reduction_factor,
        metric=space.metric,
        mode=cast(Any, space.mode),  # checked by Experiment
    )


def begin(experiment: Experiment, found: Found, argv: list[str]) -> Request:
    """A new search. RequestError for whatever cannot be done."""
    name = experiment.name or f"{Path(found.name).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    experiment = replace(experiment, name=name.replace(":", "-"))
    if experiment.folder.exists():
        raise RequestError(
            f"--name {name}: {experiment.folder} is there already; go on with it by --resume {name}, or take another"
        )
    return checked(experiment, found, facts_of(found, argv), [])


def saved(given: Experiment, name: str) -> Saved:
    """The experiment that `--resume` names."""
    results = Path(given.results)
    name = latest_experiment(results) if name == "latest" else name
    experiment, facts = load_experiment(results / name)
    return Saved(replace(experiment, results=given.results, name=name), facts)


def resume(wanted: Experiment, given: Saved) -> Request:
    """The rest of a search, or more of it; RequestError where what is wanted is another search."""
    changed = given.experiment.differences(wanted)
    refused = {name: pair for name, pair in changed.items() if name not in EXTENDABLE}
    if refused:
        listed = "; ".join(f"{option(name)} was {was!r}, now {now!r}" for name, (was, now) in refused.items())
        raise RequestError(f"--resume {given.experiment.name}: {listed}; leave these out, or start anew with --name")
    if wanted.num_samples < given.experiment.num_samples:
        raise RequestError(
            f"--resume {wanted.name}: --num-samples {wanted.num_samples} is below the {given.experiment.num_samples} "
            f"that were asked for; give more, or leave it out"
        )
    found = find_space(wanted.space)
    now = facts_of(found, [])["space"]
    try:
        old, new = dict(given.facts["space"]["params"]), now["params"]
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"{wanted.folder}/experiment.json is damaged ({error!r}); restore it from a copy") from None
    if old != new:
        names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
        listed = "; ".join(f"{name} was {old.get(name)}, now {new.get(name)}" for name in names)
        raise RequestError(f"--resume {wanted.name}: the space has changed: {listed}; start anew with --name")
    history = read(wanted.folder / "journal.jsonl")
    if history and history[-1]["event"] == "report" and wanted.scheduler != "fifo":
        del history[-1]  # a crash came before its decision: that epoch is trained and judged again
    return checked(wanted, found, given.facts, history)


def checked(experiment: Experiment, found: Found, facts: dict[str, Any], history: list[Event]) -> Request:
    """Everything that can be refused before Ray starts and before data is read."""
    reported = found.space.reported()
    if reported is not None and experiment.metric not in reported:
        raise RequestError(
            f"--metric {experiment.metric}: space {experiment.space!r} reports {', '.join(sorted(reported))}"
            f"{nearest(experiment.metric, reported)}"
        )
    driver.check_reachable(experiment.address)
    check_searcher(experiment, found.space)
    check_scheduler(experiment, found.space)
    writable(Path(experiment.results))
    resources = None if experiment.address else resources_of(experiment, [local_cluster()])
    return Request(experiment, found, facts, history, resources, wandb_mode(experiment.wandb))


def writable(results: Path) -> None:
    """RequestError where no folder can be made in `results`."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        probe = results / f".tuner-{os.getpid()}"
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        what = f"cannot be written to ({error.strerror}); give another folder"
        raise RequestError(f"--results {results}: {what}") from None


def load_data(request: Request) -> Request:
    """The request with its data read, decoded and split; RequestError where the data is not there or not whole."""
    task = request.found.space.task
    if task is None:
        return request
    folder = request.experiment.data_dir
    try:
        splits = task.data(Path(folder) if folder else None)
    except DataError as error:
        raise RequestError(str(error)) from error
    splits = hold_out(splits, fraction=task.validation_fraction, seed=request.experiment.seed)
    facts = {**request.facts, "data": {"source": splits.source, "notice": splits.notice}}
    return replace(request, splits=splits, facts=facts)


def open_journal(request: Request) -> Journal:
    """Makes the experiment's folder with experiment.json, and begins this session in its journal."""
    experiment, folder = request.experiment, request.experiment.folder
    folder.mkdir(parents=True, exist_ok=True)
    experiment.save(folder, request.facts)
    journal = Journal(folder / "journal.jsonl")
    journal.write("experiment_resumed" if request.history else "experiment_started", name=experiment.name)
    return journal


def conduct(request: Request, journal: Journal, nodes: list[dict[str, float]]) -> Done:
    """Searches and concludes; RequestError where a trial fits none of the nodes."""
    resources = request.resources or resources_of(request.experiment, nodes)
    experiment, folder = request.experiment, request.experiment.folder
    history = settled(journal, request.history, experiment.max_epochs)
    try:
        outcome = driver.search(experiment, request.found, request.splits, journal, history, resources)
    finally:
        journal.close()
    record = load(folder)
    answer = conclude(record, request.found, request.splits, resources.cpus, resources.gpus)
    return Done(request, record, answer, outcome)


def settled(journal: Journal, history: list[Event], max_epochs: int) -> list[Event]:
    """The history, with the ends of trials that were told to stop; a crash came before those were journaled."""
    ends: list[Event] = []
    for trial in records_of(history):
        last = trial.decisions[-1] if trial.decisions else None
        unfinished = trial.status in ("running", "interrupted")
        if unfinished and last and last.action == "stop" and last.epoch == trial.reports[-1].epoch:
            status = "completed" if last.epoch >= max_epochs else "pruned"
            journal.write("trial_ended", trial.id, status=status, reason=last.reason)
            ended = {"event": "trial_ended", "trial": trial.id, "status": status, "reason": last.reason}
            ends.append({**ended, "time": history[-1]["time"]})
    return [*history, *ends]
