"""Journals each report, asks the scheduler unless the report ends its trial, and journals decisions with reasons.

In plain Ray Tune, ASHA never stops a trial whose metric is NaN, because `nan < cutoff` is false, and one report without
the metric ends the whole experiment.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.engine.controller.retries import Failure
from tuner.engine.controller.stage import BareStage
from tuner.engine.controller.stopper import SearchStopper
from tuner.errors import RequestError, nearest
from tuner.record.events import RETURNED, is_trial_id, plain
from tuner.record.journal import JournalWriter
from tuner.record.records import finite
from tuner.record.report_keys import FINAL, RAY_KEYS, USAGE
from tuner.rules.own_length import of_length
from tuner.rules.rule import RuleDecision
from tuner.spec.experiment import Experiment
from tuner.tuning.scheduling.rule_scheduler import RuleScheduler
from tuner.tuning.searchers.sampling import seeded

CONTINUE: str = TrialScheduler.CONTINUE
STOP: str = TrialScheduler.STOP
PAUSE: str = TrialScheduler.PAUSE
NOOP: str = TrialScheduler.NOOP
ACTIONS = {CONTINUE: "continue", STOP: "stop", PAUSE: "pause", NOOP: "pause"}
EPOCH = "training_iteration"
STOPS = (  # why a search with asha-promotion stops trials instead of pausing them
    "the trials save no checkpoint to continue from, so asha-promotion uses the rule of --scheduler asha: it stops "
    "trials instead of pausing them"
)
NOT_METRICS = RAY_KEYS | {"improved", FINAL}  # `tuner.tuning.trial` adds these two to reports


@dataclass
class TrialEnd:
    """How a trial ended: the status and reason that the journal's `trial_ended` event gets."""

    status: str
    reason: str


class Unfinished:
    """A view of Ray's controller that shows the inner scheduler only the trials that have not ended.

    At every event, Ray's schedulers go through all trials of the controller to find one to run. With 10,000 trials
    that takes 0.5 ms.
    """

    def __init__(self, controller: Any, trials: dict[str, Trial]) -> None:
        self._controller, self._trials = controller, trials

    def get_trials(self) -> list[Trial]:
        """Returns the trials that have not ended, in the order in which Ray last added them."""
        return [trial for trial in self._trials.values() if not trial.is_finished()]

    get_live_trials = get_trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)


