"""Runs a stopping rule of `tuner.rules` as a scheduler of Ray Tune."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tuner.engine.controller.stage import BareStage
from tuner.rules.by_name import rule_of
from tuner.rules.own_length import OwnLength
from tuner.rules.rule import Decisions, RuleDecision
from tuner.spec.experiment import Experiment

ACTIONS: dict[str, str] = {
    "continue": TrialScheduler.CONTINUE,
    "pause": TrialScheduler.PAUSE,
    "stop": TrialScheduler.STOP,
}


class RuleScheduler(FIFOScheduler):
    """Stops trials, pauses them and continues paused ones, as the rule of `--scheduler` decides.

    A paused trial continues from its checkpoint. So with asha-promotion, the first report at a rung decides the rule of
    the whole search: if its trial has saved no checkpoint, trials are stopped by the rule of `--scheduler asha`.

    Attributes:
        stops_instead: whether a search with asha-promotion uses the rule of `--scheduler asha` instead.
    """

    def __init__(self, experiment: Experiment) -> None:
        super().__init__()
        self._value, self._name = experiment.metric, experiment.scheduler
        self._rule = rule_of(experiment, experiment.brackets)
        self.stops_instead = False
        self._pauses = self._name != "asha-promotion"  # whether a report has decided that asha-promotion pauses
        self._saved: set[str] = set()  # trials that have saved a checkpoint
        self._active: dict[str, Trial] = {}  # unfinished trials that neither wait nor were promoted
        self._waiting: dict[str, Trial] = {}
        self._next: dict[str, Trial] = {}  # promoted trials that have not reported since, in the order of promotion
        self._unread: list[Trial] = []
        self._decided: dict[str, RuleDecision] = {}  # the latest decision on each unfinished trial

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Does nothing: the constructor took metric and mode from the experiment."""
        return True

    def decision(self, trial: Trial) -> RuleDecision:
        """Returns the rule's latest decision on a trial that has not ended."""
        return self._decided.get(trial.trial_id, RuleDecision())

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._active[trial.trial_id] = trial
        self._rule.added(int(trial.trial_id))

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Returns the rule's decision on a report; stops or promotes the paused trials on which it decides, too."""
        trial_id, number = trial.trial_id, int(trial.trial_id)
        if result.get("checkpoint_dir_name") is not None:
            self._saved.add(trial_id)
        self._move(trial, self._active)
        decision = self._judge(number, trial_id in self._saved, result)
        if decision.action == "pause":
            self._move(trial, self._waiting)
        settled = dict(self._rule.settled(number))
        decision = settled.pop(number, decision)
        self._decided[trial_id] = decision
        if decision.action != "pause":
            self._move(trial, self._active)
        self._apply(tune_controller, list(settled.items()))
        if self._name == "bohb":
            # TuneBOHB learns from reports with a budget, and counts the trials that are not paused.
            result["hyperband_info"] = {} if decision.rung is None else {"budget": decision.rung}
            if decision.action == "pause":
                tune_controller.search_alg.searcher.on_pause(trial_id)
        return ACTIONS[decision.action]

    def _judge(self, number: int, is_saved: bool, result: dict[str, Any]) -> RuleDecision:
        decision = self._rule.judge(number, result["training_iteration"], result[self._value])
        if not isinstance(self._rule, OwnLength):
            return decision
        if decision.rung is not None and not self._pauses:
            self._pauses = True
            if not is_saved:
                self.stops_instead, decision = True, self._rule.stop_instead()
        return self._rule.unsaved(number) if decision.action == "pause" and not is_saved else decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._end(tune_controller, trial, result[self._value], result["training_iteration"])

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._end(tune_controller, trial, None)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._end(tune_controller, trial, None)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Returns a promoted trial, else a pending one; closes the search if no trial is left to run."""
        if self._is_idle(tune_controller):
            self.close(tune_controller)
        ready = (trial for trial in self._next.values() if trial.status in (Trial.PAUSED, Trial.PENDING))
        pending = (trial for trial in self._active.values() if trial.status == Trial.PENDING)
        return next(ready, None) or next(pending, None)

    def close(self, tune_controller: Any) -> None:
        """Applies the rule's decisions on the paused trials when nothing else is left to run.

        Only for when no trial runs and no setting is left; a replay calls it where the journal has such a decision.
        """
        self._apply(tune_controller, self._rule.idle())

    def learn(self, tune_controller: Any, epochs: int) -> list[int] | None:
        """Moves the rungs of ASHA to the length of a trial that has ended by itself; promotes trials that continue.

        Returns the epochs of the rungs; None if they do not move.
        """
        if not isinstance(self._rule, OwnLength):
            return None
        before = self._rule.rules
        self._apply(tune_controller, self._rule.learn(epochs))
        now = self._rule.rules
        return None if now == before else [rung for rung in now.rungs() if rung < now.max_epochs]

    def waits(self, trial: Trial) -> bool:
        """Whether a trial waits at a rung."""
        return trial.trial_id in self._waiting

    def num_next(self) -> int:
        """Returns how many promoted trials still wait for a free place; they run before new trials."""
        return sum(trial.status == Trial.PAUSED for trial in self._next.values())

    def promoted(self) -> list[Trial]:
        """Returns the paused trials that were promoted since the last call."""
        promoted, self._unread = self._unread, []
        return promoted

    def debug_string(self) -> str:
        return f"Using {self._name}: {len(self._waiting)} trials wait."

    def _is_idle(self, tune_controller: Any) -> bool:
        """Whether all unfinished trials wait and no setting is left; False in a replay, which follows the journal."""
        if self._active or self._next or not self._waiting or isinstance(tune_controller, BareStage):
            return False
        # A waiting trial that is not PAUSED yet still saves its checkpoint.
        paused = all(trial.status == Trial.PAUSED for trial in self._waiting.values())
        return paused and tune_controller.search_alg.is_exhausted()

    def _apply(self, tune_controller: Any, decided: Decisions) -> None:
        """Stops the waiting trials that the rule stops, and lets the others continue when a place is free."""
        for number, decision in decided:
            trial = self._waiting[f"{number:05d}"]
            self._decided[trial.trial_id] = decision
            if decision.action == "stop":
                self._move(trial, None)
                tune_controller.stop_trial(trial)
                continue
            self._move(trial, self._next)
            self._unread.append(trial)
            if self._name == "bohb":
                tune_controller.search_alg.searcher.on_unpause(trial.trial_id)

    def _move(self, trial: Trial, to: dict[str, Trial] | None) -> bool:
        """Moves a trial to one of the three groups, or removes it; returns whether it was in one."""
        known = [trials for trials in (self._active, self._waiting, self._next) if trial.trial_id in trials]
        for trials in known:
            if trials is not to:
                del trials[trial.trial_id]
        if to is not None:
            to.setdefault(trial.trial_id, trial)
        return bool(known)

    def _end(self, tune_controller: Any, trial: Trial, value: float | None, epoch: int = 0) -> None:
        self._decided.pop(trial.trial_id, None)
        if self._move(trial, None):  # a trial that the rule stopped while it waited has left it already
            self._apply(tune_controller, self._rule.ended(int(trial.trial_id), epoch, value))
