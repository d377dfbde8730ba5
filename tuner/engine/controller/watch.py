"""Watches running trials through Ray's public callbacks: fails silent ones, moves those that must leave a node."""

from __future__ import annotations

import time
from typing import Any, Protocol

from ray.tune import Callback
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION

from tuner.engine.cluster.nodes import Nodes

LOOK_S = 0.5  # minimum seconds between two checks for trials that do not report


class TrialTimeoutError(Exception):
    """A trial has not reported for longer than `--trial-timeout` allows."""


class Host(Protocol):
    """The part of the controller that `Watch` uses."""

    search_alg: Any

    def get_live_trials(self) -> Any: ...

    def fail(self, trial: Trial, error: Exception) -> None: ...

    def move(self, trial: Trial) -> None: ...

    def nodes_of(self, trial: Trial) -> set[str]: ...


class Watch(Callback):
    """Fails trials that stop reporting; requeues trials on drained nodes and trials beyond this search's share.

    Args:
        nodes: tells which nodes are being drained and how large this search's share of the cluster is.
        trial_timeout_s: seconds that a running trial may go without a report; None = no limit.
    """

    host: Host  # set by the controller's `__init__`

    def __init__(self, nodes: Nodes, trial_timeout_s: float | None) -> None:
        self._nodes, self._timeout_s = nodes, trial_timeout_s
        self._heard: dict[Trial, float] = {}  # started trial -> when it last started, reported or was saved
        self._waits_for: dict[Trial, str] = {}  # trial -> why it cannot save its checkpoint
        self._saved: set[Trial] = set()  # started or saved since the last step: moving these now loses nothing
        self._looked = 0.0

    def num_running(self) -> int:
        """Number of trials that have a worker and are not paused."""
        return len(self._running())

    def heard(self, trial: Trial) -> None:
        """Restarts a trial's timeout."""
        self._heard[trial] = time.monotonic()
        self._waits_for.pop(trial, None)

    def waits(self, trial: Trial, reason: str) -> None:
        """Notes why a trial cannot report for now; its timeout keeps running."""
        self._waits_for[trial] = f"; {reason}"

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Notes that a trial got a worker."""
        self.heard(trial)
        self._saved.add(trial)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Notes that a trial reported."""
        self.heard(trial)

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Notes that a trial saved a checkpoint."""
        self.heard(trial)
        self._saved.add(trial)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Moves trials that must leave their node, updates `Nodes.wanted`, and fails trials that timed out."""
        saved, self._saved = self._saved, set()
        for trial in saved:
            if trial.status == Trial.RUNNING and self._has_to_move(trial):
                self.host.move(trial)
        unfinished = sum(not trial.is_finished() for trial in self.host.get_live_trials())
        self._nodes.wanted = unfinished + self.host.search_alg.num_left
        now = time.monotonic()
        if self._timeout_s is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        for trial in self._running():
            if (silent_s := now - self._heard[trial]) > self._timeout_s:
                allowed = f"--trial-timeout {self._timeout_s:g}s"
                why = self._waits_for.get(trial, "")
                silent = f"no report for {silent_s:.1f} s after epoch {epoch_of(trial)} ({allowed}){why}"
                self.host.fail(trial, TrialTimeoutError(silent))

    def _running(self) -> list[Trial]:
        for trial in [trial for trial in self._heard if trial.status != Trial.RUNNING]:
            del self._heard[trial]
            self._waits_for.pop(trial, None)
        return list(self._heard)

    def _has_to_move(self, trial: Trial) -> bool:
        """Whether the trial must leave its worker, and would lose no epoch: its last report, if any, is
        checkpointed."""
        surplus = self._nodes.too_many(self.num_running())
        if not (surplus or self._nodes.leaving) or epoch_of(trial) != saved_epoch(trial):
            return False
        return surplus or bool(self.host.nodes_of(trial) & self._nodes.leaving)


def epoch_of(trial: Trial) -> int:
    """Returns the epoch of a trial's last report; 0 before the first report."""
    epoch: int = (trial.last_result or {}).get(TRAINING_ITERATION, 0)
    return epoch


def saved_epoch(trial: Trial) -> int:
    """Returns the epoch of a trial's latest checkpoint; 0 if it has none."""
    saved = trial.latest_checkpoint_result
    epoch: int = saved.metrics[TRAINING_ITERATION] if saved else 0
    return epoch
