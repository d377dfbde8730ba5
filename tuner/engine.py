"""Ray Tune's controller with three of its holes closed. Written for ray 2.60.0, which pyproject.toml pins.

`ray.tune.Tuner` builds its controller by a name in `ray.tune.tune`; `installed` puts this one there for a search.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray.tune.tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial


class Controller(TuneController):
    """As Ray's, but warm workers stay warm, no trial fails for the last one's sake, and no snapshots on the way.

    Args:
        concurrent: trials at a time, as many as workers are kept for.
    """

    concurrent = 1

    def add_trial(self, trial: Trial) -> None:
        super().add_trial(trial)
        # Ray keeps an idle worker only where a trial already waits for it (or one in all), so two trials that end
        # together cost a new process each time: 2 to 4 s of imports.
        key = trial.placement_group_factory
        missing = self.concurrent - self._actor_cache._max_num_objects[key]
        if missing > 0:
            self._actor_cache.increase_max(key, by=missing)

    def _on_trial_reset(self, trial: Trial, success: bool) -> None:
        """A worker that cannot be reset (the last trial's thread has not ended) is replaced.

        Ray marks the next trial, which has done nothing yet, as failed and never tells its searcher.
        """
        if success:
            super()._on_trial_reset(trial, success)
            return
        self._resetting_trials.remove(trial)
        actor = self._trial_to_actor.pop(trial)
        self._actor_to_trial.pop(actor)
        trial.set_ray_actor(None)
        for forget in (actor.set_on_stop, actor.set_on_error):
            forget(None)
        self._started_actors.discard(actor)
        self._actor_manager.remove_actor(actor, kill=True)
        self._schedule_trial_actor(trial)

    def checkpoint(self, force: bool = False, wait: bool = False) -> None:
        """Once, at the end: the journal is the experiment's state, and a snapshot costs more with each trial."""
        if force:
            super().checkpoint(force=force, wait=wait)


@contextmanager
def installed(concurrent: int) -> Iterator[None]:
    """Ray's Tuner uses `Controller` inside."""
    theirs = ray.tune.tune.TuneController
    ray.tune.tune.TuneController = type("Controller", (Controller,), {"concurrent": concurrent})
    try:
        yield
    finally:
        ray.tune.tune.TuneController = theirs
