"""The scheduler of a search: it journals each report, asks the rule of `--scheduler`, and carries out its decisions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.core.events import (
    DIVERGED,
    RETURNED,
    TRAINED,
    Decision,
    GraceLearned,
    LengthLearned,
    Report,
    SchedulerChanged,
    TrialEnded,
    TrialFailed,
)
from tuner.core.rules import rule_of
from tuner.core.rules.own_length import of_grace, of_length
from tuner.core.rules.rule import Action, Decisions, RuleDecision
from tuner.core.state import State
from tuner.engine.controller.failures import Failure
from tuner.engine.controller.stopper import SearchStopper
from tuner.engine.controller.trials import ReplayController
from tuner.errors import RequestError, nearest
from tuner.errors.gate import plain
from tuner.record.journal import Journal
from tuner.record.records import finite
from tuner.record.report_keys import DOUBT, EPOCH, FINAL, LEFT_OUT, OWN_KEYS, RAY_KEYS, USAGE
from tuner.spec.constraints import BREAKS
from tuner.spec.experiment import Experiment
from tuner.spec.metrics import advice_without, finite_all, is_number, keeps_last, reached
from tuner.spec.resources import Resources
from tuner.tuning.budget import Budget

RAY_ACTIONS: dict[Action, str] = {
    "continue": TrialScheduler.CONTINUE,
    "pause": TrialScheduler.PAUSE,
    "stop": TrialScheduler.STOP,
}
NOT_METRICS = RAY_KEYS | OWN_KEYS
STOPS = (
    "the trials save no checkpoint to continue from, so asha-promotion uses the rule of --scheduler asha: it stops "
    "trials instead of pausing them"
)


class TrialEnd(NamedTuple):
    """The status and reason of a trial's `trial_ended` event."""

    status: str
    reason: str


