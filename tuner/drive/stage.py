"""A stand-in for Ray's TuneController, which lets a replay call schedulers without workers (ray 2.60.0)."""

from __future__ import annotations

from typing import Any, Protocol

from ray.train._internal.session import _FutureTrainingResult
from ray.tune.experiment import Trial

from tuner.drive.decisions import JournalingScheduler, Verdict
from tuner.record.ledger import Ledger


class Source(Protocol):
    """The part of `Proposals` that a replay uses."""

    searcher: Any

    def again(self, trial_id: str, recorded: dict[str, Any]) -> Trial:
        """The trial of the searcher's next setting, which must equal the recorded one."""

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Passes a report that did not end its trial to the searcher."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Passes the end of a trial to the searcher."""


class LastCheckpoint(_FutureTrainingResult):
    """The result of saving a trial during a replay: the checkpoint of its last report."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def resolve(self, block: bool = True) -> Any:
        """The last checkpoint's result, or None if there is no checkpoint."""
        return self._result


class Stage:
    """Has the methods of Ray's controller that schedulers call; its trials have a status but no worker."""

    def __init__(self, source: Source, judge: JournalingScheduler, ledger: Ledger) -> None:
        self.search_alg = source
        self._judge, self._ledger = judge, ledger
        self.trials: dict[str, Trial] = {}

    def get_trials(self) -> list[Trial]:
        return list(self.trials.values())

    def get_live_trials(self) -> list[Trial]:
        return [trial for trial in self.trials.values() if not trial.is_finished()]

    def _schedule_trial_save(self, trial: Trial, result: Any = None) -> LastCheckpoint:
        return LastCheckpoint(trial.latest_checkpoint_result)

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        trial.status = Trial.PAUSED

    def stop_trial(self, trial: Trial) -> None:
        """Ends a trial as TuneController.stop_trial does, and writes its `trial_ended` event to the ledger."""
        if trial.is_finished():
            return
        if trial.status == Trial.RUNNING:
            self._judge.on_trial_complete(self, trial, dict(trial.last_result))
            self.search_alg.on_trial_complete(trial.trial_id, result=dict(trial.last_result))
        else:
            self._judge.on_trial_remove(self, trial)
            self.search_alg.on_trial_complete(trial.trial_id)
        ended = self._judge.verdicts.pop(trial.trial_id, Verdict("completed", "its function returned"))
        self._ledger.write("trial_ended", trial.trial_id, status=ended.status, reason=ended.reason)
        trial.status = Trial.TERMINATED
