"""Runs the rules of ASHA, `tuner.spec.rules.Asha` and `Promotion`, as a scheduler of Ray Tune."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tuner.engine.controller.stage import BareStage
from tuner.record.records import sign_of
from tuner.spec.experiment import Experiment
from tuner.spec.length import OwnLength
from tuner.spec.rules import Judged

ACTIONS: dict[str, str] = {
    "continue": TrialScheduler.CONTINUE,
    "pause": TrialScheduler.PAUSE,
    "stop": TrialScheduler.STOP,
}


class RuleScheduler(FIFOScheduler):
    """Stops trials at rungs, or pauses them and continues the best of them, as the rule decides.

    A paused trial continues from its checkpoint. So with asha-promotion, the first report at a rung decides the rule of
    the whole search: if its trial has saved no checkpoint, trials are stopped by the rule of `--scheduler asha`.

    Attributes:
        stops: whether the search uses the rule of `--scheduler asha`.
        factor: the best 1 in `factor` trials that reached a rung are promoted there.
        judged: trial -> the latest decision on it.
        closing: the trials whose latest decision was made because no trial ran and no setting was left.
    """

    def __init__(self, experiment: Experiment) -> None:
        super().__init__()
        self._value, self._sign = experiment.metric, float(sign_of(experiment.mode))
        self.factor = experiment.reduction_factor
        self._rule = OwnLength(experiment, experiment.brackets)
        self.stops = experiment.scheduler == "asha"
        self._decided = self.stops  # whether a report has decided the rule of the search
        self._saved: set[str] = set()  # trials that have saved a checkpoint
        self._active: dict[str, Trial] = {}  # unfinished trials that neither wait nor were promoted
        self._waiting: dict[str, Trial] = {}
        self._next: dict[str, Trial] = {}  # promoted trials that have not reported since, in the order of promotion
        self._unread: list[Trial] = []
        self.judged: dict[str, Judged] = {}
        self.closing: set[str] = set()

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Does nothing: the constructor took metric and mode from the experiment."""
        return True

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._active[trial.trial_id] = trial
        self._rule.added(int(trial.trial_id))

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Returns the rule's decision on a report; promotes the paused trials that continue because of it."""
        trial_id, epoch = trial.trial_id, result["training_iteration"]
        value = self._sign * result[self._value]
        if result.get("checkpoint_dir_name") is not None:
            self._saved.add(trial_id)
        self._move(trial, self._active)
        judged = self._rule.judge(int(trial_id), epoch, value)
        if judged.rung is not None and not self._decided:
            self._decided = True
            if trial_id not in self._saved:
                self.stops, judged = True, self._rule.stop_instead()
        if judged.action == "pause" and trial_id not in self._saved:
            self._rule.ended(int(trial_id), epoch, None)
            judged = judged._replace(action="stop")
        self._note(trial, judged)
        if judged.action == "pause":
            self._move(trial, self._waiting)
        for other, decision in self._rule.settled(int(trial_id)):
            self._promote(other, decision)
        return ACTIONS[judged.action]

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._end(trial, self._sign * result[self._value], result["training_iteration"])

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._end(trial, None)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._end(trial, None)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Returns a promoted trial, else a pending one; closes the search if no trial is left to run."""
        if self._is_idle(tune_controller):
            self.close(tune_controller)
        ready = (trial for trial in self._next.values() if trial.status in (Trial.PAUSED, Trial.PENDING))
        pending = (trial for trial in self._active.values() if trial.status == Trial.PENDING)
        return next(ready, None) or next(pending, None)

    def close(self, tune_controller: Any) -> None:
        """Promotes the best of the highest rung at which trials wait; once a trial has completed, stops all that wait.

        Only for when no trial runs and no setting is left; a replay calls it where the journal has such a decision.
        """
        for number, judged in self._rule.idle():
            trial = self._of(number)
            if judged.action == "continue":
                self._promote(number, judged)
            else:
                self._note(trial, judged)
            self.closing.add(trial.trial_id)
            if judged.action == "stop":
                tune_controller.stop_trial(trial)

    def learn(self, epochs: int) -> list[int] | None:
        """Moves the rungs to the length of a trial that has ended by itself; promotes the paused trials that continue.

        Returns the epochs of the rungs; None if a trial of this length or a greater one has ended before.
        """
        before = self._rule.rules
        for other, decision in self._rule.learn(epochs):
            self._promote(other, decision)
        now = self._rule.rules
        return None if now == before else [rung for rung in now.rungs() if rung < now.max_epochs]

    def waits(self, trial: Trial) -> bool:
        """Whether a trial waits at a rung for its promotion."""
        return trial.trial_id in self._waiting

    def num_next(self) -> int:
        """Returns how many promoted trials still wait for a free place; they run before new trials."""
        return sum(trial.status == Trial.PAUSED for trial in self._next.values())

    def promoted(self) -> list[Trial]:
        """Returns the paused trials that were promoted since the last call."""
        promoted, self._unread = self._unread, []
        return promoted

    def debug_string(self) -> str:
        return f"Using ASHA: {len(self._waiting)} trials wait."

    def _is_idle(self, tune_controller: Any) -> bool:
        """Whether all unfinished trials wait and no setting is left; False in a replay, which follows the journal."""
        if self._active or self._next or not self._waiting or isinstance(tune_controller, BareStage):
            return False
        # A waiting trial that is not PAUSED yet still saves its checkpoint.
        paused = all(trial.status == Trial.PAUSED for trial in self._waiting.values())
        return paused and tune_controller.search_alg.is_exhausted()

    def _of(self, number: int) -> Trial:
        return self._waiting[f"{number:05d}"]

    def _note(self, trial: Trial, judged: Judged) -> None:
        self.judged[trial.trial_id] = judged
        self.closing.discard(trial.trial_id)

    def _promote(self, number: int, judged: Judged) -> None:
        trial = self._of(number)
        self._note(trial, judged)
        self._move(trial, self._next)
        self._unread.append(trial)

    def _move(self, trial: Trial, to: dict[str, Trial] | None) -> None:
        for trials in (self._active, self._waiting, self._next):
            if trials is not to:
                trials.pop(trial.trial_id, None)
        if to is not None:
            to.setdefault(trial.trial_id, trial)

    def _end(self, trial: Trial, value: float | None, epoch: int = 0) -> None:
        self._move(trial, None)
        for other, decision in self._rule.ended(int(trial.trial_id), epoch, value):
            self._promote(other, decision)
