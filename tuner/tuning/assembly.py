"""Builds the Ray Tuner of a search from searcher, scheduler, resources, callbacks and training function; runs it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, NamedTuple

from ray import tune
from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.logger import JsonLoggerCallback, LoggerCallback, TBXLoggerCallback

from tuner.core.events import ExperimentFinished, TrialEnded, TrialStarted
from tuner.engine.cluster.nodes import Nodes
from tuner.engine.cluster.probe import OnPath
from tuner.engine.controller.changes import Watch, installed
from tuner.engine.controller.failures import Retries
from tuner.engine.controller.stopper import SearchStopper
from tuner.engine.local.signals import signals_to
from tuner.engine.processes.client import run_trial, share, share_in_cluster
from tuner.engine.workers.trainable import trainable_of
from tuner.record import clock
from tuner.record.confirm import to_repeat
from tuner.record.data_folders import seal_key
from tuner.record.format import JOURNAL
from tuner.record.journal import Journal
from tuner.record.reading import scan
from tuner.record.records import Folding
from tuner.record.storage.trial_files import TrialFiles
from tuner.spec.experiment import Table
from tuner.spec.resources import Resources
from tuner.spec.spaces import compared_option, with_place
from tuner.training.seals import KEY, TRUSTED
from tuner.training.task import TrialSpec
from tuner.tuning import trial as trials
from tuner.tuning.arrivals import Arrivals
from tuner.tuning.budget import Budget
from tuner.tuning.call import Request
from tuner.tuning.checks.request import material
from tuner.tuning.output.progress import ProgressTable, table_metrics
from tuner.tuning.population import PopulationScheduler
from tuner.tuning.proposals import Proposals, keeping
from tuner.tuning.resume.replay import Replay
from tuner.tuning.scheduler import SearchScheduler, TrialEnd, confirms
from tuner.tuning.searchers.named import build_searcher
from tuner.tuning.searchers.past import Past
from tuner.tuning.tracker import Tracker

logger = logging.getLogger(__name__)
LEAST_FREE = 0.1  # share of the results' disk; a search that leaves less free says so


class Assembly(NamedTuple):
    """A search ready to run. The context `controller` changes Ray's controller; `stopper` ends the search early."""

    tuner: tune.Tuner
    controller: AbstractContextManager[None]
    stopper: SearchStopper
    journal: Journal
    arrivals: Arrivals

    def run(self) -> None:
        """Runs the search to its end and journals how it ended; raises the RequestError that stopped it, if any."""
        stopper, journal = self.stopper, self.journal
        with signals_to(stopper.interrupt), self.controller, clock.standstills() as journal.stood_still:
            try:
                self.tuner.fit()
            except ValueError:
                if not journal.lost:  # a lost journal's folder may be gone, so that Ray cannot read its snapshot there
                    raise
        state = "failed" if stopper.error or stopper.gave_up else "finished"
        if stopper.interrupted and not stopper.error:
            state = "interrupted"
        refused, out_of_time = stopper.error is not None, stopper.out_of_time and state == "finished"
        unchecked = self.arrivals.unchecked() or None
        journal.write(ExperimentFinished(state, stopper.reason, refused, out_of_time, unchecked))
        journal.sync()  # the answer is written for a search that has ended
        if stopper.error:
            raise stopper.error


