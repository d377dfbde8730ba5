"""What Ray's controller does when a trial fails, loses its worker or falls silent, or has to leave its node.

Written for ray 2.60.0.

`retries.py` decides whether the trial goes on; here it is done, so that a scheduler and a searcher notice nothing:
the trial keeps its place at its rung and in its bracket, and every epoch is judged and journaled once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from ray._private.state import state
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RaySystemError, RayTaskError
from ray.train._internal.checkpoint_manager import _TrainingResult
from ray.train.constants import CHECKPOINT_DIR_NAME
from ray.tune import Checkpoint
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import RESULT_DUPLICATE, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tuner.engine.nodes import Nodes
from tuner.engine.retries import Retries
from tuner.record.columns import WAITS

LOOK_S = 0.5  # between two looks for trials that report nothing
STOP_S = 5  # that a worker has to end its epoch when the search ends, then it is killed; Ray gives it 10


class TrialTimeoutError(Exception):
    """A trial has reported nothing for longer than it may."""


class RecoveringController(TuneController):
    """As Ray's, but for failures.

    Args:
        nodes: say which nodes are being drained.
        retries: says whether a failed trial goes on.
        trial_timeout_s: seconds that a running trial may be without a report; None = no limit.
        waiting: told why a trial cannot go on for now.
    """

    nodes: Nodes
    retries: Retries
    trial_timeout_s: float | None = None
    waiting: Callable[[str], None]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # By the trials' ids: Ray's snapshot has every attribute, and a trial is no JSON.
        self._silent_since: dict[str, float] = {}
        self._waits_for: dict[str, str] = {}  # why a silent trial cannot save its checkpoint
        self._judged_until: dict[str, int] = {}  # of trials that train epochs again
        self._looked = 0.0
        self._actor_force_cleanup_timeout = STOP_S
        theirs = self._actor_manager._actor_task_failed
        # Ray's actor manager ends the whole search for an error that is neither a worker's nor a task's, such as the
        # one of a worker that the node's memory monitor has killed.
        self._actor_manager._actor_task_failed = lambda tracked_actor_task, exception: theirs(
            tracked_actor_task, as_a_worker_or_task_error(exception)
        )

    # A failure.

    def _process_trial_failure(self, trial: Trial, exception: Exception) -> None:
        lost = isinstance(exception, RayActorError)
        if lost and trial.status == Trial.PENDING and trial not in self._trial_to_actor:
            return  # the second notice of one dead worker: Ray tells of the actor, then of the task that it had
        if trial in self._resetting_trials:
            # An idle worker had died unseen, or could not close the last trial's output, on a full disk: this trial
            # had no part in that.
            self.replace_worker(trial)
            return
        self._end_silence(trial)
        if trial.status not in (Trial.RUNNING, Trial.PENDING) or (lost and self._had_been_judged(trial)):
            return
        with contextlib.suppress(OSError):  # Ray writes the error into files beside the journal, which has it
            trial.handle_error(exception)
        trial.run_metadata.pickled_error_filename = None  # at the end Ray would read it back, cut off by a full disk
        saved = trial.latest_checkpoint_result
        from_epoch = saved.metrics[TRAINING_ITERATION] if saved else 0
        failure = self.retries.judge(trial.trial_id, exception, from_epoch)
        if lost or failure.kind == "cuda" or isinstance(exception, TrialTimeoutError):
            self.kill_worker(trial)  # asked to end, it would finish its task first, or hang in CUDA's own exit
        if failure.will_retry:
            until = max(self._judged_until.get(trial.trial_id, 0), epoch_of(trial))
            self._judged_until[trial.trial_id] = until
            self._try_recover(trial, exc=exception)
            tell = self._callbacks.on_trial_recover
        else:
            self._scheduler_alg.on_trial_error(self, trial)
            self._search_alg.on_trial_complete(trial.trial_id, error=True)
            self._schedule_trial_stop(trial, exception=exception)
            self._live_trials.discard(trial)  # Ray keeps it there, and goes through all of them at each event
            tell = self._callbacks.on_trial_error
        tell(iteration=self._iteration, trials=self._trials, trial=trial)

    def _had_been_judged(self, trial: Trial) -> bool:
        """A worker that dies between its report and Ray's note of its checkpoint takes neither with it.

        The checkpoint is whole, because `tune.report` copies it first; where the report was the trial's last, its
        stop or pause stands, and the trial needs its worker no more.
        """
        decision = self._cached_trial_decisions.pop(trial.trial_id, None)
        name = (trial.last_result or {}).get(CHECKPOINT_DIR_NAME)
        if not trial.is_saving or not name:
            return False
        trial.temporary_state.saving_to = None
        path, noted = str(PurePosixPath(trial.storage.trial_fs_path, name)), trial.checkpoint
        if noted is None or noted.path != path:
            checkpoint = Checkpoint(path, filesystem=trial.storage.storage_filesystem)
            trial.on_checkpoint(_TrainingResult(checkpoint, trial.last_result))
        if decision == TrialScheduler.STOP:
            self.stop_trial(trial)
        elif decision == TrialScheduler.PAUSE:
            self._schedule_trial_stop(trial)
            self._set_trial_status(trial, Trial.PAUSED)
        return decision in (TrialScheduler.STOP, TrialScheduler.PAUSE)

    def _requeue_trial(self, trial: Trial) -> None:
        """Back into the queue; Ray would take the trial from its scheduler and give it as a new one.

        HyperBand would halve its bracket without it and put it into another, population based training forget
        when it was last changed.
        """
        self._set_trial_status(trial, Trial.PENDING)
        self._trials.remove(trial)
        self._trials.append(trial)
        self._live_trials.discard(trial)  # to the end here too
        self._live_trials.add(trial)

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        failure = self.retries.last.get(trial.trial_id)
        if failure and failure.kind == "cuda" and trial not in self._resetting_trials:
            return False  # a new process, not one that shared the device with the poisoned one
        reused: bool = super()._maybe_reuse_cached_actor(trial)
        return reused

    def replace_worker(self, trial: Trial) -> None:
        """Another worker for a trial that has done nothing on its own yet."""
        self._resetting_trials.remove(trial)
        self.kill_worker(trial)
        self._schedule_trial_actor(trial)

    def kill_worker(self, trial: Trial) -> None:
        """Ends a trial's worker now, without the callbacks of an actor that is asked to end."""
        actor = self._trial_to_actor.pop(trial, None)
        if actor is None:
            return
        self._actor_to_trial.pop(actor)
        trial.set_ray_actor(None)
        for forget in (actor.set_on_stop, actor.set_on_error):
            forget(None)
        self._started_actors.discard(actor)
        self._actor_manager.clear_actor_task_futures(actor)
        self._actor_manager.remove_actor(actor, kill=True)

    # An epoch that is trained again.

    def _process_trial_result(self, trial: Trial, result: dict[str, Any]) -> str | None:
        if WAITS in result:  # no report: the trial stays silent
            self._waits_for[trial.trial_id] = f"; {result[WAITS]}"
            self.waiting(result[WAITS])
            self._queue_decision(trial, TrialScheduler.CONTINUE)
            return str(TrialScheduler.CONTINUE)
        self._end_silence(trial)
        until = self._judged_until.get(trial.trial_id, 0)
        if RESULT_DUPLICATE not in result and result[TRAINING_ITERATION] <= until:
            # Neither its scheduler nor its searcher, nor the journal, gets an epoch twice.
            self._queue_decision(trial, TrialScheduler.CONTINUE)
            return str(TrialScheduler.CONTINUE)
        self._judged_until.pop(trial.trial_id, None)
        decision: str | None = super()._process_trial_result(trial, result)
        return decision

    # A node that is being drained, a cluster that is shared.

    def _has_to_move(self, trial: Trial) -> bool:
        """Whether the trial has to give up its place, and its last report is saved: nothing is lost by leaving now."""
        surplus = self.nodes.too_many(len(self._running_trials))
        if not (surplus or self.nodes.leaving):
            return False
        saved = trial.latest_checkpoint_result
        if epoch_of(trial) != (saved.metrics[TRAINING_ITERATION] if saved else 0):
            return False
        return surplus or bool(self._nodes_of(self._trial_to_actor[trial]) & self.nodes.leaving)

    def _nodes_of(self, actor: Any) -> set[str]:
        """The ids of the nodes that a tracked actor's trial is on; its workers may be on others than the actor."""
        alive = self._actor_manager._live_actors_to_ray_actors_resources
        if actor not in alive:
            return set()  # it died, which is told next
        _, acquired = alive[actor]
        group = state.placement_group_table(acquired.placement_group.id)
        return set(group["bundles_to_node_id"].values())

    def _give_up_idle_workers(self) -> None:
        """Those on nodes that are being drained, and those that are others' part of the cluster."""
        cache, busy = self._actor_cache, len(self._running_trials)
        for waiting in cache._cached_objects.values():
            for actor in list(waiting):
                surplus = self.nodes.too_many(busy + cache.num_cached_objects)
                if surplus or self._nodes_of(actor) & self.nodes.leaving:
                    waiting.remove(actor)
                    cache._num_cached_objects -= 1
                    actor.set_on_stop(None)
                    actor.set_on_error(None)
                    self._remove_actor(tracked_actor=actor)

    # Silence.

    def _end_silence(self, trial: Trial) -> None:
        self._silent_since.pop(trial.trial_id, None)
        self._waits_for.pop(trial.trial_id, None)

    def _schedule_trial_train(self, trial: Trial) -> None:
        if self._has_to_move(trial):
            self._end_silence(trial)
            self.kill_worker(trial)
            self._requeue_trial(trial)
            return
        if trial.trial_id not in self._waits_for:
            self._silent_since[trial.trial_id] = time.monotonic()
        super()._schedule_trial_train(trial)

    def on_step_end(self) -> None:
        super().on_step_end()
        if self.nodes.leaving or self.nodes.too_many(len(self._running_trials) + self._actor_cache.num_cached_objects):
            self._give_up_idle_workers()
        self.nodes.wanted = len(self._live_trials) + self._search_alg.num_left
        now = time.monotonic()
        if self.trial_timeout_s is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        for trial in list(self._running_trials):
            if (silent_s := now - self._silent_since.get(trial.trial_id, now)) > self.trial_timeout_s:
                allowed = f"--trial-timeout {self.trial_timeout_s:g}s"
                why = self._waits_for.get(trial.trial_id, "")
                silent = f"no report for {silent_s:.1f} s after epoch {epoch_of(trial)} ({allowed}){why}"
                self._process_trial_failure(trial, TrialTimeoutError(silent))


def epoch_of(trial: Trial) -> int:
    """The epoch of a trial's last report, 0 before its first."""
    epoch: int = (trial.last_result or {}).get(TRAINING_ITERATION, 0)
    return epoch


def as_a_worker_or_task_error(error: Exception) -> Exception:
    """One of the two that Ray's actor manager knows: a worker that is gone, or a task that failed."""
    known: Exception = error
    if isinstance(error, OutOfMemoryError):
        known = RayActorError(error_msg=f"the host ran out of memory: {error}")
    elif isinstance(error, RayError) and not isinstance(error, (RayActorError, RayTaskError, RaySystemError)):
        known = RayActorError(error_msg=str(error))
    elif not isinstance(error, (RayActorError, RayTaskError)):
        # A report that this process cannot read, of a class that it has not.
        known = RayTaskError("train", f"{type(error).__name__}: {error}", error)
    return known
