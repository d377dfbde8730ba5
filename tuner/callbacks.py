"""What Ray tells while a search runs, into the journal and W&B. None of them can end the search."""

from __future__ import annotations

import functools
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ray import cloudpickle
from ray.tune import Callback
from ray.tune.experiment import Trial

from tuner.decisions import JournalingScheduler, Verdict
from tuner.experiment import Experiment
from tuner.failures import kind_of
from tuner.halt import Halt
from tuner.journal import Journal

logger = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Any])


def never_fatal(method: F) -> F:
    """An exception in a callback ends Ray's whole experiment; here it is logged."""

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception:
            logger.exception("%s failed; the search goes on", method.__qualname__)

    return guarded  # type: ignore[return-value]


class JournalCallback(Callback):  # type: ignore[misc]
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


class WandbCallback(Callback):  # type: ignore[misc]
    """Starts `tuner.wandb_mirror`, which follows the journal; nothing that W&B does or fails to do is waited for.

    Ray's own callback starts two processes a trial, marks failed runs finished and loses offline runs at the end.
    """

    WAIT_S = 20.0  # for the mirror to upload or write its last runs, once the search has ended

    def __init__(self, experiment: Experiment, mode: str) -> None:
        self._experiment, self._mode = experiment, mode
        self._process: subprocess.Popen[bytes] | None = None

    @never_fatal
    def setup(self, **info: Any) -> None:
        folder = self._experiment.folder
        command = [sys.executable, "-m", "tuner.wandb_mirror", str(folder), "--mode", self._mode]
        with open(folder / "wandb.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @never_fatal
    def finish(self) -> str:
        """Waits for the mirror's end, `WAIT_S` at most; returns what went wrong, or nothing."""
        if self._process is None:
            return ""
        try:
            code = self._process.wait(self.WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"W&B did not finish within {self.WAIT_S:g} s and was left; see {self._experiment.folder}/wandb.log"
        return f"W&B's process failed with code {code}; see {self._experiment.folder}/wandb.log" if code else ""