def assemble(request: Request, journal: Journal, resources: Resources, table: Table = "fit") -> Assembly:
    """Builds a new search, or the rest of a resumed one; `table` says how to print its trials. Ray must be running."""
    experiment, loaded_space, history = request.experiment, request.loaded_space, request.history
    space = loaded_space.space
    searcher = build_searcher(experiment, space, history, Past(request.past, space))
    num_settings = searcher.num_settings
    tracker = Tracker(experiment, history)
    state = tracker.state
    budget = Budget(experiment, resources, state, num_settings)
    stopper = SearchStopper(budget.over)
    journal.listeners = [state.apply, tracker.hear, budget.hear]
    journal.blocked = stopper.blocked
    here = not experiment.address
    nodes = Nodes(resources, experiment.max_concurrent_trials, follow=not here, priority=experiment.priority)
    pbt = experiment.scheduler == "pbt"  # it may copy any checkpoint, and a budget only ends the search
    common = experiment, journal, stopper, compared_option(loaded_space, experiment), bool(history)
    ends = bool(space.length)
    scheduler = (
        PopulationScheduler(*common, space=space, slots=nodes.concurrent, ends_by_itself=ends)
        if pbt
        else SearchScheduler(*common, nodes.concurrent, budget, ends_by_itself=ends)
    )
    proposals = Proposals(
        searcher,
        experiment,
        journal,
        concurrent=nodes.concurrent,
        num_busy=scheduler.num_busy,
        num_promoted=scheduler.num_promoted,
        keep=keeping(0 if pbt else experiment.keep_checkpoints or int(space.task is not None)),
        replayed=lambda own: Replay(
            own,
            scheduler,
            journal,
            experiment,
            history,
            loaded_space.sha256,
            is_task=space.train is None,
            key="" if request.trusted or space.task else seal_key(request.facts.get("id")),
        ).run(),
        to_repeat=lambda: to_repeat(experiment, Folding(scan(experiment.folder / JOURNAL).events).records()),
        may_start=(lambda none_left: True) if pbt else scheduler.may_start,
        is_confirming=lambda: budget.confirming,
        is_over=lambda: bool(stopper.reason),
    )
    # With constraints, or several metrics, only the search's end shows whose files the answer needs.
    files = TrialFiles(experiment.folder, state.best if space.train and experiment.aim.simple else None)
    retries = Retries(experiment.max_failures, history, here=here)
    # On a cluster (it may grow), only `Proposals` limits the number of pending trials. Otherwise Ray limits this
    # number, too: to one more than the number of trials that may run at once.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(resources.concurrent + 1 if here else proposals.total_samples)
    loggers: list[LoggerCallback] = [JsonLoggerCallback(), *([TBXLoggerCallback()] if experiment.tensorboard else [])]
    users = [GuardedCallback(callback) for callback in space.callbacks]
    tuner = tune.Tuner(
        trainable(request, resources),
        tune_config=tune.TuneConfig(search_alg=proposals, scheduler=scheduler, reuse_actors=True),
        run_config=tune.RunConfig(
            name="ray",
            storage_path=str(experiment.folder.absolute()),
            stop=stopper,
            callbacks=[
                JournalCallback(journal, stopper, tracker, scheduler.ends, files),
                *loggers,
                ClosedInPauses(loggers),
                Room(experiment.folder, lambda text: tracker.on_notice(text)),
                *users,
            ],
            progress_reporter=ProgressTable(
                experiment,
                lambda: proposals.total_samples,
                tracker,
                stopper,
                nodes.notice,
                space.declared,
                table,
                budget,
            ),
            verbose=1,
        ),
    )
    timeout_s, shown = experiment.trial_timeout_s, table_metrics(experiment)
    arrivals = Arrivals(experiment, loaded_space, stopper.refuse)
    heard = stopper.waiting, scheduler.on_failure, arrivals.hear
    watch = Watch(nodes, here, retries, timeout_s, *heard, journal.sync, shown)
    return Assembly(tuner, installed(watch), stopper, journal, arrivals)


def trainable(request: Request, resources: Resources) -> Any:
    """Returns the space's task or function as a trainable of Ray Tune, with the resources of one trial."""
    space, e, r = request.loaded_space.space, request.experiment, resources
    options = {name: getattr(e, name) for name in ("seed", "max_epochs", "precision", "on_oom", "strategy")}
    spec = TrialSpec({}, **options, num_workers=r.workers, cpus=r.cpus, gpus=r.gpus)
    setup = trials.TrialSetup(spec, e, e.folder.absolute() / "ray", space.constants, space.seeded, space.length)
    shared = share_in_cluster(material(request)) if e.address else request.shared or share(material(request))
    if e.strategy == "ddp" and space.task is not None:
        own = partial(trials.train_in_workers, shared=shared, setup=setup)
        return trainable_of(own, resources.bundles())
    # The worker may have to unpickle an error of the user's modules.
    function = OnPath(partial(trials.train_task if space.train is None else trials.train_function, setup=setup))
    variables = {"WANDB_MODE": "disabled"} if e.wandb == "disabled" else {}
    if not space.task:
        variables |= {KEY: seal_key(request.facts.get("id")), TRUSTED: "1" * request.trusted}
    own = partial(run_trial, shared=shared, function=function, folder=setup.folder, variables=variables)
    return trainable_of(own, resources.bundles())


