"""Changes Ray Tune's controller where a failure, a restart or an idle worker would cost time or trials.

A retried trial keeps its rung and bracket. The scheduler and the journal do not get the epochs that a retry repeats.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Container
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ray.tune.tune
from ray.exceptions import RayActorError
from ray.train._internal import checkpoint_manager
from ray.train._internal.session import _TrainingResult
from ray.train.constants import CHECKPOINT_DIR_NAME
from ray.tune import Callback, Checkpoint
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.experiment import trial as ray_trial
from ray.tune.result import RESULT_DUPLICATE, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils.object_cache import _ObjectCache
from ray.util import placement_group_table

from tuner.engine.cluster.nodes import Nodes
from tuner.engine.controller.failures import Failure, Retries, as_a_worker_or_task_error
from tuner.engine.controller.trials import SearchTrial, compact
from tuner.record.report_keys import ARRIVED, WAITS
from tuner.record.storage.made import below, remove_folder

STOP_S = 5  # at the end of a search, seconds that a worker has to end its epoch; Ray then kills it (Ray's default: 10)
SYNC_S = 0.1  # minimum seconds between two syncs of the journal before old checkpoints are deleted: one sync for all
TIMEOUT_CHECK_INTERVAL_S = 0.5  # minimum seconds between two checks for trials that do not report


class Controller(TuneController):
    """Ray's controller with other rules for failures, idle workers and epochs that are trained again."""

    watch: Watch  # `installed` sets it on a subclass, since Ray's snapshot would write an instance attribute as JSON

    def __init__(self, **options: Any) -> None:
        self.watch.host = self
        super().__init__(**options | {"callbacks": [*options["callbacks"], self.watch]})
        self._actor_cache = _ObjectCache(may_keep_one=False)
        self._room = 0
        if self.watch.on_this_machine:
            # Ray would set environment variables for each actor, and so use none of the processes that the raylet
            # started in advance. Here the workers inherit the driver's environment anyway.
            self._class_cache = SimpleNamespace(get=functools.cache(ray.remote))
        self._actor_force_cleanup_timeout = STOP_S
        self._judged_until: dict[str, int] = {}  # id of a retried trial -> its last epoch before the retry
        theirs = self._actor_manager._actor_task_failed
        # An error that is neither an actor's nor a task's would end the whole search. Ray raises, for example, an
        # OutOfMemoryError for a worker that the node's memory monitor has killed.
        self._actor_manager._actor_task_failed = lambda tracked_actor_task, exception: theirs(
            tracked_actor_task, as_a_worker_or_task_error(exception)
        )

    def _process_trial_failure(self, trial: SearchTrial, exception: Exception) -> None:
        """Retries the failed trial if `retries` allows it; otherwise the trial ends with the error."""
        if trial in self._resetting_trials:
            # The idle worker that Ray chose has died, or is still busy with its previous trial. The failure
            # does not count against this trial, which starts on another worker.
            if trial.status != Trial.RUNNING:
                kill_worker(trial)
                self._actor_failed(self._trial_to_actor[trial], exception)  # makes it RUNNING, calls this method again
                return
            self._resetting_trials.remove(trial)
            self._set_trial_status(trial, Trial.PENDING)
            return
        lost = isinstance(exception, RayActorError)
        # Ray reports a dead actor first and then its lost task, when the trial no longer runs: one failure counts once.
        if trial.status != Trial.RUNNING or (lost and self._had_been_judged(trial)):
            return
        failure = self.watch.retries.judge(trial.trial_id, exception, saved_epoch(trial))
        if failure.kind == "cuda" or isinstance(exception, TrialTimeoutError):
            kill_worker(trial)  # a worker asked to end would first finish its task, or hang while CUDA shuts down
        if failure.will_retry:
            self._judged_until[trial.trial_id] = max(self._judged_until.get(trial.trial_id, 0), epoch_of(trial))
        self.watch.failed(self, trial, failure)
        trial.set_retry(failure.will_retry)
        super()._process_trial_failure(trial, exception)
        if trial.is_finished():
            self.get_live_trials().discard(trial)  # Ray keeps failed trials in this set and loops over it at each event
            trial.tidy(self.watch.read)

    fail = _process_trial_failure

    def _had_been_judged(self, trial: SearchTrial) -> bool:
        """Registers the last report's checkpoint, if the worker died after the report and before Ray registered it.

        If the scheduler decided at this report to stop or pause the trial, does so and returns True: no retry needed.
        """
        decision = self._cached_trial_decisions.pop(trial.trial_id, None)
        name = (trial.last_result or {}).get(CHECKPOINT_DIR_NAME)
        if not trial.is_saving or not name:
            return False
        trial.temporary_state.saving_to = None
        path = f"{trial.path}/{name}"
        if trial.checkpoint is None or trial.checkpoint.path != path:
            trial.on_checkpoint(_TrainingResult(Checkpoint.from_directory(path), trial.last_result))
        if decision == TrialScheduler.STOP:
            self.stop_trial(trial)
        elif decision == TrialScheduler.PAUSE:
            self._set_trial_status(trial, Trial.PAUSED)
        return decision in (TrialScheduler.STOP, TrialScheduler.PAUSE)

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        """Gives the trial an idle worker, unless its own worker, which Ray would end, is already starting.

        Trials that are pruned at the first rung are often shorter than a worker's start: one worker would then run all
        trials, while Ray starts and ends other processes.
        """
        own = self._trial_to_actor.get(trial)
        starts = own is not None and trial not in self._resetting_trials and self._actor_manager.is_actor_started(own)
        if starts:  # for Ray, an actor is started once it has its resources, though it may still import
            return False
        return bool(super()._maybe_reuse_cached_actor(trial))

    def keep_idle(self, trial: Trial, num_running: int) -> None:
        """Keeps idle workers for later trials, at most as many as trials may run at once, within the search's share.

        Ray keeps them only for trials that already wait: two trials that end together then cost a new process each
        time, which takes 2 to 4 s of imports.
        """
        room = self.watch.nodes.concurrent()
        if self.watch.nodes.too_many(num_running + self._actor_cache.num_cached_objects):
            room = max(0, room - num_running)
        self._actor_cache.increase_max(trial.placement_group_factory, by=room - self._room)
        self._room = room

    def _process_trial_result(self, trial: SearchTrial, result: dict[str, Any]) -> str | None:
        """Hides repeated epochs, and WAITS (a checkpoint cannot be saved), from scheduler, searcher and journal."""
        if seen := result.pop(ARRIVED, None):
            self.watch.arrived(trial.trial_id, seen)
        if WAITS in result:  # this counts as no report: the trial's timeout is not restarted
            self.watch.waiting(result[WAITS])
            self.watch.waits(trial, result[WAITS])
        elif RESULT_DUPLICATE in result or result[TRAINING_ITERATION] > self._judged_until.get(trial.trial_id, 0):
            self._judged_until.pop(trial.trial_id, None)
            decision: str | None = super()._process_trial_result(trial, result)
            trial.tidy(self.watch.read)
            return decision
        else:
            self.watch.heard(trial)
        self._queue_decision(trial, TrialScheduler.CONTINUE)
        return str(TrialScheduler.CONTINUE)

    def stop_trial(self, trial: SearchTrial) -> None:
        """Stops a trial; one that still saves its checkpoint before a pause is stopped like a paused trial.

        Ray would stop it like a running trial, with other calls of scheduler and searcher. A replay cannot know how
        long the save took.
        """
        if trial.is_saving and self._cached_trial_decisions.get(trial.trial_id) == TrialScheduler.PAUSE:
            self._set_trial_status(trial, Trial.PAUSED)
        super().stop_trial(trial)
        trial.tidy(self.watch.read)

    def move(self, trial: SearchTrial) -> None:
        """Kills the trial's worker and queues the trial; another worker resumes it from its checkpoint, if any."""
        kill_worker(trial)
        trial.set_retry(True)
        super()._process_trial_failure(trial, RuntimeError("the trial leaves its node"))

    def nodes_of(self, trial: Trial) -> set[str]:
        """Returns the ids of all nodes that a running trial occupies; a ddp trial's workers may be on several nodes."""
        _, acquired = self._actor_manager._live_actors_to_ray_actors_resources[self._trial_to_actor[trial]]
        return set(placement_group_table(acquired.placement_group)["bundles_to_node_id"].values())