class JournalingScheduler(TrialScheduler):
    """Wraps the scheduler that decides: this class checks reports and journals the decisions.

    Args:
        concurrent: returns how many trials may run at once; paused trials wait until fewer run. None = Ray's limit.
        metric_option: the name of the option or argument that chose the metric, for error texts.
    """

    def __init__(
        self,
        inner: TrialScheduler,
        experiment: Experiment,
        journal: JournalWriter,
        stopper: SearchStopper,
        mutable: tuple[str, ...],
        resumed: bool = False,
        concurrent: Callable[[], int] | None = None,
        metric_option: str = "",
    ) -> None:
        super().__init__()
        self._inner, self._experiment, self._journal, self._stopper = inner, experiment, journal, stopper
        self._mutable, self._metric_option = mutable, metric_option or f"--metric {experiment.metric}"
        self._rule = inner if isinstance(inner, RuleScheduler) else None  # None with pbt
        self._judged_any = resumed
        self._judged: dict[str, int] = {}  # trial -> the last epoch with a decision; empty with pbt
        self._concurrent = concurrent
        self._known: set[str] = set()  # unfinished trials that the inner scheduler has, also from the replay
        self._queue: dict[str, Trial] = {}  # unfinished trials that Ray has, in the order in which it added them
        self._first: list[Trial] = []
        self._stops_instead = False  # whether the journal has that asha-promotion uses the rule of asha
        self._limits = experiment.limits
        self.max_epochs = experiment.max_epochs
        self.ends: dict[str, TrialEnd] = {}

    @property
    def metric(self) -> str:
        return self._experiment.metric

    @property
    def supports_buffered_results(self) -> bool:
        return False

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True  # `build_scheduler` has given the inner scheduler the metric and the mode

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Gives a trial to the inner scheduler, unless it has it from the replay or from before a retry."""
        if not isinstance(tune_controller, BareStage):
            self._queue.pop(trial.trial_id, None)
            self._queue[trial.trial_id] = trial  # at the queue's end, where Ray puts a retried trial
        if trial.trial_id not in self._known and not trial.is_finished():
            self._known.add(trial.trial_id)
            with seeded(self._experiment.seed, 4, int(trial.trial_id)):
                self._inner.on_trial_add(tune_controller, trial)

    def first(self, trials: list[Trial]) -> None:
        """Makes Ray run these trials before all others; they ran when the resumed search stopped."""
        self._first = trials

    def _forget(self, trial: Trial) -> None:
        self._known.discard(trial.trial_id)
        self._queue.pop(trial.trial_id, None)

    def _seen(self, controller: Any) -> Any:
        return controller if isinstance(controller, BareStage) else Unfinished(controller, self._queue)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Does nothing: `on_failure` gets the failure, and whether the trial is retried."""

    def on_failure(self, tune_controller: Any, trial: Trial, failure: Failure) -> None:
        """Journals a failure, and removes its trial; one that is retried stays, with its rung and bracket.

        A retried trial continues after `from_epoch`. The journal does not get the reports that it repeats.
        """
        fields = {"error": failure.error, "kind": failure.kind, "will_retry": failure.will_retry}
        if failure.will_retry:
            self._journal.write("trial_failed", trial.trial_id, **fields, from_epoch=failure.from_epoch)
            return
        self._journal.write("trial_failed", trial.trial_id, **fields)
        self.ends[trial.trial_id] = TrialEnd("failed", failure.error)
        self._forget(trial)
        self._inner.on_trial_error(tune_controller, trial)
        self._promote()

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        trial_id, epoch = trial.trial_id, result["training_iteration"]
        metrics = {name: plain(value) for name, value in result.items() if _is_metric(name)}
        saved = result.get("checkpoint_dir_name")
        where = {"checkpoint": f"ray/{trial_id}/{saved}"} if saved else {}
        final = {"final": True} if result.get(FINAL) is True else {}
        self._journal.write("report", trial_id, epoch=epoch, metrics=metrics, **where, **final)
        if epoch <= self._judged.get(trial_id, 0):
            return CONTINUE  # the trial repeats this epoch after an earlier checkpoint; its decision was already made
        if self._experiment.scheduler != "pbt":  # pbt sets trials back to earlier epochs and decides there again
            self._judged[trial_id] = epoch
        value = metrics.get(self.metric)
        refused = self._refuse(trial_id, epoch, value, metrics)
        if refused:
            return self._decide(trial_id, epoch, value, STOP, refused, RuleDecision(), "failed")
        self._judged_any = True
        assert isinstance(value, (int, float))  # `_refuse` has checked this
        if finite(value) is None:
            # The scheduler gets no NaN or infinite value: recorded as the worst value, it would distort the percentile.
            reason = f"{self.metric} is {value} at epoch {epoch}: the training diverged"
            return self._decide(trial_id, epoch, value, STOP, reason, RuleDecision(), "pruned")
        reason = self._completes(metrics, epoch) or (RETURNED if final else "")
        if reason:
            return self._decide(trial_id, epoch, value, STOP, reason, RuleDecision(), "completed")
        result[self.metric] = value
        return self._ask(tune_controller, trial, result, value)

    def _completes(self, metrics: dict[str, Any], epoch: int) -> str:
        """Says why the trial ends at this report without asking the scheduler; empty if the scheduler decides."""
        for name, limit in self._limits.items():
            value = metrics.get(name, epoch if name == EPOCH else None)
            least = name != self.metric or self._experiment.mode == "max"
            if isinstance(value, (int, float)) and (value >= limit if least else value <= limit):
                return f"{name} reached {value:g} (--stop {name}={limit:g})"
        return f"trained its {self.max_epochs} epochs" if epoch >= self.max_epochs else ""

    def _ask(self, tune_controller: Any, trial: Trial, result: dict[str, Any], value: float) -> str:
        """Asks the inner scheduler for a decision; journals a comparison, a stop, a pause and changed parameters."""
        trial_id, epoch, before = trial.trial_id, result["training_iteration"], dict(trial.config)
        with self._seeded(int(trial_id), epoch):
            action: str = self._inner.on_trial_result(self._seen(tune_controller), trial, result)
        self._note_change()
        # In a report without a checkpoint, Ray sets `checkpoint_dir_name` to None.
        unsaved = not trial.checkpoint and result.get("checkpoint_dir_name") is None
        changed = {k: (before[k], v) for k, v in trial.config.items() if k in self._mutable and v != before[k]}
        decision = self._rule.decision(trial) if self._rule else _of_population(changed)
        if action == PAUSE and unsaved and self._experiment.scheduler != "asha-promotion":
            reason = f"--scheduler {self._experiment.scheduler} pauses trials, and this one saves no checkpoint"
            what_to_do = "report checkpoints, or use asha, median or fifo"
            self._stopper.refuse(RequestError(f"{reason} to continue from; {what_to_do}"))
            return self._decide(trial_id, epoch, value, STOP, reason, decision, "failed")
        if decision.rung is not None or changed or action not in (CONTINUE, NOOP):
            copied = _copied(trial) if changed else ""
            self._decide(trial_id, epoch, value, action, decision.reason, decision, "pruned", copied)
        self._promote()
        return action

    def _note_change(self) -> None:
        """Journals that asha-promotion from now on uses the rule of asha, once."""
        if self._rule and self._rule.stops_instead and not self._stops_instead:
            self._stops_instead = True
            self._journal.write("scheduler_changed", scheduler="asha", reason=STOPS)

    def _promote(self) -> None:
        """Journals that paused trials continue, for which the scheduler returns no decision."""
        if self._rule is None:
            return
        for trial in self._rule.promoted():
            decision, epoch = self._rule.decision(trial), trial.last_result["training_iteration"]
            value = plain(trial.last_result[self.metric])
            self._journal_decision(trial.trial_id, epoch, value, CONTINUE, decision.reason, decision)

    def _seeded(self, trial: int, epoch: int) -> AbstractContextManager[None]:
        """Seeds the random draws of one decision; only population-based training draws when it gets a report."""
        if self._experiment.scheduler != "pbt":
            return nullcontext()
        return seeded(self._experiment.seed, 5, trial, epoch)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._forget(trial)
        self._removed(trial)  # a trial whose pause failed may run when the rule stops it
        value = plain(result.get(self.metric))
        if finite(value) is not None:
            self._inner.on_trial_complete(tune_controller, trial, result)
        else:
            self._inner.on_trial_remove(tune_controller, trial)
        self._promote()
        end, epochs = self.ends.get(trial.trial_id), result.get(EPOCH, self.max_epochs)
        # A search that is being stopped ends its trials in the same way.
        if (end is None or end.reason == RETURNED) and epochs < self.max_epochs and not self._stopper.reason:
            self.learn(tune_controller, trial.trial_id, epochs)

    def learn(self, tune_controller: Any, trial_id: str, epochs: int) -> None:
        """Moves the rungs to the length of a trial that has ended by itself, and journals it if they move."""
        rungs = self._rule.learn(tune_controller, epochs) if self._rule else None
        if rungs is not None:
            self._journal.write("length_learned", trial_id, epochs=epochs, rungs=rungs, reason=of_length(epochs, rungs))
            self._promote()

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._forget(trial)
        self._removed(trial)
        self._inner.on_trial_remove(tune_controller, trial)
        self._promote()

    def _removed(self, trial: Trial) -> None:
        """Journals that the rule stops a waiting trial: it returns no decision, but makes Ray stop the trial."""
        decision = self._rule.decision(trial) if self._rule else RuleDecision()
        if decision.action == "stop" and trial.trial_id not in self.ends and not self._stopper.reason:
            epoch, value = trial.last_result["training_iteration"], plain(trial.last_result.get(self.metric))
            self._decide(trial.trial_id, epoch, value, STOP, decision.reason, decision, "pruned")

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        while self._first and self._first[0].status != Trial.PENDING:
            del self._first[0]
        if self._first and self._first[0].trial_id in self._queue:
            return self._first[0]
        chosen = self._inner.choose_trial_to_run(self._seen(tune_controller))
        self._promote()
        if chosen is None or chosen.trial_id not in self._queue:
            return None  # Ray gets the recorded trials of a resumed search one by one, and cannot run others
        if chosen.status != Trial.PAUSED or self._concurrent is None:
            return chosen
        # Without this limit, Ray would resume as many paused trials as there are CPUs for.
        busy = sum(trial.status in (Trial.PENDING, Trial.RUNNING) for trial in self._queue.values())
        if busy < self._concurrent():
            return chosen
        return next((trial for trial in self._queue.values() if trial.status == Trial.PENDING), None)

    def places(self, concurrent: int) -> int:
        """Of the trials that may run at once, how many may be new: promoted trials take precedence."""
        return concurrent - (self._rule.num_next() if self._rule else 0)

    def close(self, stage: BareStage, trial: Trial) -> None:
        """Repeats the recorded decision on a paused trial that the rule made when nothing was left to run."""
        if self._rule and self._rule.waits(trial):
            self._rule.close(stage)
            self._promote()

    def debug_string(self) -> str:
        return str(self._inner.debug_string())

    def _refuse(self, trial_id: str, epoch: int, value: Any, metrics: dict[str, Any]) -> str:
        """Says why the report cannot be compared, so that its trial fails; empty if it can.

        The searched metric must be a number. Before the first usable report of a new search, a report must also have
        the metrics of --stop, and an unusable one stops the whole search.
        """
        missing = [name for name in self._limits if name not in metrics and name != EPOCH]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and (self._judged_any or not missing):
            return ""
        names = ", ".join(sorted(metrics.keys() - USAGE)) or "nothing"
        option, name = self._metric_option, self.metric
        if self.metric in metrics and missing:
            option, name = f"--stop {missing[0]}", missing[0]
        if name not in metrics:
            what = f"reports no {name!r} at epoch {epoch}; it reports {names}"
        else:
            what = f"reports {self.metric!r} as {value!r} at epoch {epoch}, which is not a number"
        if not self._judged_any:
            hint = nearest(name, metrics.keys() - USAGE) or "; give one of these, or report it"
            hint = hint if name not in metrics else "; report a number"
            self._stopper.refuse(RequestError(f"{option}: trial {trial_id} {what}{hint}"))
        return f"the trial {what}"

    def _decide(
        self,
        trial_id: str,
        epoch: int,
        value: Any,
        action: str,
        reason: str,
        decision: RuleDecision,
        status: str,
        copied: str = "",
    ) -> str:
        self._journal_decision(trial_id, epoch, value, action, reason, decision, copied)
        if action == STOP:
            self.ends[trial_id] = TrialEnd(status, reason)
        return action

    def _journal_decision(
        self, trial_id: str, epoch: int, value: Any, action: str, reason: str, decision: RuleDecision, copied: str = ""
    ) -> None:
        number = value if isinstance(value, float) or finite(value) is not None else None
        of_trial = {} if decision.compared is None else {"compared": decision.compared}
        self._journal.write(
            "decision",
            trial_id,
            epoch=epoch,
            rung=decision.rung,
            bracket=decision.bracket,
            band=decision.band,
            value=number,
            cutoff=decision.cutoff,
            recorded=decision.recorded,
            action=ACTIONS[action],
            reason=reason,
            **of_trial,
            **({"copied": copied} if copied else {}),
        )


def _of_population(changed: dict[str, tuple[Any, Any]]) -> RuleDecision:
    """Says what population-based training does, if it pauses or changes a trial.

    Args:
        changed: the parameters that it changed: name -> (old value, new value).
    """
    if not changed:
        return RuleDecision(reason="waits until the other trials of the population have trained")
    steps = ", ".join(f"{name} {_short(old)} -> {_short(new)}" for name, (old, new) in changed.items())
    return RuleDecision(reason=f"is in the worst quarter: copies the state of a better trial, with {steps}")


def _copied(trial: Trial) -> str:
    """Returns the trial whose checkpoint a trial continues from, after population-based training changed it."""
    checkpoint = trial.checkpoint
    owner = PurePath(checkpoint.path).parent.name if checkpoint else ""  # as in `ray/00003/checkpoint_000001`
    return owner if is_trial_id(owner) and owner != trial.trial_id else ""


def _short(value: Any) -> str:
    """Formats a float with six significant digits, and any other value with `str`."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _is_metric(name: str) -> bool:
    return name not in NOT_METRICS and not name.startswith("config/")
