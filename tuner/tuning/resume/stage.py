"""A stand-in for Ray's controller, with which a replay can call schedulers without workers."""

from __future__ import annotations

from typing import Any, Protocol

from ray.tune.experiment import Trial

from tuner.engine.controller.retries import Failure
from tuner.engine.controller.stage import BareStage, set_status
from tuner.record.events import RETURNED
from tuner.record.journal import JournalWriter
from tuner.tuning.scheduling.decisions import JournalingScheduler, TrialEnd


class Source(Protocol):
    """The methods of `Proposals` that the replay of a journal calls."""

    searcher: Any

    def again(self, trial_id: str, recorded: dict[str, Any]) -> Trial:
        """Makes the trial of the searcher's next setting, which must equal the recorded setting."""

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Passes a report that did not end its trial to the searcher."""

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Passes the end of a trial to the searcher."""


class Stage(BareStage):
    """Stands in for Ray's controller while a journal is replayed; its trials have a status but no worker."""

    def __init__(self, source: Source, judge: JournalingScheduler, writer: JournalWriter) -> None:
        super().__init__(source)
        self._judge, self._writer = judge, writer

    def stop_trial(self, trial: Trial) -> None:
        """Ends a trial, unless it has ended, as TuneController.stop_trial does; writes its `trial_ended` event."""
        if trial.is_finished():
            return
        if trial.status == Trial.RUNNING:
            self._judge.on_trial_complete(self, trial, dict(trial.last_result))
            self.search_alg.on_trial_complete(trial.trial_id, result=dict(trial.last_result))
        else:
            self._judge.on_trial_remove(self, trial)
            self.search_alg.on_trial_complete(trial.trial_id)
        self._end(trial, Trial.TERMINATED)

    def fail_trial(self, trial: Trial, failure: Failure) -> None:
        """Ends a trial that failed and is not retried, as the controller does; writes its `trial_ended` event."""
        self._judge.on_failure(self, trial, failure)
        self.search_alg.on_trial_complete(trial.trial_id, error=True)
        self._end(trial, Trial.ERROR)

    def _end(self, trial: Trial, status: str) -> None:
        ended = self._judge.ends.pop(trial.trial_id, TrialEnd("completed", RETURNED))
        self._writer.write("trial_ended", trial.trial_id, status=ended.status, reason=ended.reason)
        set_status(trial, status)
