"""Restores a search: replays the journal's events through a new searcher and a new scheduler.

Their state depends only on the seed and the order of calls, so the replay restores rungs, brackets, paused trials, the
settings that pbt has changed and TPE's observations. After a crash, the journal may lack the decision on its last
report, or the end of a trial that was to stop or had failed. The replay then adds this decision or end to the journal.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

from ray.tune import Checkpoint
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.core.events import (
    Beginning,
    Decision,
    Event,
    LengthLearned,
    Report,
    TrialEnded,
    TrialFailed,
    TrialStarted,
    TrialSuggested,
    kind_of,
    trial_of,
)
from tuner.engine.controller.failures import Failure
from tuner.engine.controller.trials import (
    ReplayController,
    count_checkpoints_from,
    register_checkpoint,
    set_last_result,
)
from tuner.errors import RequestError, say
from tuner.record.checkpoints import damage, within
from tuner.record.format import JOURNAL
from tuner.record.journal import Journal, key_of
from tuner.record.report_keys import EPOCH, FINAL
from tuner.record.texts import counted
from tuner.spec.experiment import Experiment
from tuner.training.seals import SEAL, has_key
from tuner.tuning.proposals import Proposals
from tuner.tuning.scheduler import RAY_ACTIONS, SearchScheduler, TrialEnd

logger = logging.getLogger(__name__)
ACTIONS = {ray: name for name, ray in RAY_ACTIONS.items()} | {TrialScheduler.NOOP: "pause"}


class Replay(ReplayController):
    """Replays a journal once, in `run`, in place of Ray's controller: its trials have a status but no worker."""

    def __init__(
        self,
        proposals: Proposals,
        scheduler: SearchScheduler,
        journal: Journal,
        experiment: Experiment,
        history: list[Event],
        sha256: str = "",
        *,
        is_task: bool = True,
        key: str = "",  # of the seals of checkpoints; empty = they are not checked
    ) -> None:
        super().__init__(proposals)
        self._proposals, self._scheduler, self._journal, self._experiment = proposals, scheduler, journal, experiment
        self._history, self._sha256, self._is_task = history, sha256, is_task
        self._key = key
        self._code = ""  # the digest of the space's file in the replayed session
        self._best: dict[str, tuple[Any, int, Any]] = {}  # trial -> `best` of `Aim.improved`, its epoch and point
        self._saved: dict[str, list[tuple[Path, dict[str, Any]]]] = {}  # trial -> (checkpoint, metrics) to register
        self._stopped: set[str] = set()  # trials that were to stop and whose end is not replayed yet
        self._failed: dict[str, str] = {}  # trials that failed and were not retried -> the kind of the failure
        self._completed: dict[str, int] = {}  # trials that ended as completed -> their last epoch
        self._extended: set[str] = set()  # trials that had ended and that a resume continues, until they start again
        self._started: dict[str, None] = {}  # trials that have a worker, in the order in which they got it
        self._actions = recorded_actions(history)
        self._last_start = {e.trial: n for n, e in enumerate(history) if isinstance(e, TrialStarted)}

    def run(self) -> list[Trial]:
        """Replays the history; returns all trials in the order in which Ray had them before.

        The journal gets no event twice: it gets only the events that a crash cut off after the last report.
        """
        last = max((n for n, event in enumerate(self._history) if isinstance(event, Report)), default=0)
        self._journal.repeated = None
        try:
            for number, event in enumerate(self._history):
                if number == last:
                    # An interrupted trial may have a decision to stop; the replay then adds its real end.
                    rest = [e for e in self._history[number:] if getattr(e, "status", "") != "interrupted"]
                    self._journal.repeated = Counter(map(key_of, rest))
                step = getattr(self, f"_on_{kind_of(event)}", None)
                if step is not None:
                    try:
                        step(number, event)
                    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
                        raise self._senseless(number, error) from error
        finally:
            self._journal.repeated, self._scheduler.repeats = Counter(), False
        reports = (event for event in self._history if isinstance(event, Report))
        self._scheduler.any_usable = any(self._scheduler.value_of(report.metrics) is not None for report in reports)
        num_again = self._start_session(len(self._history), self._experiment.max_epochs, self._sha256)
        self._scheduler.run_first = [self.trials[trial_id] for trial_id in self._started]
        for trial in self.get_trials():
            if not trial.is_finished():
                self._register_checkpoints(trial)
                self._count_checkpoints(trial)
        if self._history:
            self._say_resumed(num_again)
        return self.get_trials()

    def _senseless(self, number: int, error: Exception) -> RequestError:
        """The error for a whole line that cannot follow the lines before it, such as a report of an unknown trial."""
        event, journal = self._history[number], self._experiment.folder / JOURNAL
        what = kind_of(event) if (trial := trial_of(event)) is None else f"{kind_of(event)} of trial {trial}"
        why = f"cannot follow the lines before it ({type(error).__name__}: {error})"
        advice = "restore the journal from a copy, or start anew with --name"
        return RequestError(f"{journal}, line {number + 1}: {what} {why}; {advice}")

    def _say_resumed(self, num_again: int) -> None:
        """Prints how many trials continue (`num_again` of them had failed), are paused, done or still to come."""
        num = Counter("done" if trial.is_finished() else trial.status for trial in self.get_trials())
        trials = f"{counted(num[Trial.PENDING], 'trial')} continue{'s' * (num[Trial.PENDING] == 1)}"
        notes = [f"{num_again} that had failed"] if num_again else []
        anew = [trial for trial in self.get_trials() if trial.status == Trial.PENDING and EPOCH in trial.last_result]
        if num_anew := sum(trial.checkpoint is None for trial in anew):
            notes += [f"{num_anew} from epoch 1, without a checkpoint"]
        trials += f" ({'; '.join(notes)})" if notes else ""
        trials += f", {num[Trial.PAUSED]} paused" if num[Trial.PAUSED] else ""
        num_left = max(0, self._proposals.total_samples - len(self.trials))
        to_come = f", {num_left} still to come" if self._experiment.num_samples else ""  # else a budget decides
        say(f"resumed: {trials}, {num['done']} done{to_come}")

    # Ray's interface, which the scheduler calls

    def stop_trial(self, trial: Trial) -> None:
        """Ends a trial, unless it has ended, as TuneController.stop_trial does."""
        if trial.is_finished():
            return
        if trial.status == Trial.RUNNING:
            self._scheduler.on_trial_complete(self, trial, dict(trial.last_result))
            self._proposals.on_trial_complete(trial.trial_id, result=dict(trial.last_result))
        else:
            self._scheduler.on_trial_remove(self, trial)
            self._proposals.on_trial_complete(trial.trial_id)
        self._set_ended(trial, Trial.TERMINATED)

    def _set_ended(self, trial: Trial, status: str) -> None:
        self._started.pop(trial.trial_id, None)
        self._stopped.discard(trial.trial_id)
        trial.set_status(status)

    # One method for each kind of event that changes the state

    def _on_experiment_resumed(self, number: int, event: Beginning) -> None:
        max_epochs = self._scheduler.max_epochs if event.max_epochs is None else event.max_epochs
        self._start_session(number, max_epochs, event.space_sha256)

    _on_experiment_started = _on_experiment_resumed

    def _on_trial_suggested(self, number: int, event: TrialSuggested) -> None:
        recorded, original = (event.trial, event.config), event.confirms
        trial = self._proposals.repeat(*recorded, original) if original else self._proposals.again(*recorded)
        self.trials[trial.trial_id] = trial
        self._scheduler.on_trial_add(self, trial)

    def _on_trial_started(self, number: int, event: TrialStarted) -> None:
        trial = self.trials[event.trial]
        trial.set_status(Trial.RUNNING)
        self._started[trial.trial_id] = None
        self._extended.discard(trial.trial_id)

    def _on_report(self, number: int, event: Report) -> None:
        """Repeats a report to scheduler and searcher; the recorded action takes precedence over the scheduler's."""
        trial = self.trials[event.trial]
        trial.set_status(Trial.RUNNING)
        self._remember_checkpoint(trial, event)
        if self._experiment.scheduler == "pbt":  # pbt copies checkpoints between trials, in a replay, too
            self._register_checkpoints(trial)
        result = {**event.metrics, EPOCH: event.epoch, "trial_id": trial.trial_id}
        if event.final is True:
            result[FINAL] = True
        if event.checkpoint:
            result["checkpoint_dir_name"] = Path(event.checkpoint).name
        self._scheduler.repeats = self._actions[number] is not None
        decided = self._scheduler.on_trial_result(self, trial, result)
        if decided != TrialScheduler.STOP:
            self._proposals.on_trial_result(trial.trial_id, result)
        set_last_result(trial, {**result, "config": trial.config})
        # The recorded action takes precedence over the scheduler's: a pause depended on which other trials ran.
        action = self._actions[number] or ACTIONS[decided]
        if action == "stop":
            self._stopped.add(trial.trial_id)
        elif action == "pause":
            trial.set_status(Trial.PAUSED)
            self._started.pop(trial.trial_id, None)

    def _on_decision(self, number: int, event: Decision) -> None:
        trial = self.trials[event.trial]
        if trial.status == Trial.PAUSED and event.budget is True:
            (self._scheduler.finish if event.action == "continue" else self._scheduler.hold)(self, trial)
        elif trial.status == Trial.PAUSED and event.action in ("stop", "continue"):
            self._scheduler.repeat_idle(self, trial)  # the rule may have decided when only waiting trials were left

    def _on_length_learned(self, number: int, event: LengthLearned) -> None:
        self._scheduler.learn_length(self, event.trial, event.epochs)

    def _on_trial_failed(self, number: int, event: TrialFailed) -> None:
        trial = self.trials[event.trial]
        if event.will_retry:
            # Neither the rule, PBT nor the searcher learns of a retry. Ray moves the trial to the end of its list.
            trial.set_status(Trial.PENDING)
            self.trials[trial.trial_id] = self.trials.pop(trial.trial_id)
            return
        self._failed[trial.trial_id] = event.kind
        self._scheduler.on_failure(self, trial, Failure(event.kind, event.error, will_retry=False))
        self._proposals.on_trial_complete(trial.trial_id, error=True)
        self._set_ended(trial, Trial.ERROR)

    def _on_trial_ended(self, number: int, event: TrialEnded) -> None:
        trial = self.trials[event.trial]
        if event.status == "failed":  # without a `trial_failed` event, its report was refused
            self._failed.setdefault(trial.trial_id, "user")
        if event.status == "interrupted":
            if trial.status == Trial.RUNNING and trial.trial_id not in self._stopped:
                trial.set_status(Trial.PENDING)
        elif not trial.is_finished() and trial.trial_id not in self._extended:
            # Otherwise this replay has already ended the trial, and may have continued it.
            self._scheduler.ends.setdefault(trial.trial_id, TrialEnd(event.status, event.reason))
            self._end(trial)

    def _end(self, trial: Trial) -> None:
        end = self._scheduler.ends.get(trial.trial_id)
        if end and end.status == "completed" and trial.last_result.get(EPOCH) is not None:
            self._completed[trial.trial_id] = self._scheduler.trained(trial.trial_id, trial.last_result[EPOCH])
        self.stop_trial(trial)

    def _start_session(self, number: int, max_epochs: int, sha256: str) -> int:
        """Does what a resumed session does before its trials start; returns how many failed trials it continues.

        Ends the trials with a decision to stop; makes the other running trials pending. Continues two kinds of ended
        trials. Those that trained all epochs and saved a checkpoint continue if max_epochs was raised. Failed trials
        continue if the previous session failed, too, or if the code has changed and their failure's kind is `user` or
        `oom`. The scheduler gets these trials again; the searcher does not, as it already has their values.
        """
        for trial in self.get_trials():
            if trial.trial_id in self._stopped:
                self._end(trial)
            elif trial.status == Trial.RUNNING:
                trial.set_status(Trial.PENDING)
        before, self._scheduler.max_epochs = self._scheduler.max_epochs, max_epochs
        for trial_id in [t for t, epochs in self._completed.items() if before <= epochs < max_epochs]:
            saved = self.trials[trial_id].last_result.get("checkpoint_dir_name")
            is_there = saved and (self._experiment.folder / "ray" / trial_id / saved).exists()
            if is_there or self._last_start.get(trial_id, -1) > number:
                del self._completed[trial_id]
                self._continue(trial_id)
            else:
                logger.warning("trial %s stays at %d epochs: it has no checkpoint to continue from", trial_id, before)
        code, self._code = self._code, sha256
        has_changed = code and sha256 and code != sha256
        stopped = number > 0 and getattr(self._history[number - 1], "state", "") == "failed"
        own = ("user", "oom") if has_changed else ()  # failures that other code may not have
        again = [trial_id for trial_id, kind in self._failed.items() if stopped or kind in own]
        for trial_id in again:
            del self._failed[trial_id]
            self._continue(trial_id)
        return len(again)

    def _continue(self, trial_id: str) -> None:
        self._extended.add(trial_id)
        self.trials[trial_id].set_status(Trial.PENDING)
        self._scheduler.on_trial_add(self, self.trials[trial_id])

    def _remember_checkpoint(self, trial: Trial, report: Report) -> None:
        """Keeps the checkpoint that a journaled report names, for `_register_checkpoints`."""
        if not report.checkpoint:
            return
        aim = self._experiment.aim
        before, at, point = self._best.get(trial.trial_id, (math.inf, 0, None))
        improved, best = aim.improved(before, report.metrics)
        # Or the trial repeated its best epoch.
        improved |= report.epoch == at and aim.point(report.metrics) == point is not None
        if improved:
            self._best[trial.trial_id] = best, report.epoch, aim.point(report.metrics)
        try:
            path = within(self._experiment.folder, report.checkpoint)
        except RequestError as error:
            logger.warning("trial %s: %s", trial.trial_id, error)
            return
        # Ray reads `improved` to decide which checkpoints to keep; a worker counts epochs from `training_iteration`.
        metrics = {**report.metrics, EPOCH: report.epoch, "improved": report.epoch if improved else 0}
        count_checkpoints_from(trial, int(path.name.rpartition("_")[2]))
        self._saved.setdefault(trial.trial_id, []).append((path, metrics))

    def _count_checkpoints(self, trial: Trial) -> None:
        """Numbers new checkpoints after all that are there, since files of a folder of this name would mix with theirs.

        A killed session may have left one that no journaled report names; a name does not prove that it made it.
        """
        names = (path.name for path in (self._experiment.folder / "ray" / trial.trial_id).glob("checkpoint_*"))
        if taken := [int(number) for name in names if (number := name.removeprefix("checkpoint_")).isdecimal()]:
            count_checkpoints_from(trial, max(trial.storage.current_checkpoint_index, *taken))

    def _register_checkpoints(self, trial: Trial) -> None:
        """Registers undamaged checkpoints with Ray; the trial continues from the last, or from epoch 1 without any."""
        # A function's last report may name the checkpoint of the report before: the same folder, once.
        saved = list({path: (path, metrics) for path, metrics in self._saved.pop(trial.trial_id, [])}.values())
        for path, metrics in saved:
            if not path.exists():  # Ray deletes all but the best and the latest checkpoint of a Task, except with pbt
                if path == saved[-1][0] and self._experiment.scheduler != "pbt":
                    logger.warning("trial %s: its latest checkpoint %s is gone", trial.trial_id, path)
                continue
            if why := damage(path, plain=self._is_task):
                logger.warning("trial %s: its checkpoint %s is damaged: %s", trial.trial_id, path, why)
                continue
            if self._key and (seals := sorted(path.glob(f"*{SEAL}"))):
                self._check_key(seals[0].with_suffix(""))
            register_checkpoint(trial, Checkpoint.from_directory(path.absolute()), metrics)

    def _check_key(self, file: Path) -> None:
        """Raises RequestError if this search's trials, which check all seals, would refuse those of its folder."""
        if not has_key(file, self._key):
            raise RequestError(
                f"{file} may run code when it is loaded, and this user has not saved it so on this machine: check it, "
                f"then give --trust"
            )
        self._key = ""  # one is enough to know the key


def recorded_actions(history: list[Event]) -> dict[int, str | None]:
    """Maps each report's index to its recorded action, or `continue`; the last report's is None without a decision."""
    actions: dict[int, str | None] = {}
    open_reports: dict[str, int] = {}
    for number, event in enumerate(history):
        if isinstance(event, Report):
            open_reports[event.trial] = number
            actions[number] = "continue"
        elif isinstance(event, Decision) and event.trial in open_reports:
            actions[open_reports.pop(event.trial)] = event.action
    if actions and max(actions) in open_reports.values():
        actions[max(actions)] = None
    return actions
