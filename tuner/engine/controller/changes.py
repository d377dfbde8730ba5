"""Changes Ray Tune's controller where a failure, a restart or an idle worker would cost a search time or trials.

`ray.tune.Tuner` takes its controller's class from `ray.tune.tune`; `installed` puts this class there for a search.
`retries.py` decides whether a failed trial is retried. A retried trial keeps its rung and its bracket. The scheduler
and the journal do not get the epochs that a retry repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray.tune.tune
from ray.exceptions import RayActorError
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import RESULT_DUPLICATE, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tuner.engine.cluster import gcs as control
from tuner.engine.cluster.nodes import Nodes
from tuner.engine.controller.failures import as_a_worker_or_task_error
from tuner.engine.controller.retries import Failure, Retries
from tuner.engine.controller.trials import CHECKPOINT_DIR_NAME, SearchTrial, checkpoint_named, training_result
from tuner.engine.controller.watch import TrialTimeoutError, Watch, epoch_of, saved_epoch
from tuner.engine.workers.warm import ActorClasses, IdleWorkers
from tuner.record.report_keys import WAITS

STOP_S = 5  # at the end of a search, seconds that a worker has to end its epoch; Ray then kills it (Ray's default: 10)


class Controller(TuneController):
    """Ray's controller with other rules for failures, idle workers and epochs that are trained again.

    Attributes:
        nodes: gives the maximum number of idle workers, and the drained nodes.
        on_this_machine: whether workers inherit the driver's environment.
        retries: decides whether a failed trial is retried.
        watch: calls this controller's `fail` and `move`.
        waiting: called with the reason when a trial waits because it cannot save a checkpoint.
        failed: called with this controller, a trial and its failure, before the trial ends or is retried.
    """

    # `installed` sets these class attributes on a subclass: Ray's snapshot would write instance attributes as JSON.
    nodes: Nodes
    on_this_machine: bool
    retries: Retries
    watch: Watch
    waiting: Callable[[str], None]
    failed: Callable[[Controller, SearchTrial, Failure], None]

    def __init__(self, **options: Any) -> None:
        self.watch.host = self
        super().__init__(**options | {"callbacks": [*options["callbacks"], self.watch]})
        self._actor_cache = IdleWorkers(self.nodes, self.watch.num_running, self._nodes_of_worker)
        if self.on_this_machine:
            self._class_cache = ActorClasses()
        self._actor_force_cleanup_timeout = STOP_S
        self._judged_until: dict[str, int] = {}  # id of a retried trial -> its last epoch before the retry
        theirs = self._actor_manager._actor_task_failed
        # Ray's actor manager would end the whole search for an error that is neither an actor's nor a task's. One such
        # error is that of a worker that the node's memory monitor has killed. So this converts these errors.
        self._actor_manager._actor_task_failed = lambda tracked_actor_task, exception: theirs(
            tracked_actor_task, as_a_worker_or_task_error(exception)
        )

    def _process_trial_failure(self, trial: SearchTrial, exception: Exception) -> None:
        """Retries the failed trial if `retries` allows it; otherwise the trial ends with the error.

        `retries` has one count for each kind of failure, whereas Ray has one count for all kinds.
        """
        if trial in self._resetting_trials:
            # Ray could not give an idle worker to this trial: the worker had died, or the function of its previous
            # trial still runs. The failure does not count against this trial, which starts on another worker.
            self._resetting_trials.remove(trial)
            self._kill_worker(trial)
            # A RUNNING trial lost its worker during the reset. Ray then starts it again only from PENDING.
            if trial.status == Trial.RUNNING:
                self._set_trial_status(trial, Trial.PENDING)
            else:
                self._schedule_trial_actor(trial)
            return
        lost = isinstance(exception, RayActorError)
        # Ray reports a dead actor first and its lost task next. By the second report the trial no longer runs, and the
        # report is ignored, so that one failure is not counted twice.
        if trial.status != Trial.RUNNING or (lost and self._had_been_judged(trial)):
            return
        failure = self.retries.judge(trial.trial_id, exception, saved_epoch(trial))
        if lost or failure.kind == "cuda" or isinstance(exception, TrialTimeoutError):
            self._kill_worker(trial)  # a worker asked to end would first finish its task, or hang while CUDA shuts down
        if failure.will_retry:
            until = max(self._judged_until.get(trial.trial_id, 0), epoch_of(trial))
            self._judged_until[trial.trial_id] = until
        self.failed(self, trial, failure)
        trial.set_retry(failure.will_retry)
        super()._process_trial_failure(trial, exception)
        if trial.is_finished():
            self.get_live_trials().discard(trial)  # Ray keeps failed trials in this set and loops over it at each event

    fail = _process_trial_failure

    def _had_been_judged(self, trial: SearchTrial) -> bool:
        """Registers a report's checkpoint if the worker died after the report, but before Ray registered it.

        The checkpoint is complete, because `tune.report` copies it before it reports. If the scheduler decided at that
        report to stop or pause the trial, this stops or pauses it and returns True: the trial needs no retry.
        """
        decision = self._cached_trial_decisions.pop(trial.trial_id, None)
        name = (trial.last_result or {}).get(CHECKPOINT_DIR_NAME)
        if not trial.is_saving or not name:
            return False
        trial.temporary_state.saving_to = None
        checkpoint, noted = checkpoint_named(trial, name), trial.checkpoint
        if noted is None or noted.path != checkpoint.path:
            trial.on_checkpoint(training_result(checkpoint, trial.last_result))
        if decision == TrialScheduler.STOP:
            self.stop_trial(trial)
        elif decision == TrialScheduler.PAUSE:
            self._set_trial_status(trial, Trial.PAUSED)
        return decision in (TrialScheduler.STOP, TrialScheduler.PAUSE)

    def _kill_worker(self, trial: Trial) -> None:
        """Kills a trial's worker, if any, at once, without the callbacks that Ray calls when an actor ends."""
        actor = self._trial_to_actor.get(trial)
        if actor is None:
            return
        actor.set_on_stop(None)
        actor.set_on_error(None)
        self._actor_manager.clear_actor_task_futures(actor)
        self._actor_manager.remove_actor(actor, kill=True)
        self._actor_stopped(actor)

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        """Gives the trial an idle worker, unless the trial's own worker is already starting.

        Ray would end the starting worker in the middle of its imports, and take the idle one. Trials that are pruned at
        the first rung are often shorter than a worker's start. One worker would then run all trials, while Ray starts
        and ends other processes.
        """
        own = self._trial_to_actor.get(trial)
        starts = own is not None and trial not in self._resetting_trials and self._actor_manager.is_actor_started(own)
        if starts:  # for Ray, an actor is started once it has its resources, though it may still import
            return False
        return bool(super()._maybe_reuse_cached_actor(trial))

    def _process_trial_result(self, trial: Trial, result: dict[str, Any]) -> str | None:
        """Keeps repeated epochs, and WAITS (no room for a checkpoint), from scheduler, searcher and journal."""
        if WAITS in result:  # this counts as no report: the trial's timeout is not restarted
            self.waiting(result[WAITS])
            self.watch.waits(trial, result[WAITS])
            self._queue_decision(trial, TrialScheduler.CONTINUE)
            return str(TrialScheduler.CONTINUE)
        if RESULT_DUPLICATE in result or result[TRAINING_ITERATION] > self._judged_until.get(trial.trial_id, 0):
            self._judged_until.pop(trial.trial_id, None)
            decision: str | None = super()._process_trial_result(trial, result)
            return decision
        self.watch.heard(trial)
        self._queue_decision(trial, TrialScheduler.CONTINUE)
        return str(TrialScheduler.CONTINUE)

    def stop_trial(self, trial: Trial) -> None:
        """Stops a trial; one that only saves its checkpoint before a pause is stopped like a paused trial.

        Ray would stop it like a running trial. Scheduler and searcher would then be called differently if the save took
        a little longer. The journal does not have how long it took, so a replay would give another result.
        """
        if trial.is_saving and self._cached_trial_decisions.get(trial.trial_id) == TrialScheduler.PAUSE:
            self._set_trial_status(trial, Trial.PAUSED)
        super().stop_trial(trial)

    def move(self, trial: SearchTrial) -> None:
        """Kills a trial's worker and queues the trial again; another worker resumes it from its checkpoint, if any."""
        self._kill_worker(trial)
        trial.set_retry(True)
        self._requeue_trial(trial)

    def nodes_of(self, trial: Trial) -> set[str]:
        """Returns the ids of all nodes that a running trial occupies; a ddp trial's workers may be on several nodes."""
        return self._nodes_of_worker(self._trial_to_actor[trial])

    def _nodes_of_worker(self, worker: Any) -> set[str]:
        alive = self._actor_manager._live_actors_to_ray_actors_resources
        if worker not in alive:
            return set()  # the worker died, and Ray has not reported that yet
        _, acquired = alive[worker]
        return control.nodes_of_group(acquired.placement_group)


