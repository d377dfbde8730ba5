"""Ray Tune's controller, changed where a failure, a restart or an idle worker would cost a search time or trials.

`ray.tune.Tuner` builds its controller by a name in `ray.tune.tune`; `installed` puts this one there for a search.
`retries.py` decides whether a failed trial goes on. The trial then keeps its place at its rung and in its bracket, and
every epoch is judged and journaled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray.tune.tune
from ray.exceptions import RayActorError
from ray.tune import ExperimentAnalysis
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.result import RESULT_DUPLICATE, TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler

from tuner.engine import control
from tuner.engine.failures import as_a_worker_or_task_error
from tuner.engine.nodes import Nodes
from tuner.engine.retries import Retries
from tuner.engine.trials import CHECKPOINT_DIR_NAME, SearchTrial, checkpoint_named, training_result
from tuner.engine.warm import ActorClasses, IdleWorkers
from tuner.engine.watch import TrialTimeoutError, Watch, epoch_of, saved_epoch
from tuner.record.columns import WAITS

STOP_S = 5  # that a worker has to end its epoch when the search ends, then it is killed; Ray gives it 10


class Controller(TuneController):
    """As Ray's, except for failures, idle workers and epochs that are trained again.

    Args:
        nodes: give the number of trials for which workers are kept.
        on_this_machine: whether workers inherit the driver's environment.
        retries: says whether a failed trial goes on.
        watch: calls `fail` and `move`.
        waiting: is told why a trial cannot go on for now.
    """

    # Attributes of a subclass that `installed` makes: Ray's snapshot writes every attribute of the object as JSON.
    nodes: Nodes
    on_this_machine: bool
    retries: Retries
    watch: Watch
    waiting: Callable[[str], None]

    def __init__(self, **options: Any) -> None:
        self.watch.host = self
        super().__init__(**options | {"callbacks": [*options["callbacks"], self.watch]})
        self._actor_cache = IdleWorkers(self.nodes, self.watch.num_running, self._nodes_of_worker)
        if self.on_this_machine:
            self._class_cache = ActorClasses()
        self._actor_force_cleanup_timeout = STOP_S
        self._judged_until: dict[str, int] = {}  # of trials that train epochs again
        theirs = self._actor_manager._actor_task_failed
        # Ray's actor manager ends the whole search for an error that is neither a worker's nor a task's, such as the
        # one of a worker that the node's memory monitor has killed.
        self._actor_manager._actor_task_failed = lambda tracked_actor_task, exception: theirs(
            tracked_actor_task, as_a_worker_or_task_error(exception)
        )

    def _process_trial_failure(self, trial: SearchTrial, exception: Exception) -> None:
        """Asks `retries` whether the trial goes on; Ray counts failures of all kinds together."""
        if trial in self._resetting_trials:
            # The worker died while it was idle, or is not ready for this trial, which had no part in that.
            self._resetting_trials.remove(trial)
            self._kill_worker(trial)
            self._schedule_trial_actor(trial)
            return
        lost = isinstance(exception, RayActorError)
        # A trial that is not running was put back already: Ray tells of a dead actor, then of the task that it had.
        if trial.status != Trial.RUNNING or (lost and self._had_been_judged(trial)):
            return
        failure = self.retries.judge(trial.trial_id, exception, saved_epoch(trial))
        if lost or failure.kind == "cuda" or isinstance(exception, TrialTimeoutError):
            self._kill_worker(trial)  # asked to end, it would finish its task first, or hang in CUDA's own exit
        if failure.will_retry:
            until = max(self._judged_until.get(trial.trial_id, 0), epoch_of(trial))
            self._judged_until[trial.trial_id] = until
        trial.will_retry = failure.will_retry
        super()._process_trial_failure(trial, exception)
        if trial.is_finished():
            self.get_live_trials().discard(trial)  # Ray keeps it there, and goes through all of them at each event

    fail = _process_trial_failure

    def _had_been_judged(self, trial: SearchTrial) -> bool:
        """Handles a worker that died between its report and Ray's note of its checkpoint; True if that is all.

        The checkpoint is whole, because `tune.report` copies it first; where the report was the trial's last, its
        stop or pause stands, and the trial needs its worker no more.
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
        """Ends a trial's worker now, without the callbacks of an actor that is asked to end."""
        actor = self._trial_to_actor.get(trial)
        if actor is None:
            return
        actor.set_on_stop(None)
        actor.set_on_error(None)
        self._actor_manager.clear_actor_task_futures(actor)
        self._actor_manager.remove_actor(actor, kill=True)
        self._actor_stopped(actor)

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        """A worker that is free does not take the place of one that starts for this very trial.

        Ray ends the process that is half way through its imports: with trials shorter than a start, and they are where
        many are stopped at the first rung, the first worker goes on alone while others are started and ended.
        """
        own = self._trial_to_actor.get(trial)
        starts = own is not None and trial not in self._resetting_trials and self._actor_manager.is_actor_started(own)
        if starts:  # it has its resources: Ray's "started"
            return False
        return bool(super()._maybe_reuse_cached_actor(trial))

    def _process_trial_result(self, trial: Trial, result: dict[str, Any]) -> str | None:
        """Neither scheduler, searcher nor journal gets an epoch twice, or a report that is none."""
        if WAITS in result:  # no report: the trial stays silent
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

    def move(self, trial: SearchTrial) -> None:
        """Takes a trial's worker away and puts the trial back into the queue, where it goes on from its checkpoint."""
        self._kill_worker(trial)
        trial.will_retry = True
        self._requeue_trial(trial)

    def nodes_of(self, trial: Trial) -> set[str]:
        """Returns the ids of the nodes that a running trial occupies; its workers may be on others than its actor."""
        return self._nodes_of_worker(self._trial_to_actor[trial])

    def _nodes_of_worker(self, worker: Any) -> set[str]:
        alive = self._actor_manager._live_actors_to_ray_actors_resources
        if worker not in alive:
            return set()  # it died, which is told next
        _, acquired = alive[worker]
        return control.nodes_of_group(acquired.placement_group)


class Analysis(ExperimentAnalysis):
    """As Ray's, without reading every report of every trial again, 2 ms a trial and a table of each: nobody asks."""

    def _fetch_trial_dataframes(self) -> dict[str, Any]:
        return {}

    def _load_trials(self) -> list[Trial]:
        """None: where a session has no trial, Ray unpickles the newest snapshot in the folder, whoever made it."""
        return []


@contextmanager
def installed(
    nodes: Nodes,
    on_this_machine: bool,
    retries: Retries,
    trial_timeout_s: float | None,
    waiting: Callable[[str], None],
) -> Iterator[None]:
    """Ray's Tuner uses `Controller` and `Analysis` inside."""
    theirs = ray.tune.tune.TuneController, ray.tune.tune.ExperimentAnalysis
    choices = {
        "nodes": nodes,
        "on_this_machine": on_this_machine,
        "retries": retries,
        "watch": Watch(nodes, trial_timeout_s),
        "waiting": staticmethod(waiting),
    }
    ray.tune.tune.TuneController = type("Controller", (Controller,), choices)
    ray.tune.tune.ExperimentAnalysis = Analysis
    try:
        yield
    finally:
        ray.tune.tune.TuneController, ray.tune.tune.ExperimentAnalysis = theirs
