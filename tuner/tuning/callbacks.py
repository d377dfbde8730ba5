"""Journals the start of each trial, stops a hopeless search, and guards the user's own callbacks."""

from __future__ import annotations

import logging
from functools import partialmethod
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from tuner.engine.controller.stopper import SearchStopper
from tuner.record.journal import Journal
from tuner.record.storage.trial_files import TrialFiles
from tuner.spec.spaces import with_place
from tuner.tuning.tracker import Tracker

logger = logging.getLogger(__name__)


class JournalCallback(Callback):
    """Journals when trials start and are interrupted; stops a hopeless search.

    Args:
        files: deletes large files that functions have written, when a trial ends; None for a Task.
    """

    def __init__(self, journal: Journal, stopper: SearchStopper, tracker: Tracker, files: TrialFiles | None) -> None:
        self._journal, self._stopper, self._tracker, self._files = journal, stopper, tracker, files
        self._running: set[str] = set()
        self._places: dict[Any, tuple[str, int | None]] = {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._running.add(trial.trial_id)
        resources = trial.placement_group_factory.required_resources
        node, pid = self._place(trial)
        self._journal.write(
            "trial_started", trial.trial_id, config=trial.config, resources=resources, node=node, pid=pid
        )

    def _place(self, trial: Trial) -> tuple[str, int | None]:
        """The node and process id of a trial's worker."""
        actor = trial.temporary_state.ray_actor
        if actor not in self._places:  # cached, because asking for the address takes a call to the worker
            node = trial.get_ray_actor_ip() or ""
            self._places[actor] = node, trial.temporary_state.location.pid
        return self._places[actor]

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._running.discard(trial.trial_id)
        if self._files:
            self._files.ended(trial.trial_id)
        if reason := self._tracker.hopeless():
            self._stopper.give_up(reason)

    on_trial_error = on_trial_complete

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        for trial_id in sorted(self._running):
            if self._tracker.trials[trial_id].status == "paused":
                continue  # the end of a session ends no pause
            reason = self._stopper.reason or "the search was interrupted"
            self._journal.write("trial_ended", trial_id, status="interrupted", reason=reason)


class GuardedCallback(Callback):
    """Wraps a user's callback; if that raises an exception, logs it and does not call the callback again.

    In Ray, an exception in a callback ends the whole search.
    """

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
