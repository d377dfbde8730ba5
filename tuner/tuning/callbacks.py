"""Writes the start, failures and end of each trial to the journal, and guards the user's own callbacks."""

from __future__ import annotations

import logging
from functools import partialmethod
from typing import Any

from ray.tune import Callback
from ray.tune.experiment import Trial

from tuner.engine.controller.stopper import SearchStopper
from tuner.record.events import RETURNED
from tuner.record.journal import Journal
from tuner.record.storage.trial_files import TrialFiles
from tuner.spec.spaces import with_place
from tuner.tuning.scheduling.decisions import SearchScheduler, TrialEnd
from tuner.tuning.tracker import Tracker

logger = logging.getLogger(__name__)


class JournalCallback(Callback):
    """Journals when trials start, fail and end; `SearchScheduler` journals the reports and decisions.

    Args:
        files: deletes large files that functions have written, when a trial ends; None for a Task.
    """

    def __init__(
        self,
        journal: Journal,
        scheduler: SearchScheduler,
        stopper: SearchStopper,
        tracker: Tracker,
        files: TrialFiles | None,
    ) -> None:
        self._journal, self._scheduler, self._stopper = journal, scheduler, stopper
        self._tracker, self._files = tracker, files
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

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._ended(trial, self._scheduler.ends.pop(trial.trial_id))

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        ended = TrialEnd("completed", RETURNED)
        if not trial.last_result or "training_iteration" not in trial.last_result:
            error = "ended without a report: its function must call tune.report at least once"
            self._journal.write("trial_failed", trial.trial_id, error=error, kind="user", will_retry=False)
            ended = TrialEnd("failed", error)
        self._ended(trial, self._scheduler.ends.pop(trial.trial_id, ended))

    def _ended(self, trial: Trial, end: TrialEnd) -> None:
        self._running.discard(trial.trial_id)
        self._journal.write("trial_ended", trial.trial_id, status=end.status, reason=end.reason)
        if self._files:
            self._files.ended(trial.trial_id)
        if reason := self._tracker.hopeless():
            self._stopper.give_up(reason)

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