class SearchScheduler(TrialScheduler):
    """Journals reports and decisions; stops trials, pauses them and continues paused ones, as the rule decides.

    With asha-promotion, the first report at a rung decides which rule the whole search uses. If its trial has saved no
    checkpoint to continue from, the search uses the rule of `--scheduler asha`, which stops trials and pauses none.
    """

    _supports_buffered_results = False

    def __init__(
        self,
        experiment: Experiment,
        journal: Journal,
        stopper: SearchStopper,
        compared_option: str = "",  # the option or argument that chose the compared metric, for error texts
        resumed: bool = False,
        concurrent: Callable[[], int] | None = None,  # how many trials may run at once; None = Ray's limit
        budget: Budget | None = None,
        *,
        ends_by_itself: bool = False,  # whether a trial knows `max_epochs`: what follows its last report then runs
    ) -> None:
        super().__init__()
        self.set_search_properties(*experiment.compared)  # `metric` is then what the rule compares
        self.max_epochs = experiment.max_epochs
        self.ends: dict[str, TrialEnd] = {}  # trial -> how it will end; until its `trial_ended` event
        self._experiment, self._journal, self._stopper, self._concurrent = experiment, journal, stopper, concurrent
        self._compared, self._wanted, self._aim = experiment.compared, experiment.wanted, experiment.aim
        self._compared_option = compared_option or f"--{'prune-by' if experiment.prune_by else 'metric'} {self.metric}"
        self._budget = budget or Budget(experiment, Resources(1, 0, 1), State(experiment))
        self.any_usable = resumed  # whether a report had the compared metric and, in this session, --stop's metrics
        self._answered: set[str] = set()  # trials with a finite value of the wanted metric
        self._alone = Counter[str]()  # trial -> its reports that have only the wanted metric, which end no epoch
        self._none_left = False  # whether no setting is left to start, of the search or of --confirm
        self._broken: set[str] = set()  # trials that broke a constraint which must hold from the start
        self._ends_by_itself = ends_by_itself
        self._name, self._rule = experiment.scheduler, rule_of(experiment, experiment.brackets)
        self._last: dict[str, tuple[int, Any]] = {}  # trial -> epoch and value of the last report with a decision
        self._best: dict[str, Any] = {}  # trial -> `best` of `Aim.improved`, of the reports that have a checkpoint
        self._saved: dict[str, str] = {}  # trial -> the name of its newest checkpoint, if it has saved one
        self._at: dict[str, RuleDecision] = {}  # trial -> the rule's decision at its last rung
        # Unfinished trials, also during a replay: `_waiting` ones are paused until the rule decides; `_promoted` ones
        # have not reported since their promotion (in the order of promotion); `_active` has all others.
        self._active: dict[str, Trial] = {}
        self._waiting: dict[str, Trial] = {}
        self._promoted: dict[str, Trial] = {}
        self._pausing: set[Trial] = set()  # `_waiting` ones that may still save their checkpoint
        self._queue: dict[str, Trial] = {}  # unfinished trials that Ray has, in the order in which it added them
        self.repeats = False  # whether the decision on the present report is recorded
        self.run_first: list[Trial] = []  # trials that ran when the resumed search stopped; they run before all others

    def value_of(self, metrics: dict[str, Any]) -> Any:
        """Returns what the rule compares of a report: a value, or a tuple of several; None if the report lacks one."""
        return self._aim.values(metrics) if self._aim.several else self._compared.value(metrics)

    def num_promoted(self) -> int:
        """Returns how many promoted trials wait for a worker; they take precedence over new trials."""
        return len(self._ready())

    def _ready(self) -> list[str]:
        """Returns those of them that the budget lets go on: the ones that are being finished, if there are any."""
        paused = [trial_id for trial_id, trial in self._promoted.items() if trial.status == Trial.PAUSED]
        finishing = self._budget.finishing
        return [t for t in paused if t in finishing] or [t for t in paused if t not in finishing and not self._held(t)]

    def may_start(self, none_left: bool = False) -> bool:
        """Whether a free worker gets a setting; if the budget pays for none, begins --confirm or ends the search."""
        if not self._budget.limits:
            return True
        self._none_left = none_left
        finish, may_start = self._plan()
        if finish or may_start or self._ready():
            return may_start
        running = [trial for trial in self._queue.values() if trial.status != Trial.PAUSED]
        if self._experiment.confirm and not self._budget.confirming:
            self._budget.confirming = all(map(confirms, running))
        elif not running:
            self._stopper.use_up(self._budget.used_up(self._budget.confirming and none_left))
        return False

    def _plan(self) -> tuple[str, bool]:
        paused, busy = self._paused_and_busy()
        is_held = self._promoted and not busy and not self._ready()  # only the budget lets these trials wait
        return self._budget.plan(paused, busy, self._none_left and bool(is_held or self._budget.confirming))

    def _paused_and_busy(self, without: str = "") -> tuple[list[str], list[str]]:
        """Returns the paused trials, and those that have a worker or will get one, both without one trial."""
        with_worker = [(t, each) for group in (self._active, self._promoted) for t, each in group.items()]
        waiting = [t for t, each in [*with_worker, *self._waiting.items()] if each.status == Trial.PAUSED]
        busy = [t for t, each in with_worker if each.status != Trial.PAUSED]
        return [t for t in waiting if t != without], [t for t in busy if t != without]

    def _held(self, trial_id: str) -> str:
        """Says why the budget does not let a trial go on at a rung; empty if it does, or if a replay knows it."""
        if self.repeats or not self._budget.limits or self._rule.in_force.scheduler != "asha-promotion":
            return ""
        return self._budget.held(trial_id, *self._paused_and_busy(without=trial_id))

    def finish(self, tune_controller: Any, trial: Trial) -> None:
        """Lets a paused trial train to its last epoch, whatever the rule says of it."""
        trial_id = trial.trial_id
        self._budget.finishing.add(trial_id)
        self._move(trial, self._promoted)
        decision = self._at[trial_id]._replace(action="continue", reason=self._budget.why_finish())
        self._journal_decision(trial_id, decision, budget=True)
        self._apply(tune_controller, self._rule.ended(int(trial_id), 0, None))

    def hold(self, tune_controller: Any, trial: Trial) -> None:
        """Lets a trial wait that the rule has promoted, until the budget lets it go on."""
        self._move(trial, self._promoted)

    def repeat_idle(self, stage: ReplayController, trial: Trial) -> None:
        """In a replay: if `trial` still waits, asks the rule to decide as it did when only waiting trials were left."""
        if trial.trial_id in self._waiting:
            self._apply(stage, self._rule.idle())

    def learn_length(self, tune_controller: Any, trial_id: str, epochs: int) -> None:
        """Fits ASHA's rungs to a trial that ended by itself; journals new rungs; may promote waiting trials."""
        before = self._rule.in_force
        decided, now = self._rule.learn_length(epochs, set(map(int, self._waiting))), self._rule.in_force
        if now != before:
            rungs = now.rungs_before_end()
            self._journal.write(LengthLearned(epochs, rungs, of_length(epochs, rungs), trial_id))
        self._apply(tune_controller, decided)

    def debug_string(self) -> str:
        return ""  # Ray would show this text in its own table, which tuner does not print

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if not (isinstance(tune_controller, ReplayController) or trial.is_finished()):
            self._queue.pop(trial.trial_id, None)
            self._queue[trial.trial_id] = trial  # at the queue's end, where Ray puts a retried trial
        if not (self._is_known(trial) or trial.is_finished()):
            self._move(trial, self._active)
            self._answered.discard(trial.trial_id)  # if a resume continues it, its last epoch has another answer
            if not confirms(trial):
                self._add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Does nothing: `on_failure` gets the failure."""

    def on_failure(self, tune_controller: Any, trial: Trial, failure: Failure) -> None:
        """Journals a failure; removes the trial unless it is retried. A retried trial keeps its rung and bracket."""
        from_epoch = failure.from_epoch if failure.will_retry else None  # the checkpoint's epoch, 0 = none
        self._journal.write(
            TrialFailed(failure.error, failure.kind, failure.will_retry, from_epoch, trial=trial.trial_id)
        )
        if not failure.will_retry:
            self.ends[trial.trial_id] = TrialEnd("failed", failure.error)
            self.on_trial_remove(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self.on_trial_complete(tune_controller, trial, {})

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._queue.pop(trial.trial_id, None)
        epochs = result.get(EPOCH, 0)
        if self._is_known(trial):  # false for a trial that the rule has stopped while the trial waited
            self._move(trial, None)
            value = self.value_of(result)
            if value is None and epochs:  # the last report has only the wanted metric
                _, value = self._last.get(trial.trial_id, (0, None))
            if not confirms(trial):
                value = None if trial.trial_id in self._broken else finite_all(value)
                self._apply(tune_controller, self._rule.ended(int(trial.trial_id), epochs, value))
        end = self.ends.pop(trial.trial_id, TrialEnd("completed", RETURNED))
        if end.reason == RETURNED and EPOCH not in (trial.last_result or {}):
            end = TrialEnd("failed", "ended without a report: its function must call tune.report at least once")
            self._journal.write(TrialFailed(end.reason, "user", will_retry=False, trial=trial.trial_id))
        # A search that is being stopped also ends trials early, so their length tells nothing.
        elif end.reason == RETURNED and not (self._stopper.reason or confirms(trial)):
            length = self.trained(trial.trial_id, epochs)
            if 0 < length < self.max_epochs and not self._ends_by_itself:
                self.learn_length(tune_controller, trial.trial_id, length)
            elif length >= self.max_epochs and self._ends_by_itself:
                end = TrialEnd(end.status, f"{TRAINED} {self.max_epochs} epochs")
        self._journal.write(TrialEnded(end.status, end.reason, trial=trial.trial_id))
        if not isinstance(tune_controller, ReplayController):  # only a resume continues a trial that has ended
            for known in (self._last, self._best, self._saved, self._at):
                known.pop(trial.trial_id, None)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        trial_id, epoch = trial.trial_id, result[EPOCH]
        named = result.keys() - NOT_METRICS
        metrics = {name: plain(v) for name, v in result.items() if name in named and not name.startswith("config/")}
        saved = result.get("checkpoint_dir_name")  # None or missing: the report saved no checkpoint
        value, answers = self.value_of(metrics), self._aim.losses(metrics) is not None
        if is_last := keeps_last(self._compared, self._wanted, metrics):  # such as the last report of a function
            saved = saved or self._saved.get(trial_id)
        report = Report(
            epoch,
            metrics,
            f"ray/{trial_id}/{saved}" if saved else None,
            final=result.get(FINAL) is True or None,
            left_out=dict(result[LEFT_OUT]) if LEFT_OUT in result else None,
            doubt=result.get(DOUBT),
            trial=trial_id,
        )
        self._journal.write(report)
        if result.get("checkpoint_dir_name"):
            improved, self._best[trial_id] = self._aim.improved(self._best.get(trial_id, math.inf), metrics)
            trial.improved = epoch if improved else 0
        decided, before = self._last.get(trial_id, (0, None))
        # A restarted trial may repeat an epoch on which the rule has already decided. Only pbt decides again, since it
        # sets trials back to earlier epochs.
        if epoch <= decided and self._name != "pbt":
            return RAY_ACTIONS["continue"]
        if is_last:
            value, self._alone[trial_id] = before, self._alone[trial_id] + 1
        self._last[trial_id] = epoch, value
        if refused := self._refuse(trial_id, epoch, value, metrics):
            return self._stop(trial_id, RuleDecision("stop", refused), "failed")
        self.any_usable = True
        self._answered |= {trial_id} if answers else set()
        if finite_all(value) is None:
            # The rule does not get NaN or infinity, because as the worst value it would distort the rule's cutoffs.
            name, own = self._aim.first_not(finite_all, self._compared, metrics)
            reason = f"{name} is {own} at epoch {epoch}: {DIVERGED}"
            return self._stop(trial_id, RuleDecision("stop", reason))
        if broken := self._aim.broken_by(metrics, at="start"):
            self._broken.add(trial_id)
            return self._stop(trial_id, RuleDecision("stop", f"{BREAKS} at epoch {epoch}: {broken}"))
        if reason := self._completes(trial_id, epoch, metrics) or (RETURNED if report.final else ""):
            return self._stop(trial_id, RuleDecision("stop", reason), "completed")
        if not self._aim.several:
            result[self.metric] = value
        if saved is not None:
            self._saved[trial_id] = saved
        asks = epoch < self.max_epochs and not confirms(trial)
        return self._ask(tune_controller, trial, result) if asks else RAY_ACTIONS["continue"]

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        while self.run_first and self.run_first[0].status != Trial.PENDING:
            del self.run_first[0]
        if self.run_first and self.run_first[0].trial_id in self._queue:
            return self.run_first[0]
        if self._budget.limits and self._concurrent and self.num_busy() + self.num_promoted() < self._concurrent():
            if best := self._plan()[0]:
                self.finish(tune_controller, self._waiting.get(best) or self._promoted[best])
        others = self._active or self._promoted or self._stopper.reason or self._budget.confirming
        all_wait = self._waiting and not others and tune_controller.search_alg.is_exhausted()
        if all_wait and all(trial.status == Trial.PAUSED for trial in self._waiting.values()):  # none is still saving
            self._apply(tune_controller, self._rule.idle())
        chosen = self._choose(tune_controller)
        if chosen is None or chosen.trial_id not in self._queue:
            return None  # after a resume, Ray gets the recorded trials one by one; it does not have this one yet
        if chosen.status != Trial.PAUSED or self._concurrent is None:
            return chosen
        # Without this limit, Ray would resume as many paused trials as the CPUs allow.
        if self.num_busy() < self._concurrent():
            return chosen
        pending = (t for group in (self._active, self._promoted) for t in group.values() if t.status == Trial.PENDING)
        return next((trial for trial in pending if trial.trial_id in self._queue), None)

    def num_busy(self) -> int:
        """Returns how many of the trials that Ray has are not paused; asha-promotion may pause 60,000 of 100,000."""
        self._pausing = {t for t in self._pausing if t.trial_id in self._waiting and t.status != Trial.PAUSED}
        others = *self._active.values(), *self._promoted.values(), *self._pausing
        return sum(trial.status != Trial.PAUSED and trial.trial_id in self._queue for trial in others)

    def _add(self, tune_controller: Any, trial: Trial) -> None:
        self._rule.added(int(trial.trial_id))

    def _ask(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decides on a report with a finite value, and on trials that waited for this report; returns Ray's action."""
        trial_id, before, saved = trial.trial_id, self._rule.in_force, trial.trial_id in self._saved
        if trial_id in self._budget.finishing:
            decision, others = RuleDecision(), Decisions()
        else:
            decision, others = self._rule.judge(int(trial_id), result[EPOCH], self._last[trial_id][1], saved=saved)
        if decision.rung is not None:
            self._at[trial_id] = decision
        if (now := self._rule.in_force).scheduler != before.scheduler:
            self._journal.write(SchedulerChanged(now.scheduler, STOPS))
        if (grace := now.grace_period) != before.grace_period:
            why = of_grace(before.grace_period, grace, rungs := now.rungs_before_end())
            self._journal.write(GraceLearned(grace, rungs, why, trial_id))
        self._move(trial, self._waiting if decision.action == "pause" else self._active)
        self._pausing |= {trial} if decision.action == "pause" else set()
        if decision.action == "pause" and not saved:
            return self._refuse_pause(trial_id, decision)
        if decision.action == "stop":
            self._stop(trial_id, decision)
        elif decision.action == "continue" and decision.rung is not None and saved and (why := self._held(trial_id)):
            decision = decision._replace(action="pause", reason=why)
            self._journal_decision(trial_id, decision, budget=True)
            self.hold(tune_controller, trial)
        elif decision.reason:
            self._journal_decision(trial_id, decision)
        self._apply(tune_controller, others)
        if self._name == "bohb":  # TuneBOHB learns from reports with a budget
            result["hyperband_info"] = {} if decision.rung is None else {"budget": decision.rung}
        return RAY_ACTIONS[decision.action]

    def _choose(self, tune_controller: Any) -> Trial | None:
        """Returns a promoted trial, else a pending one, else None."""
        ready = self._ready()
        promoted = (t for t in self._promoted.values() if t.status == Trial.PENDING or t.trial_id in ready)
        pending = (trial for trial in self._active.values() if trial.status == Trial.PENDING)
        return next(promoted, None) or next(pending, None)

    def _apply(self, tune_controller: Any, decided: Decisions) -> None:
        """Stops or promotes waiting trials as decided; `choose_trial_to_run` returns the promoted ones."""
        for number, decision in decided:
            trial = self._waiting[f"{number:05d}"]
            if decision.action == "stop":
                self._move(trial, None)
                self._stop(trial.trial_id, decision)
                tune_controller.stop_trial(trial)
                continue
            self._move(trial, self._promoted)
            self._journal_decision(trial.trial_id, decision)

    def _is_known(self, trial: Trial) -> bool:
        return any(trial.trial_id in group for group in (self._active, self._waiting, self._promoted))

    def _move(self, trial: Trial, to: dict[str, Trial] | None) -> None:
        for group in (self._active, self._waiting, self._promoted):
            if group is not to:
                group.pop(trial.trial_id, None)
        if to is not None:
            to.setdefault(trial.trial_id, trial)

    def _completes(self, trial_id: str, epoch: int, metrics: dict[str, Any]) -> str:
        """Returns why the trial completes at this report (--stop, or its last epoch); empty if it continues.

        A trial that has never reported the wanted metric may send one report after its last epoch: a function often
        computes this metric after its loop. One that knows its length ends by itself, unless it reports once more.
        """
        if reason := reached(self._experiment.limits, (*self._aim.goals, self._compared), {EPOCH: epoch, **metrics}):
            return reason
        has_answer = trial_id in self._answered or keeps_last(self._compared, self._wanted, metrics)
        ends = self.trained(trial_id, epoch) >= self.max_epochs + (not has_answer or self._ends_by_itself)
        more = ", and would report more" * self._ends_by_itself
        return f"{TRAINED} {self.max_epochs} epochs{more}" if ends else ""

    def trained(self, trial_id: str, epoch: int) -> int:
        """Returns how many epochs a trial had trained at a report: not each report ends one."""
        return epoch - self._alone[trial_id]

    def _refuse(self, trial_id: str, epoch: int, value: Any, metrics: dict[str, Any]) -> str:
        """Returns '' if a report can be compared, else why not; then stops the search if no earlier report could be."""
        missing = [name for name in self._experiment.limits if name not in {*metrics, EPOCH, self._wanted.metric}]
        if all(map(is_number, value if isinstance(value, tuple) else [value])) and (self.any_usable or not missing):
            return ""
        compared, found = self._aim.first_not(is_number, self._compared, metrics)
        names = ", ".join(sorted(metrics.keys() - USAGE)) or "nothing"
        start, word, own = self._compared_option.partition("metric")  # the name may be a part of this word
        option, name = start + word + own.replace(self.metric, compared, 1), compared
        if compared in metrics and missing:
            option, name = f"--stop {missing[0]}", missing[0]
        if name not in metrics:
            what = f"reports no {name!r} at epoch {epoch}; it reports {names}"
            hint = nearest(name, metrics.keys() - USAGE) or advice_without(self._experiment.prune_by)
        else:
            what = f"reports {compared!r} as {found!r} at epoch {epoch}, which is not a number"
            hint = "; report a number"
        if not self.any_usable:
            then = f"; then give another --name, as the folder of {self._experiment.name!r} keeps this attempt"
            self._stopper.refuse(RequestError(f"{option}: trial {trial_id} {what}{hint}{then}"))
        return f"the trial {what}"

    def _refuse_pause(self, trial_id: str, decision: RuleDecision) -> str:
        reason = f"--scheduler {self._name} pauses trials, and this one saves no checkpoint to continue from"
        self._stopper.refuse(RequestError(f"{reason}; report checkpoints, or use asha, median or fifo"))
        return self._stop(trial_id, decision._replace(action="stop", reason=reason), "failed")

    def _stop(self, trial_id: str, decision: RuleDecision, status: str = "pruned") -> str:
        self._journal_decision(trial_id, decision)
        self.ends[trial_id] = TrialEnd(status, decision.reason)
        return RAY_ACTIONS["stop"]

    def _journal_decision(self, trial_id: str, decision: RuleDecision, **more: Any) -> None:
        epoch, value = self._last[trial_id]
        number = value if isinstance(value, float) or finite(value) is not None else None
        self._journal.write(Decision(epoch, number, *decision, trial=trial_id, **more))
        if decision.action != "continue" or trial_id in self._promoted:
            self._journal.sync()  # Ray now stops, pauses or promotes the trial, which a resume must know


def confirms(trial: Trial) -> bool:
    """Whether a trial is one of `--confirm`: the rule does not know it, and never stops it."""
    return bool(getattr(trial, "confirms", ""))