def kill_worker(trial: Trial) -> None:
    ray.kill(trial.temporary_state.ray_actor)


class TrialTimeoutError(Exception):
    """A trial has not reported for longer than `--trial-timeout` allows."""


@dataclass(eq=False)
class Watch(Callback):
    """Fails trials that stop reporting; requeues trials on drained nodes and trials beyond this search's share."""

    nodes: Nodes
    on_this_machine: bool  # whether all workers run here, and inherit the driver's environment
    retries: Retries
    timeout_s: float | None  # seconds that a running trial may go without a report; None = no limit
    waiting: Callable[[str], None]  # called with the reason when a trial cannot save a checkpoint
    failed: Callable[[Controller, SearchTrial, Failure], None]  # called before the trial ends or is retried
    arrived: Callable[[str, dict[str, Any]], None]  # called with a trial and what it saw of its parameters
    sync: Callable[[], bool]  # waits until the journal is on the disk; False if it cannot be written
    read: Container[str] = ()  # the metrics that are read of the last report of a trial without a worker
    # Started trial -> the time of its last start, report or save, and why it could not save its checkpoint since then.
    _heard: dict[SearchTrial, tuple[float, str]] = field(default_factory=dict)
    _saved: set[Trial] = field(default_factory=set)  # trials started or saved in this step: a move loses no epoch
    _looked: float = 0.0
    _deletions: list[Path] = field(default_factory=list)  # checkpoints that Ray keeps no longer
    _synced: float = 0.0
    host: Controller = field(init=False)  # set by the controller's `__init__`

    def heard(self, trial: Trial) -> None:
        """Restarts the trial's timeout."""
        self._heard[trial] = time.monotonic(), ""

    def waits(self, trial: Trial, reason: str) -> None:
        """Notes why the trial cannot report for now; its timeout keeps running."""
        self._heard[trial] = self._heard[trial][0], f"; {reason}"

    def delete_later(self, fs: Any, fs_path: str) -> None:
        """Takes the place of Ray's function that deletes a checkpoint, which does it before the journal is on the disk.

        After a power failure, the journal may end with an earlier report, whose checkpoint must still be there.
        """
        self._deletions.append(Path(fs_path))

    def _delete_old(self) -> None:
        if self.sync():
            for path in self._deletions:  # <experiment>/ray/<trial>/checkpoint_<number>
                with suppress(OSError), below(path.parents[2], *path.parts[-3:-1]) as trial:
                    remove_folder(trial, path.name)
            self._deletions.clear()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        self._delete_old()

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.heard(trial)
        self._saved.add(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.on_trial_start(iteration, trials, trial)
        if saved := trial.latest_checkpoint_result:
            metrics = compact(saved.metrics)
            saved.metrics.clear()
            saved.metrics.update(metrics)

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.heard(trial)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Moves trials (`_has_to_move`), sets `nodes.wanted`, limits idle workers, and fails trials that timed out."""
        saved, self._saved = self._saved, set()
        for trial in saved:
            if trial.status == Trial.RUNNING and self._has_to_move(trial):
                self.host.move(trial)
        self.nodes.wanted = self.host.search_alg.num_unfinished
        running = self._running()
        if trials:
            self.host.keep_idle(trials[-1], len(running))
        # At its end, Ray would write all trials that are noted here into its snapshot: 5 kB and 2 ms each, for nobody.
        self.host._trials_to_cache.clear()
        now = time.monotonic()
        if self._deletions and now - self._synced > SYNC_S:
            self._synced = now
            self._delete_old()
        if self.timeout_s is None or now - self._looked < TIMEOUT_CHECK_INTERVAL_S:
            return
        self._looked = now
        for trial in running:
            at, why = self._heard[trial]
            if now - at > self.timeout_s:
                allowed = f"--trial-timeout {self.timeout_s:g}s"
                silent = f"no report for {now - at:.1f} s after epoch {epoch_of(trial)} ({allowed}){why}"
                self.host.fail(trial, TrialTimeoutError(silent))

    def _running(self) -> list[Trial]:
        """The trials that have a worker and are not paused."""
        for trial in [trial for trial in self._heard if trial.status != Trial.RUNNING]:
            del self._heard[trial]
            trial.tidy(self.read)
        return list(self._heard)

    def _has_to_move(self, trial: Trial) -> bool:
        """Whether a trial must leave its worker and loses no epoch, as its last report, if any, has a checkpoint."""
        surplus = self.nodes.too_many(len(self._running()))
        if not (surplus or self.nodes.leaving) or epoch_of(trial) != saved_epoch(trial):
            return False
        return surplus or bool(self.host.nodes_of(trial) & self.nodes.leaving)


def epoch_of(trial: Trial) -> int:
    """Returns the epoch of a trial's last report; 0 before the first report."""
    epoch: int = (trial.last_result or {}).get(TRAINING_ITERATION, 0)
    return epoch


def saved_epoch(trial: Trial) -> int:
    """Returns the epoch of a trial's latest checkpoint; 0 if it has none."""
    saved = trial.latest_checkpoint_result
    epoch: int = saved.metrics[TRAINING_ITERATION] if saved else 0
    return epoch


class NoAnalysis:
    """Replaces Ray's analysis of a search. Nobody uses it, and it would read all reports again, 2 ms per trial.

    If a session has no trials, Ray would unpickle a snapshot in the folder, which anybody may have made.
    """

    def __init__(self, **options: Any) -> None:
        self.trials: list[Trial] = []


def installed(watch: Watch) -> AbstractContextManager[Any]:
    """Makes Ray's Tuner use `Controller` and `NoAnalysis` while the `with` block runs.

    A trial then also asks Ray's GCS only once per search for the trainable's class, instead of three times per trial.
    """
    controller = type("Controller", (Controller,), {"watch": watch})
    stack = ExitStack()
    stack.enter_context(mock.patch.multiple(ray.tune.tune, TuneController=controller, ExperimentAnalysis=NoAnalysis))
    # Ray would set signal handlers that only stop the loop of trials, and leave that of SIGUSR1 in the user's program.
    # To count its callbacks it would import W&B, which takes 1 s and makes two temporary folders.
    stack.enter_context(mock.patch.object(ray.tune.tune, "_setup_signal_catching", threading.Event))
    stack.enter_context(mock.patch.object(ray.tune.tune.air_usage, "tag_callbacks", lambda callbacks: False))
    stack.enter_context(mock.patch.object(checkpoint_manager, "_delete_fs_path", watch.delete_later))
    once = functools.cache(ray_trial.get_trainable_cls), functools.cache(ray_trial.validate_trainable)
    stack.enter_context(mock.patch.multiple(ray_trial, get_trainable_cls=once[0], validate_trainable=once[1]))
    return stack
