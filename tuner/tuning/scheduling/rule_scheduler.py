"""Runs a stopping rule of `tuner.rules` as a scheduler of Ray Tune."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial

from tuner.engine.controller.scheduling import ReplayController
from tuner.rules.by_name import rule_of
from tuner.rules.own_length import OwnLength, of_length
from tuner.rules.rule import Decisions, RuleDecision
from tuner.tuning.scheduling.decisions import EPOCH, RAY_ACTIONS, SearchScheduler

STOPS = (  # why a search with asha-promotion stops trials instead of pausing them
    "the trials save no checkpoint to continue from, so asha-promotion uses the rule of --scheduler asha: it stops "
    "trials instead of pausing them"
)


class RuleScheduler(SearchScheduler):
    """Stops trials, pauses them and continues paused ones, as the rule of `--scheduler` decides.

    A paused trial continues from its checkpoint. So with asha-promotion, the first report at a rung decides the rule of
    the whole search: if its trial has saved no checkpoint, trials are stopped by the rule of `--scheduler asha`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._name = self._experiment.scheduler
        self._rule = rule_of(self._experiment, self._experiment.brackets)
        self._pauses = self._name != "asha-promotion"  # whether a report has decided that asha-promotion pauses
        self._saved: set[str] = set()  # trials that have saved a checkpoint
        self._last: dict[str, tuple[int, float]] = {}  # unfinished trial -> epoch and value of its last report
        self._active: dict[str, Trial] = {}  # unfinished trials that neither wait nor were promoted
        self._waiting: dict[str, Trial] = {}
        self._promoted: dict[str, Trial] = {}  # promoted trials that have not reported since, in the order of promotion

    def places(self, concurrent: int) -> int:
        """Of the trials that may run at once, how many may be new: promoted trials take precedence."""
        num_promoted: int = sum(trial.status == Trial.PAUSED for trial in self._promoted.values())
        return concurrent - num_promoted

    def close(self, stage: ReplayController, trial: Trial) -> None:
        if trial.trial_id in self._waiting:
            self._apply(stage, self._rule.idle())

    def learn(self, tune_controller: Any, trial_id: str, epochs: int) -> None:
        """Moves the rungs of ASHA to the length of a trial that has ended by itself, and journals it if they move."""
        if not isinstance(self._rule, OwnLength):
            return
        paused, before = set(map(int, self._waiting)), self._rule.rules
        decided, now = self._rule.learn(epochs, paused), self._rule.rules
        if now != before:
            rungs = [rung for rung in now.rungs() if rung < now.max_epochs]
            self._journal.write("length_learned", trial_id, epochs=epochs, rungs=rungs, reason=of_length(epochs, rungs))
        self._apply(tune_controller, decided)

    def debug_string(self) -> str:
        return f"Using {self._name}: {len(self._waiting)} trials wait."

    def _add(self, tune_controller: Any, trial: Trial) -> None:
        self._active[trial.trial_id] = trial
        self._rule.added(int(trial.trial_id))

    def _ask(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Journals and returns the rule's decision; stops or promotes the paused trials on which it decides, too."""
        trial_id, number, epoch, value = trial.trial_id, int(trial.trial_id), result[EPOCH], result[self.metric]
        self._last[trial_id] = epoch, value
        if result.get("checkpoint_dir_name") is not None:
            self._saved.add(trial_id)
        self._move(trial, self._active)
        decision = self._judge(number, epoch, value)
        if decision.action == "pause":
            self._move(trial, self._waiting)
        settled = dict(self._rule.settled(number))
        decision = settled.pop(number, decision)
        if decision.action != "pause":
            self._move(trial, self._active)
        elif trial_id not in self._saved:
            return self._refuse_pause(trial, result, decision)
        if decision.action == "stop":
            self._stop(trial_id, epoch, value, decision)
        elif decision.reason:
            self._journal_decision(trial_id, epoch, value, decision)
        self._apply(tune_controller, list(settled.items()))
        if self._name == "bohb":
            # TuneBOHB learns from reports with a budget, and counts the trials that are not paused.
            result["hyperband_info"] = {} if decision.rung is None else {"budget": decision.rung}
            if decision.action == "pause":
                tune_controller.search_alg.searcher.on_pause(trial_id)
        return RAY_ACTIONS[decision.action]

    def _judge(self, number: int, epoch: int, value: float) -> RuleDecision:
        decision = self._rule.judge(number, epoch, value)
        if not isinstance(self._rule, OwnLength):
            return decision
        is_saved = f"{number:05d}" in self._saved
        if decision.rung is not None and not self._pauses:
            self._pauses = True
            if not is_saved:
                decision = self._rule.stop_instead()
                self._journal.write("scheduler_changed", scheduler="asha", reason=STOPS)
        return self._rule.unsaved(number) if decision.action == "pause" and not is_saved else decision

    def _choose(self, tune_controller: Any) -> Trial | None:
        """Returns a promoted trial, else a pending one; closes the search if no trial is left to run."""
        if self._is_idle(tune_controller):
            self._apply(tune_controller, self._rule.idle())
        ready = (trial for trial in self._promoted.values() if trial.status in (Trial.PAUSED, Trial.PENDING))
        pending = (trial for trial in self._active.values() if trial.status == Trial.PENDING)
        return next(ready, None) or next(pending, None)

    def _is_idle(self, tune_controller: Any) -> bool:
        """Whether all unfinished trials wait and no setting is left."""
        if self._active or self._promoted or not self._waiting:
            return False
        # A waiting trial that is not PAUSED yet still saves its checkpoint.
        paused = all(trial.status == Trial.PAUSED for trial in self._waiting.values())
        return paused and tune_controller.search_alg.is_exhausted()

    def _apply(self, tune_controller: Any, decided: Decisions) -> None:
        """Stops the waiting trials that the rule stops, and lets the others continue when a place is free."""
        for number, decision in decided:
            trial = self._waiting[f"{number:05d}"]
            at = trial.trial_id, *self._last[trial.trial_id]
            if decision.action == "stop":
                self._move(trial, None)
                self._stop(*at, decision)
                tune_controller.stop_trial(trial)
                continue
            self._move(trial, self._promoted)
            self._journal_decision(*at, decision)
            if self._name == "bohb":
                tune_controller.search_alg.searcher.on_unpause(trial.trial_id)

    def _move(self, trial: Trial, to: dict[str, Trial] | None) -> bool:
        """Moves a trial to one of the three groups, or removes it; returns whether it was in one."""
        known = [trials for trials in (self._active, self._waiting, self._promoted) if trial.trial_id in trials]
        for trials in known:
            if trials is not to:
                del trials[trial.trial_id]
        if to is not None:
            to.setdefault(trial.trial_id, trial)
        return bool(known)

    def _remove(self, tune_controller: Any, trial: Trial, epoch: int, value: float | None) -> None:
        self._last.pop(trial.trial_id, None)
        if self._move(trial, None):  # a trial that the rule stopped while it waited has left it already
            self._apply(tune_controller, self._rule.ended(int(trial.trial_id), epoch, value))
