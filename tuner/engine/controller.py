"""Ray Tune's controller with its holes closed. Written for ray 2.60.0, which pyproject.toml pins.

`ray.tune.Tuner` builds its controller by a name in `ray.tune.tune`; `installed` puts this one there for a search.
Warm workers stay warm here, and an event costs the same however many trials have ended; `recovery.py` has what happens
when one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
import ray.tune.tune
from ray.tune import ExperimentAnalysis
from ray.tune.experiment import Trial

from tuner.engine.nodes import Nodes
from tuner.engine.recovery import RecoveringController
from tuner.engine.retries import Retries


class ActorClasses:
    """Ray's cache of actor classes without a runtime environment of their own.

    Ray gives each trial's actor two environment variables, so that no worker which the raylet has started in advance
    fits it: a second pair of processes would start and import beside the first. On this machine the workers inherit
    the driver's environment anyway.
    """

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def get(self, trainable: type) -> Any:
        """The remote class of a trainable; the same one each time."""
        if trainable not in self._made:
            self._made[trainable] = ray.remote(trainable)
        return self._made[trainable]


class Unfinished(dict[Trial, None]):
    """Trials that have not ended, in the order in which they were added or put back: a set that Ray keeps unordered."""

    def add(self, trial: Trial) -> None:
        self[trial] = None

    def discard(self, trial: Trial) -> None:
        self.pop(trial, None)


class Controller(RecoveringController):
    """As Ray's, but warm workers stay warm, no trial fails for the last one's sake, and no snapshots on the way.

    Args:
        nodes: say for how many trials at a time workers are kept.
    """

    on_this_machine = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._live_trials: Unfinished = Unfinished()
        if self.on_this_machine:
            self._class_cache = ActorClasses()

    def is_finished(self) -> bool:
        # Ray asks every trial, several times an event.
        unfinished = self._pending_trials or self._running_trials or self._paused_trials
        return not unfinished and self._search_alg.is_finished()

    def _wrapped(self) -> Any:
        """What schedulers see. They look for trials to run by going through all, 0.5 ms an event with 10,000."""
        seen = super()._wrapped()
        seen.get_trials = self._unfinished
        return seen

    def _unfinished(self) -> list[Trial]:
        return [trial for trial in self._live_trials if not trial.is_finished()]

    def add_trial(self, trial: Trial) -> None:
        super().add_trial(trial)
        if trial.is_finished():  # Ray counts a recorded one that failed as live
            self._live_trials.discard(trial)
        # Ray keeps an idle worker only where a trial already waits for it (or one in all), so two trials that end
        # together cost a new process each time: 2 to 4 s of imports.
        key = trial.placement_group_factory
        missing = self.nodes.concurrent() - self._actor_cache._max_num_objects[key]
        if missing > 0:
            self._actor_cache.increase_max(key, by=missing)

    def _maybe_reuse_cached_actor(self, trial: Trial) -> bool:
        """A worker that is free does not take the place of one that starts for this very trial.

        Ray ends the process that is half way through its imports: with trials shorter than a start, and they are where
        many are stopped at the first rung, the first worker goes on alone while others are started and ended.
        """
        own = self._trial_to_actor.get(trial)
        starts = own is not None and trial not in self._resetting_trials and self._actor_manager.is_actor_started(own)
        if starts:  # it has its resources: Ray's "started"
            return False
        return super()._maybe_reuse_cached_actor(trial)

    def _on_trial_reset(self, trial: Trial, success: bool) -> None:
        """A worker that cannot be reset (the last trial's thread has not ended) is replaced.

        Ray marks the next trial, which has done nothing yet, as failed and never tells its searcher.
        """
        if success:
            super()._on_trial_reset(trial, success)
            return
        self.replace_worker(trial)

    def checkpoint(self, force: bool = False, wait: bool = False) -> None:
        """Once, at the end: the journal is the experiment's state, and a snapshot costs more with each trial.

        Where the experiment's folder was moved away, Ray would make another in its place.
        """
        if force and Path(self._storage.storage_fs_path).exists():
            super().checkpoint(force=force, wait=wait)


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
        "trial_timeout_s": trial_timeout_s,
        "waiting": staticmethod(waiting),
    }
    ray.tune.tune.TuneController = type("Controller", (Controller,), choices)
    ray.tune.tune.ExperimentAnalysis = Analysis
    try:
        yield
    finally:
        ray.tune.tune.TuneController, ray.tune.tune.ExperimentAnalysis = theirs
