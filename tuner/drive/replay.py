"""A resumed search is brought to where it stopped: the journal goes through its searcher and its scheduler again.

Searchers and schedulers are deterministic given their seed and the order of the calls, so one replay serves them all:
ASHA's rungs, HyperBand's and BOHB's brackets with their paused trials, the population's exploited settings, what TPE
was told. The scheduler meets Ray's own `Trial` objects, the ones that Ray is then handed, and a stand-in for Ray's
controller that keeps their status. What the crash cut off (a decision on the last report, the end of a trial that was
told to stop) is decided now and appended.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.drive.decisions import ACTIONS, JournalingScheduler, Verdict
from tuner.drive.saves import Saves
from tuner.drive.stage import Source, Stage
from tuner.engine.stage import set_last_result, set_status
from tuner.record.events import Event
from tuner.record.ledger import Ledger
from tuner.spec.experiment import Experiment

logger = logging.getLogger(__name__)


class Replay:
    """Goes through a history once; `trials` are then what Ray is to be handed, in the order of their suggestion.

    Args:
        history: the journal's events so far.
    """

    def __init__(
        self,
        source: Source,
        judge: JournalingScheduler,
        ledger: Ledger,
        experiment: Experiment,
        history: list[Event],
    ) -> None:
        self._source, self._judge, self._ledger, self._experiment = source, judge, ledger, experiment
        self._history = history
        self._stage = Stage(source, judge, ledger)
        self._saves = Saves(experiment)
        self._stopped: set[str] = set()  # told to stop, and not ended yet
        self._failed: set[str] = set()  # ended by an exception or a lost worker
        self._completed: dict[str, int] = {}  # trained all their epochs, and how many those were
        self._extended: set[str] = set()  # were given more, and have no worker yet
        self._started: dict[str, None] = {}  # have a worker, in the order in which they got it
        self._actions = recorded_actions(history)
        self._last_start = {e["trial"]: n for n, e in enumerate(history) if e["event"] == "trial_started"}

    def run(self) -> list[Trial]:
        """Every trial of the history: ended, paused, or pending from its last whole checkpoint."""
        last = max((n for n, event in enumerate(self._history) if event["event"] == "report"), default=-1)
        self._ledger.mute()
        for number, event in enumerate(self._history):
            if number == last:
                self._ledger.unmute(self._history[number:])
            step = getattr(self, f"_on_{event['event']}", None)
            if step is not None:
                step(number, event)
        self._ledger.unmute([])
        self._settle()
        self._extend(self._experiment.max_epochs, len(self._history))
        trials = self._stage.get_trials()
        for trial in trials:
            if not trial.is_finished():
                self._saves.register(trial)
        return trials

    def started(self) -> list[Trial]:
        """Those that a worker had when the search stopped, in the order in which they got it."""
        return [self._stage.trials[trial_id] for trial_id in self._started]

    def _on_experiment_started(self, number: int, event: Event) -> None:
        self._judge.max_epochs = event.get("max_epochs", self._judge.max_epochs)

    def _on_experiment_resumed(self, number: int, event: Event) -> None:
        self._settle()  # as the session that began here did; what it wrote of it comes next
        self._extend(event.get("max_epochs", self._judge.max_epochs), number)

    def _on_trial_suggested(self, number: int, event: Event) -> None:
        trial = self._source.again(event["trial"], event["config"])
        self._stage.trials[trial.trial_id] = trial
        self._judge.on_trial_add(self._stage, trial)

    def _on_trial_started(self, number: int, event: Event) -> None:
        trial = self._stage.trials[event["trial"]]
        if trial.status == Trial.PAUSED:
            self._look_around()
        set_status(trial, Trial.RUNNING)
        self._started[trial.trial_id] = None
        self._extended.discard(trial.trial_id)

    def _on_report(self, number: int, event: Event) -> None:
        trial = self._stage.trials[event["trial"]]
        set_status(trial, Trial.RUNNING)
        self._saves.add(trial, event)
        result = {**event["metrics"], "training_iteration": event["epoch"], "trial_id": trial.trial_id}
        if "checkpoint" in event:
            result["checkpoint_dir_name"] = Path(event["checkpoint"]).name
        recorded = self._actions[number]
        action = self._judged(trial, result, recorded)
        if action != TrialScheduler.STOP:
            self._source.on_trial_result(trial.trial_id, result)
        set_last_result(trial, {**result, "config": trial.config})
        # The journal's word counts: whether a trial that could go on made room for others hung on what ran just then.
        self._act(trial, ACTIONS[action] if recorded is None else recorded)

    def _judged(self, trial: Trial, result: dict[str, Any], recorded: str | None) -> str:
        """The scheduler's decision, its others in the state that explains the recorded one."""
        if recorded != "pause" or self._experiment.scheduler != "bohb":
            return self._judge.on_trial_result(self._stage, trial, result)
        # HyperBandForBOHB halves a bracket only when Ray has marked all the others as paused, which it does some time
        # after they were told to. That this one was told to pause says that one of them was not marked yet.
        paused = [other for other in self._stage.get_trials() if other.status == Trial.PAUSED]
        for other in paused:
            set_status(other, Trial.RUNNING)
        try:
            return self._judge.on_trial_result(self._stage, trial, result)
        finally:
            for other in paused:
                if not other.is_finished():
                    set_status(other, Trial.PAUSED)

    def _act(self, trial: Trial, action: str) -> None:
        if action == "stop":
            self._stopped.add(trial.trial_id)
        elif action == "pause":
            set_status(trial, Trial.PAUSED)
            self._started.pop(trial.trial_id, None)

    def _on_decision(self, number: int, event: Event) -> None:
        trial = self._stage.trials[event["trial"]]
        if event["action"] == "stop" and trial.status == Trial.PAUSED:
            self._look_around()  # it was stopped while it waited, by no report

    def _look_around(self) -> None:
        """Ray asks its scheduler at every step what to run, and BOHB's halves brackets when nothing runs."""
        self._judge.choose_trial_to_run(self._stage)

    def _on_trial_failed(self, number: int, event: Event) -> None:
        trial = self._stage.trials[event["trial"]]
        if not event["will_retry"]:
            self._failed.add(trial.trial_id)
            return
        # Its scheduler and its searcher hear nothing of a trial that is tried again; Ray puts it last.
        set_status(trial, Trial.PENDING)
        self._stage.trials[trial.trial_id] = self._stage.trials.pop(trial.trial_id)

    def _on_trial_ended(self, number: int, event: Event) -> None:
        trial = self._stage.trials[event["trial"]]
        if event["status"] == "interrupted":
            if trial.status == Trial.RUNNING and trial.trial_id not in self._stopped:
                set_status(trial, Trial.PENDING)
            return
        self._started.pop(trial.trial_id, None)
        self._stopped.discard(trial.trial_id)
        if trial.is_finished() or trial.trial_id in self._extended:
            return  # it ended on the stage
        if trial.trial_id in self._failed:
            self._judge.on_trial_error(self._stage, trial)
            self._source.on_trial_complete(trial.trial_id, error=True)
            set_status(trial, Trial.ERROR)
            return
        self._judge.verdicts.setdefault(trial.trial_id, Verdict(event["status"], event["reason"]))
        self._end(trial)

    def _end(self, trial: Trial) -> None:
        verdict = self._judge.verdicts.get(trial.trial_id)
        if verdict and verdict.status == "completed" and trial.last_result.get("training_iteration") is not None:
            self._completed[trial.trial_id] = trial.last_result["training_iteration"]
        self._stage.stop_trial(trial)

    def _settle(self) -> None:
        """Ends what was told to end; what ran is to be started again."""
        for trial in self._stage.get_trials():
            if trial.trial_id in self._stopped:
                self._started.pop(trial.trial_id, None)
                self._end(trial)
            elif trial.status == Trial.RUNNING:
                set_status(trial, Trial.PENDING)
        self._stopped.clear()

    def _extend(self, max_epochs: int, number: int) -> None:
        """Trials that had trained all their epochs go on where there are more of them from event `number` on.

        The scheduler gets them back; its searcher was told their value and is not told again.
        """
        before, self._judge.max_epochs = self._judge.max_epochs, max_epochs
        for trial_id in [t for t, epochs in self._completed.items() if before == epochs < max_epochs]:
            trial = self._stage.trials[trial_id]
            if self._last_start.get(trial_id, -1) > number or self._saves.reaches(trial_id, before):
                del self._completed[trial_id]
                self._extended.add(trial_id)
                set_status(trial, Trial.PENDING)
                self._judge.on_trial_add(self._stage, trial)
            else:
                logger.warning("trial %s stays at %d epochs: it saved no checkpoint to go on from", trial_id, before)


def recorded_actions(history: list[Event]) -> dict[int, str | None]:
    """Index of a report -> continue, stop or pause as journaled; None for the last, where the crash may have come."""
    actions: dict[int, str | None] = {}
    open_reports: dict[str, int] = {}
    for number, event in enumerate(history):
        if event["event"] == "report":
            open_reports[event["trial"]] = number
            actions[number] = "continue"
        elif event["event"] == "decision" and event["trial"] in open_reports:
            actions[open_reports.pop(event["trial"])] = event["action"]
    if actions and max(actions) in open_reports.values():
        actions[max(actions)] = None
    return actions
