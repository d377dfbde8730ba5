"""The scheduler of a search: it journals each report, asks the rule of `--scheduler`, and carries out its decisions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any, NamedTuple, cast

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.engine.controller.failures import Failure
from tuner.engine.controller.stopper import SearchStopper
from tuner.engine.controller.trials import Population, ReplayController
from tuner.errors import RequestError, nearest
from tuner.record.events import RETURNED, is_trial_id, plain
from tuner.record.journal import Journal
from tuner.record.records import finite
from tuner.record.report_keys import EPOCH, FINAL, RAY_KEYS, USAGE
from tuner.rules import rule_of
from tuner.rules.own_length import of_length
from tuner.rules.rule import Action, Decisions, RuleDecision
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.searchers.sampling import seeded

RAY_ACTIONS: dict[Action, str] = {
    "continue": TrialScheduler.CONTINUE,
    "pause": TrialScheduler.PAUSE,
    "stop": TrialScheduler.STOP,
}
NOT_METRICS = RAY_KEYS | {"improved", FINAL}  # `tuner.tuning.trial` adds `improved` and FINAL to reports
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
        metric_option: str = "",  # the option or argument that chose the metric, for error texts
        resumed: bool = False,
        concurrent: Callable[[], int] | None = None,  # how many trials may run at once; None = Ray's limit
    ) -> None:
        super().__init__()
        self.set_search_properties(experiment.metric, experiment.mode)
        self.max_epochs = experiment.max_epochs
        self.ends: dict[str, TrialEnd] = {}  # trial -> how it will end; until its `trial_ended` event
        self._experiment, self._journal, self._stopper, self._concurrent = experiment, journal, stopper, concurrent
        self._metric_option = metric_option or f"--metric {experiment.metric}"
        self._limits = experiment.limits
        self.any_usable = resumed  # whether a report had the metric and, in this session, --stop's metrics
        self._name, self._rule = experiment.scheduler, rule_of(experiment, experiment.brackets)
        self._last: dict[str, tuple[int, Any]] = {}  # trial -> epoch and value of the last report with a decision
        self._saved: set[str] = set()  # trials that have saved a checkpoint
        # Unfinished trials, also during a replay: `_waiting` ones are paused until the rule decides; `_promoted` ones
        # have not reported since their promotion (in the order of promotion); `_active` has all others.
        self._active: dict[str, Trial] = {}
        self._waiting: dict[str, Trial] = {}
        self._promoted: dict[str, Trial] = {}
        self._queue: dict[str, Trial] = {}  # unfinished trials that Ray has, in the order in which it added them
        self.run_first: list[Trial] = []  # trials that ran when the resumed search stopped; they run before all others

    def num_promoted(self) -> int:
        """Returns how many promoted trials wait for a worker; they take precedence over new trials."""
        return len([trial for trial in self._promoted.values() if trial.status == Trial.PAUSED])

    def repeat_idle(self, stage: ReplayController, trial: Trial) -> None:
        """In a replay: if `trial` still waits, asks the rule to decide as it did when only waiting trials were left."""
        if trial.trial_id in self._waiting:
            self._apply(stage, self._rule.idle())

    def learn_length(self, tune_controller: Any, trial_id: str, epochs: int) -> None:
        """Fits ASHA's rungs to a trial that ended by itself; journals new rungs; may promote waiting trials."""
        before = self._rule.in_force
        decided, now = self._rule.learn_length(epochs, set(map(int, self._waiting))), self._rule.in_force
        if now != before:
            rungs = [rung for rung in now.rungs() if rung < now.max_epochs]
            self._journal.write("length_learned", trial_id, epochs=epochs, rungs=rungs, reason=of_length(epochs, rungs))
        self._apply(tune_controller, decided)

    def debug_string(self) -> str:
        return ""  # Ray would show this text in its own table, which tuner does not print

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if not isinstance(tune_controller, ReplayController):
            self._queue.pop(trial.trial_id, None)
            self._queue[trial.trial_id] = trial  # at the queue's end, where Ray puts a retried trial
        if not (self._is_known(trial) or trial.is_finished()):
            self._move(trial, self._active)
            self._add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Does nothing: `on_failure` gets the failure."""

    def on_failure(self, tune_controller: Any, trial: Trial, failure: Failure) -> None:
        """Journals a failure; removes the trial unless it is retried. A retried trial keeps its rung and bracket."""
        after = {"from_epoch": failure.from_epoch} if failure.will_retry else {}  # the checkpoint's epoch, 0 = none
        fields = {"error": failure.error, "kind": failure.kind, "will_retry": failure.will_retry, **after}
        self._journal.write("trial_failed", trial.trial_id, **fields)
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
            value = finite(plain(result.get(self.metric)))
            self._apply(tune_controller, self._rule.ended(int(trial.trial_id), epochs, value))
        end = self.ends.pop(trial.trial_id, TrialEnd("completed", RETURNED))
        if end.reason == RETURNED and EPOCH not in (trial.last_result or {}):
            end = TrialEnd("failed", "ended without a report: its function must call tune.report at least once")
            self._journal.write("trial_failed", trial.trial_id, error=end.reason, kind="user", will_retry=False)
        # A search that is being stopped also ends trials early, so their length tells nothing.
        elif end.reason == RETURNED and 0 < epochs < self.max_epochs and not self._stopper.reason:
            self.learn_length(tune_controller, trial.trial_id, epochs)
        self._journal.write("trial_ended", trial.trial_id, status=end.status, reason=end.reason)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        trial_id, epoch = trial.trial_id, result[EPOCH]
        named = result.keys() - NOT_METRICS
        metrics = {name: plain(v) for name, v in result.items() if name in named and not name.startswith("config/")}
        saved = result.get("checkpoint_dir_name")  # None or missing: the report saved no checkpoint
        where = {"checkpoint": f"ray/{trial_id}/{saved}"} if saved else {}
        final = {"final": True} if result.get(FINAL) is True else {}
        self._journal.write("report", trial_id, epoch=epoch, metrics=metrics, **where, **final)
        decided, _ = self._last.get(trial_id, (0, None))
        # A restarted trial may repeat an epoch on which the rule has already decided. Only pbt decides again, since it
        # sets trials back to earlier epochs.
        if epoch <= decided and self._name != "pbt":
            return RAY_ACTIONS["continue"]
        value = metrics.get(self.metric)
        self._last[trial_id] = epoch, value
        if refused := self._refuse(trial_id, epoch, value, metrics):
            return self._stop(trial_id, RuleDecision("stop", refused), "failed")
        self.any_usable = True
        assert isinstance(value, (int, float))  # `_refuse` has checked this
        if finite(value) is None:
            # The rule does not get NaN or infinity, because as the worst value it would distort the rule's cutoffs.
            reason = f"{self.metric} is {value} at epoch {epoch}: the training diverged"
            return self._stop(trial_id, RuleDecision("stop", reason))
        if reason := self._completes(metrics, epoch) or (RETURNED if final else ""):
            return self._stop(trial_id, RuleDecision("stop", reason), "completed")
        result[self.metric] = value
        if saved is not None:
            self._saved.add(trial_id)
        return self._ask(tune_controller, trial, result)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        while self.run_first and self.run_first[0].status != Trial.PENDING:
            del self.run_first[0]
        if self.run_first and self.run_first[0].trial_id in self._queue:
            return self.run_first[0]
        all_wait = self._waiting and not (self._active or self._promoted) and tune_controller.search_alg.is_exhausted()
        if all_wait and all(trial.status == Trial.PAUSED for trial in self._waiting.values()):  # none is still saving
            self._apply(tune_controller, self._rule.idle())
        chosen = self._choose(tune_controller)
        if chosen is None or chosen.trial_id not in self._queue:
            return None  # after a resume, Ray gets the recorded trials one by one; it does not have this one yet
        if chosen.status != Trial.PAUSED or self._concurrent is None:
            return chosen
        # Without this limit, Ray would resume as many paused trials as the CPUs allow.
        busy = [trial for trial in self._queue.values() if trial.status in (Trial.PENDING, Trial.RUNNING)]
        if len(busy) < self._concurrent():
            return chosen
        return next((trial for trial in busy if trial.status == Trial.PENDING), None)

    def _add(self, tune_controller: Any, trial: Trial) -> None:
        self._rule.added(int(trial.trial_id))

    def _ask(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decides on a report with a finite value, and on trials that waited for this report; returns Ray's action."""
        trial_id, scheduler, saved = trial.trial_id, self._rule.in_force.scheduler, trial.trial_id in self._saved
        decision, others = self._rule.judge(int(trial_id), result[EPOCH], result[self.metric], saved=saved)
        if self._rule.in_force.scheduler != scheduler:
            self._journal.write("scheduler_changed", scheduler=self._rule.in_force.scheduler, reason=STOPS)
        self._move(trial, self._waiting if decision.action == "pause" else self._active)
        if decision.action == "pause" and not saved:
            return self._refuse_pause(trial_id, decision)
        if decision.action == "stop":
            self._stop(trial_id, decision)
        elif decision.reason:
            self._journal_decision(trial_id, decision)
        self._apply(tune_controller, others)
        if self._name == "bohb":  # TuneBOHB learns from reports with a budget
            result["hyperband_info"] = {} if decision.rung is None else {"budget": decision.rung}
        return RAY_ACTIONS[decision.action]

    def _choose(self, tune_controller: Any) -> Trial | None:
        """Returns a promoted trial, else a pending one, else None."""
        ready = (trial for trial in self._promoted.values() if trial.status in (Trial.PAUSED, Trial.PENDING))
        pending = (trial for trial in self._active.values() if trial.status == Trial.PENDING)
        return next(ready, None) or next(pending, None)

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

    def _completes(self, metrics: dict[str, Any], epoch: int) -> str:
        """Returns why the trial completes at this report (--stop, or its last epoch); empty if the rule must decide."""
        for name, limit in self._limits.items():
            value = metrics.get(name, epoch if name == EPOCH else None)
            least = name != self.metric or self._experiment.mode == "max"
            if isinstance(value, (int, float)) and (value >= limit if least else value <= limit):
                return f"{name} reached {value:g} (--stop {name}={limit:g})"
        return f"trained its {self.max_epochs} epochs" if epoch >= self.max_epochs else ""

    def _refuse(self, trial_id: str, epoch: int, value: Any, metrics: dict[str, Any]) -> str:
        """Returns '' if a report can be compared, else why not; then stops the search if no earlier report could be."""
        missing = [name for name in self._limits if name not in metrics and name != EPOCH]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and (self.any_usable or not missing):
            return ""
        names = ", ".join(sorted(metrics.keys() - USAGE)) or "nothing"
        option, name = self._metric_option, self.metric
        if self.metric in metrics and missing:
            option, name = f"--stop {missing[0]}", missing[0]
        if name not in metrics:
            what = f"reports no {name!r} at epoch {epoch}; it reports {names}"
            hint = nearest(name, metrics.keys() - USAGE) or "; give one of these, or report it"
        else:
            what = f"reports {self.metric!r} as {value!r} at epoch {epoch}, which is not a number"
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

    def _journal_decision(self, trial_id: str, decision: RuleDecision, **copied: str) -> None:
        epoch, value = self._last[trial_id]
        fields = decision._asdict()
        if decision.compared is None:
            del fields["compared"]
        number = value if isinstance(value, float) or finite(value) is not None else None
        self._journal.write("decision", trial_id, epoch=epoch, value=number, **fields, **copied)