class NoAnalysis:
    """Replaces Ray's analysis of a search, which nobody uses.

    Ray would read every trial's reports again, 2 ms per trial. If a session has no trials, it would unpickle a snapshot
    in the folder, which anybody may have made.
    """

    def __init__(self, **options: Any) -> None:
        self.trials: list[Trial] = []


@contextmanager
def installed(
    nodes: Nodes,
    on_this_machine: bool,
    retries: Retries,
    trial_timeout_s: float | None,
    waiting: Callable[[str], None],
    failed: Callable[[Controller, SearchTrial, Failure], None],
) -> Iterator[None]:
    """Makes Ray's Tuner use `Controller` and `NoAnalysis` while the `with` block runs."""
    theirs = ray.tune.tune.TuneController, ray.tune.tune.ExperimentAnalysis
    choices = {
        "nodes": nodes,
        "on_this_machine": on_this_machine,
        "retries": retries,
        "watch": Watch(nodes, trial_timeout_s),
        "waiting": staticmethod(waiting),
        "failed": staticmethod(failed),
    }
    ray.tune.tune.TuneController = type("Controller", (Controller,), choices)
    ray.tune.tune.ExperimentAnalysis = NoAnalysis
    try:
        yield
    finally:
        ray.tune.tune.TuneController, ray.tune.tune.ExperimentAnalysis = theirs