class JournalCallback(Callback):
    """Journals trials' starts and interruptions; stops a hopeless search; tells `files` which trials have ended.

    `ends` has the end of each trial with a decision to stop, of which Ray may not have told the scheduler yet.
    """

    def __init__(
        self,
        journal: Journal,
        stopper: SearchStopper,
        tracker: Tracker,
        ends: Mapping[str, TrialEnd],
        files: TrialFiles,
    ) -> None:
        self._journal, self._stopper, self._tracker, self._ends, self._files = journal, stopper, tracker, ends, files
        self._places: dict[Any, tuple[str, int | None]] = {}  # worker -> its node's address, its process id

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        actor = trial.temporary_state.ray_actor
        if actor not in self._places:  # cached, because asking for the address takes a call to the worker
            self._places[actor] = trial.get_ray_actor_ip() or "", trial.temporary_state.location.pid
        resources = trial.placement_group_factory.required_resources
        self._journal.write(TrialStarted(trial.config, resources, *self._places[actor], trial.trial_id))

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        # Any trial of --confirm may win. The journal must have what makes another trial the best.
        self._files.ended(trial.trial_id, lambda: not confirms(trial) and self._journal.sync())
        if reason := self._tracker.hopeless():
            self._stopper.give_up(reason)

    on_trial_error = on_trial_complete

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        interrupted = TrialEnd("interrupted", self._stopper.reason or "the search was interrupted")
        trials_of_all = self._tracker.state.trials
        for trial_id in [each for each, trial in trials_of_all.items() if trial.status == "running"]:
            status, reason = self._ends.get(trial_id, interrupted)
            self._journal.write(TrialEnded(status, reason, trial_id))
        self._files.tell(patience_s=2.0)


class Room(Callback):
    """Calls `say` once with a text if a checkpoint leaves less than LEAST_FREE of the results' disk free."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say, self._is_said = folder, say, False

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        with contextlib.suppress(OSError):
            disk = shutil.disk_usage(self._folder)
            if disk.free < LEAST_FREE * disk.total and not self._is_said:
                self._is_said = True
                self._say(
                    f"less than {LEAST_FREE:.0%} of the disk of {self._folder.parent} is free: "
                    f"{disk.free / 1e9:.1f} GB; --keep-checkpoints 1 keeps the best and the newest one of each trial"
                )


class ClosedInPauses(Callback):
    """Closes the files that loggers hold open for paused trials, of which asha-promotion may have thousands."""

    def __init__(self, loggers: list[LoggerCallback]) -> None:
        self._loggers, self._open = loggers, set[Trial]()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._open.add(trial)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        for trial in [trial for trial in self._open if trial.status != Trial.RUNNING]:
            self._open.discard(trial)
            if trial.status == Trial.PAUSED:
                for logger in self._loggers:
                    logger.log_trial_end(trial)


class GuardedCallback(Callback):
    """Wraps a user's callback, whose exception would end the search: logs the exception, then ignores the callback."""

    def __init__(self, inner: Callback) -> None:
        self._inner: Callback | None = inner

    def _call(self, hook: str, *args: Any, **info: Any) -> Any:
        if self._inner is None:
            return None
        try:
            return getattr(self._inner, hook)(*args, **info)
        except Exception as error:
            name = type(self._inner).__name__
            logger.warning("callback %s.%s raises %s; it is not called again", name, hook, with_place(error))
            self._inner = None


for _hook in (name for name in dir(Callback) if name.startswith("on_") or name in ("setup", "get_state", "set_state")):
    setattr(GuardedCallback, _hook, partialmethod(GuardedCallback._call, _hook))