class PopulationScheduler(SearchScheduler):
    """Gets decisions from Ray's population-based training; seeds its draws from (seed, trial, epoch)."""

    def __init__(self, experiment: Experiment, *args: Any, space: Space, **options: Any) -> None:
        super().__init__(experiment, *args, **options)
        self._mutable, self._population = space.mutable, population_of(experiment, space)

    def _add(self, tune_controller: Any, trial: Trial) -> None:
        with seeded(self._experiment.seed, 4, int(trial.trial_id)):
            self._population.on_trial_add(tune_controller, trial)

    def _ask(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        trial_id, epoch, before = trial.trial_id, result[EPOCH], dict(trial.config)
        with seeded(self._experiment.seed, 5, int(trial_id), epoch):
            action = str(self._population.on_trial_result(tune_controller, trial, result))
        changed = {k: (before[k], v) for k, v in trial.config.items() if k in self._mutable and v != before[k]}
        if changed:
            steps = ", ".join(f"{name} {_short(old)} -> {_short(new)}" for name, (old, new) in changed.items())
            reason = f"is in the worst quarter: copies the state of a better trial, with {steps}"
        else:
            reason = "waits until the other trials of the population have trained"
        pauses = action in (TrialScheduler.PAUSE, TrialScheduler.NOOP)
        decision = RuleDecision("pause" if pauses else "continue", reason)
        if action == TrialScheduler.PAUSE and not trial.checkpoint and result.get("checkpoint_dir_name") is None:
            return self._refuse_pause(trial_id, decision)
        if changed or action == TrialScheduler.PAUSE:
            copied = PurePath(trial.checkpoint.path).parent.name if changed and trial.checkpoint else ""
            from_other = is_trial_id(copied) and copied != trial_id
            self._journal_decision(trial_id, decision, **({"copied": copied} if from_other else {}))
        return action

    def _choose(self, tune_controller: Any) -> Trial | None:
        return cast("Trial | None", self._population.choose_trial_to_run(tune_controller))


def population_of(experiment: Experiment, space: Space) -> Population:
    """Returns Ray's scheduler for pbt, which changes the parameters that the space declares as mutable."""
    mutations = dict(space.mutations)
    for name, domain in space.mutations.items():
        if (kind := domains.kind(domain)) == "sample_from":
            mutations[name] = domain.sample  # PBT takes a function, but not Ray's object for tune.sample_from
        elif kind in ("choice", "grid_search"):
            # From a list, PBT takes a random or adjacent value; it might multiply a tune.choice's value by 0.8 or 1.2.
            mutations[name] = domains.values_of(domain)
    population = Population(
        perturbation_interval=experiment.perturbation_interval or experiment.grace_period,
        hyperparam_mutations=mutations,
        log_config=False,  # the journal has the changes; a replay would write them to Ray's own file again
        time_attr=EPOCH,
    )
    population.set_search_properties(experiment.metric, experiment.mode)
    return population


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
