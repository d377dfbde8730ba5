"""Builds the Ray Tuner of a search from its searcher, scheduler, resources, callbacks and training function."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray import tune
from ray.tune import CheckpointConfig
from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback

from tuner.engine.cluster import probe
from tuner.engine.cluster.nodes import Nodes
from tuner.engine.controller.changes import Watch, installed
from tuner.engine.controller.failures import Retries
from tuner.engine.controller.stopper import SearchStopper
from tuner.engine.workers.trainable import trainable_of
from tuner.record.events import Event
from tuner.record.journal import Journal, JournalWriter
from tuner.record.records import Folding
from tuner.record.storage.trial_files import TrialFiles
from tuner.spec.experiment import Experiment, Table
from tuner.spec.resources import Resources
from tuner.spec.spaces import LoadedSpace, metric_option
from tuner.training.task import TrialSpec
from tuner.tuning import trial as trials
from tuner.tuning.callbacks import GuardedCallback, JournalCallback
from tuner.tuning.output.progress import ProgressTable
from tuner.tuning.proposals import KEEP_BEST_AND_LATEST, Proposals
from tuner.tuning.requests import Request
from tuner.tuning.resume.replay import Replay
from tuner.tuning.scheduling.decisions import SearchScheduler
from tuner.tuning.scheduling.population_scheduler import PopulationScheduler
from tuner.tuning.scheduling.rule_scheduler import RuleScheduler
from tuner.tuning.searchers.named import build_searcher
from tuner.tuning.tracker import Tracker


@dataclass(frozen=True)
class Assembly:
    """A search that is ready to run: call `tuner.fit()` inside `controller`; `stopper` can end it early."""

    tuner: tune.Tuner
    controller: AbstractContextManager[None]
    stopper: SearchStopper


def assemble(request: Request, journal: Journal, resources: Resources, table: Table = "fit") -> Assembly:
    """Builds a new search, or the rest of a resumed one; Ray must be running.

    Args:
        table: how to print the table of trials.
    """
    experiment, loaded_space, history = request.experiment, request.loaded_space, request.history
    stopper = SearchStopper(experiment.time_budget, left_s(experiment, history))
    tracker = Tracker(experiment, history)
    journal.listener = tracker.hear
    journal.blocked = stopper.blocked
    here = not experiment.address
    nodes = Nodes(resources, experiment.max_concurrent_trials, follow=not here, priority=experiment.priority)
    searcher = build_searcher(experiment, loaded_space.space, history)
    num_settings = searcher.num_settings
    pbt = experiment.scheduler == "pbt"  # pbt's whole population may run at once, and pbt may copy any checkpoint
    writer = JournalWriter(journal)
    common = experiment, writer, stopper, metric_option(loaded_space, experiment.metric), bool(history)
    scheduler: SearchScheduler = (
        PopulationScheduler(*common, space=loaded_space.space) if pbt else RuleScheduler(*common, nodes.concurrent)
    )
    keep = KEEP_BEST_AND_LATEST if loaded_space.space.task and not pbt else CheckpointConfig()
    proposals = Proposals(
        searcher,
        experiment,
        writer,
        concurrent=(lambda: num_settings) if pbt else (lambda: scheduler.places(nodes.concurrent())),
        keep=keep,
        replayed=lambda own: Replay(own, scheduler, writer, experiment, history, loaded_space.sha256).run(),
    )
    files = TrialFiles(experiment.folder, tracker.best) if loaded_space.space.train else None
    retries = Retries(experiment.max_failures, history, here=here)
    # On a cluster (it may grow) or with pbt, only `Proposals` limits the number of pending trials. Otherwise Ray, too,
    # limits it: to one more than the number of trials that may run at once.
    all_may_wait = pbt or not here
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(num_settings if all_may_wait else resources.concurrent + 1)
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # else Ray prints errors of trials that fail while the search stops
    loggers = [JsonLoggerCallback(), *([TBXLoggerCallback()] if experiment.tensorboard else [])]
    users = [GuardedCallback(callback) for callback in loaded_space.space.callbacks]
    tuner = tune.Tuner(
        trainable(experiment, loaded_space, request.splits, resources),
        tune_config=tune.TuneConfig(
            metric=experiment.metric,
            mode=experiment.mode,
            search_alg=proposals,
            scheduler=scheduler,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="ray",
            storage_path=str(experiment.folder.absolute()),
            stop=stopper,
            callbacks=[JournalCallback(journal, stopper, tracker, files), *loggers, *users],
            progress_reporter=ProgressTable(
                experiment, num_settings, tracker, stopper, nodes.notice, loaded_space.space.declared, table
            ),
            verbose=1,
        ),
    )
    watch = Watch(nodes, here, retries, experiment.trial_timeout_s, stopper.waiting, scheduler.on_failure)
    return Assembly(tuner, installed(watch), stopper)


def trainable(experiment: Experiment, loaded_space: LoadedSpace, splits: Any, resources: Resources) -> Any:
    """Returns the space's task or function as a trainable that Ray Tune can run, with the resources of one trial."""
    space = loaded_space.space
    spec = TrialSpec(
        config={},
        seed=experiment.seed,
        max_epochs=experiment.max_epochs,
        precision=experiment.precision,
        on_oom=experiment.on_oom,
        strategy=experiment.strategy,
        num_workers=resources.workers,
        cpus=resources.cpus,
        gpus=resources.gpus,
        constants=space.constants,
    )
    setup = trials.TrialSetup(
        spec,
        experiment.metric,
        experiment.mode,
        experiment.folder.absolute() / "ray",
        wandb=experiment.wandb != "disabled",
    )
    probe.by_value(loaded_space)
    if space.train is not None:
        function = partial(trials.train_function, function=space.train, setup=setup)
    elif experiment.strategy == "ddp":
        function = tune.with_parameters(trials.train_in_workers, shared=(ray.put((space.task, splits)),), setup=setup)
    else:
        # Ray stores the data once per node; all workers of the node map the same arrays.
        function = tune.with_parameters(trials.train_task, task=space.task, splits=splits, setup=setup)
    return trainable_of(function, resources.bundles())


def left_s(experiment: Experiment, history: list[Event]) -> float | None:
    """Returns the seconds of the time budget that earlier sessions have not used; None = no limit."""
    if experiment.time_budget_s is None:
        return None
    return max(0.0, experiment.time_budget_s - Folding(history).took_s)
