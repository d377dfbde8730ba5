"""What Ray tells of trials while a search runs, into the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import cloudpickle
from ray.tune import Callback
from ray.tune.experiment import Trial

from tuner.decisions import JournalingScheduler, Verdict
from tuner.failures import kind_of
from tuner.halt import Halt
from tuner.journal import Journal


class JournalCallback(Callback):
    """Journals when trials start, fail and end; reports and decisions are journaled where they are judged."""

    def __init__(self, journal: Journal, scheduler: JournalingScheduler, halt: Halt) -> None:
        self._journal, self._scheduler, self._halt = journal, scheduler, halt
        self._running: set[str] = set()
        self._nodes: dict[Any, str] = {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._running.add(trial.trial_id)
        resources = trial.placement_group_factory.required_resources
        self._journal.write(
            "trial_started", trial.trial_id, config=trial.config, resources=resources, node=self._node(trial)
        )

    def _node(self, trial: Trial) -> str:
        actor = trial.temporary_state.ray_actor
        if actor not in self._nodes:  # asked once a worker: the answer is a call to it
            self._nodes[actor] = trial.get_ray_actor_ip() or ""
        return self._nodes[actor]

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._failed(trial, will_retry=True)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        error = self._failed(trial, will_retry=False)
        self._ended(trial, Verdict("failed", error))

    def _failed(self, trial: Trial, will_retry: bool) -> str:
        kind, text = kind_of(recorded_error(trial))
        self._journal.write("trial_failed", trial.trial_id, error=text, kind=kind, will_retry=will_retry)
        return text

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        ended = Verdict("completed", "its function returned")
        if not trial.last_result or "training_iteration" not in trial.last_result:
            ended = Verdict("failed", "ended without a report")
        self._ended(trial, self._scheduler.verdicts.pop(trial.trial_id, ended))

    def _ended(self, trial: Trial, verdict: Verdict) -> None:
        self._running.discard(trial.trial_id)
        self._journal.write("trial_ended", trial.trial_id, status=verdict.status, reason=verdict.reason)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        for trial_id in sorted(self._running):
            reason = self._halt.reason or "the search was interrupted"
            self._journal.write("trial_ended", trial_id, status="interrupted", reason=reason)


def recorded_error(trial: Trial) -> Any:
    """The exception that Ray wrote down for a trial. `Trial.get_pickled_error` looks where it is copied later."""
    if trial.pickled_error_file and Path(trial.pickled_error_file).exists():
        return cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    return Path(trial.error_file).read_text() if trial.error_file else None
