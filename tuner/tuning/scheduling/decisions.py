"""What all schedulers share: they journal each report, refuse what cannot be compared, and journal their decisions.

In plain Ray Tune, ASHA never stops a trial whose metric is NaN, because `nan < cutoff` is false, and one report without
the metric ends the whole experiment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.engine.controller.failures import Failure
from tuner.engine.controller.scheduling import ReplayController
from tuner.engine.controller.stopper import SearchStopper
from tuner.errors import RequestError, nearest
from tuner.record.events import RETURNED, plain
from tuner.record.journal import JournalWriter
from tuner.record.records import finite
from tuner.record.report_keys import FINAL, RAY_KEYS, USAGE
from tuner.rules.rule import Action, RuleDecision
from tuner.spec.experiment import Experiment

EPOCH = "training_iteration"
RAY_ACTIONS: dict[Action, str] = {
    "continue": TrialScheduler.CONTINUE,
    "pause": TrialScheduler.PAUSE,
    "stop": TrialScheduler.STOP,
}
NOT_METRICS = RAY_KEYS | {"improved", FINAL}  # `tuner.tuning.trial` adds these two to reports


@dataclass
class TrialEnd:
    """How a trial ended: the status and reason that the journal's `trial_ended` event gets."""

    status: str
    reason: str


class SearchScheduler(TrialScheduler):
    """Checks reports, and journals them and the decisions; a subclass decides by a rule or by Ray's scheduler.

    A subclass overrides `_add`, `_ask`, `_remove` and `_choose`.

    Args:
        metric_option: the name of the option or argument that chose the metric, for error texts.
        concurrent: returns how many trials may run at once; paused trials wait until fewer run. None = Ray's limit.

    Attributes:
        ends: trial -> how it ends, from the decision or failure that ends it until its `trial_ended` event.
    """

    _supports_buffered_results = False

    def __init__(
        self,
        experiment: Experiment,
        journal: JournalWriter,
        stopper: SearchStopper,
        metric_option: str = "",
        resumed: bool = False,
        concurrent: Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        super().set_search_properties(experiment.metric, experiment.mode)
        self.max_epochs = experiment.max_epochs
        self.ends: dict[str, TrialEnd] = {}
        self._experiment, self._journal, self._stopper, self._concurrent = experiment, journal, stopper, concurrent
        self._metric_option = metric_option or f"--metric {experiment.metric}"
        self._limits = experiment.limits
        self._any_usable = resumed  # whether a report had the metric and --stop's metrics
        self._judged: dict[str, int] = {}  # trial -> the last epoch with a decision; empty with pbt
        self._known: set[str] = set()  # unfinished trials that `_add` got, also from the replay
        self._queue: dict[str, Trial] = {}  # unfinished trials that Ray has, in the order in which it added them
        self._first: list[Trial] = []

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return True  # the constructor took the metric and the mode

    def first(self, trials: list[Trial]) -> None:
        """Makes Ray run these trials before all others; they ran when the resumed search stopped."""
        self._first = trials

    def places(self, concurrent: int) -> int:
        """Of the trials that may run at once, how many may be new."""
        return concurrent

    def close(self, stage: ReplayController, trial: Trial) -> None:
        """Repeats the recorded decision on a paused trial that the rule made when nothing was left to run."""

    def learn(self, tune_controller: Any, trial_id: str, epochs: int) -> None:
        """Takes note that a trial has ended by itself after this many epochs, fewer than max_epochs."""

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Adds a trial, unless it is known from the replay or from before a retry."""
        if not isinstance(tune_controller, ReplayController):
            self._queue.pop(trial.trial_id, None)
            self._queue[trial.trial_id] = trial  # at the queue's end, where Ray puts a retried trial
        if trial.trial_id not in self._known and not trial.is_finished():
            self._known.add(trial.trial_id)
            self._add(tune_controller, trial)

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
        self.on_trial_remove(tune_controller, trial)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self.on_trial_complete(tune_controller, trial, {})

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._known.discard(trial.trial_id)
        self._queue.pop(trial.trial_id, None)
        epochs = result.get(EPOCH, 0)
        self._remove(tune_controller, trial, epochs, finite(plain(result.get(self.metric))))
        end = self.ends.pop(trial.trial_id, TrialEnd("completed", RETURNED))
        if end.reason == RETURNED and EPOCH not in (trial.last_result or {}):
            end = TrialEnd("failed", "ended without a report: its function must call tune.report at least once")
            self._journal.write("trial_failed", trial.trial_id, error=end.reason, kind="user", will_retry=False)
        # A search that is being stopped ends its trials in the same way.
        elif end.reason == RETURNED and 0 < epochs < self.max_epochs and not self._stopper.reason:
            self.learn(tune_controller, trial.trial_id, epochs)
        self._journal.write("trial_ended", trial.trial_id, status=end.status, reason=end.reason)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Journals a report and the decision on it; returns the decision as Ray's action."""
        trial_id, epoch = trial.trial_id, result[EPOCH]
        metrics = {name: plain(value) for name, value in result.items() if _is_metric(name)}
        saved = result.get("checkpoint_dir_name")  # None or missing: the report saved no checkpoint
        where = {"checkpoint": f"ray/{trial_id}/{saved}"} if saved else {}
        final = {"final": True} if result.get(FINAL) is True else {}
        self._journal.write("report", trial_id, epoch=epoch, metrics=metrics, **where, **final)
        if epoch <= self._judged.get(trial_id, 0):
            return RAY_ACTIONS["continue"]  # the trial repeats this epoch after a restart; its decision was made
        if self._experiment.scheduler != "pbt":  # pbt sets trials back to earlier epochs and decides there again
            self._judged[trial_id] = epoch
        value = metrics.get(self.metric)
        if refused := self._refuse(trial_id, epoch, value, metrics):
            return self._stop(trial_id, epoch, value, RuleDecision("stop", refused), "failed")
        self._any_usable = True
        assert isinstance(value, (int, float))  # `_refuse` has checked this
        if finite(value) is None:
            # The rule gets no NaN or infinite value: recorded as the worst value, it would distort the percentile.
            reason = f"{self.metric} is {value} at epoch {epoch}: the training diverged"
            return self._stop(trial_id, epoch, value, RuleDecision("stop", reason))
        if reason := self._completes(metrics, epoch) or (RETURNED if final else ""):
            return self._stop(trial_id, epoch, value, RuleDecision("stop", reason), "completed")
        result[self.metric] = value
        return self._ask(tune_controller, trial, result)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        while self._first and self._first[0].status != Trial.PENDING:
            del self._first[0]
        if self._first and self._first[0].trial_id in self._queue:
            return self._first[0]
        chosen = self._choose(tune_controller)
        if chosen is None or chosen.trial_id not in self._queue:
            return None  # Ray gets the recorded trials of a resumed search one by one, and cannot run others
        if chosen.status != Trial.PAUSED or self._concurrent is None:
            return chosen
        # Without this limit, Ray would resume as many paused trials as there are CPUs for.
        busy = sum(trial.status in (Trial.PENDING, Trial.RUNNING) for trial in self._queue.values())
        if busy < self._concurrent():
            return chosen
        return next((trial for trial in self._queue.values() if trial.status == Trial.PENDING), None)

    def _add(self, tune_controller: Any, trial: Trial) -> None:
        raise NotImplementedError

    def _ask(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Decides on a report with a finite value; returns the decision as Ray's action."""
        raise NotImplementedError

    def _remove(self, tune_controller: Any, trial: Trial, epoch: int, value: float | None) -> None:
        """Removes a trial that has ended; `value` is None if it failed, diverged, or was stopped while it waited."""

    def _choose(self, tune_controller: Any) -> Trial | None:
        raise NotImplementedError

    def _completes(self, metrics: dict[str, Any], epoch: int) -> str:
        """Says why the trial ends at this report without asking the rule; empty if the rule decides."""
        for name, limit in self._limits.items():
            value = metrics.get(name, epoch if name == EPOCH else None)
            least = name != self.metric or self._experiment.mode == "max"
            if isinstance(value, (int, float)) and (value >= limit if least else value <= limit):
                return f"{name} reached {value:g} (--stop {name}={limit:g})"
        return f"trained its {self.max_epochs} epochs" if epoch >= self.max_epochs else ""

    def _refuse(self, trial_id: str, epoch: int, value: Any, metrics: dict[str, Any]) -> str:
        """Says why the report cannot be compared, so that its trial fails; empty if it can.

        The searched metric must be a number. Before the first usable report of a new search, a report must also have
        the metrics of --stop, and an unusable one stops the whole search.
        """
        missing = [name for name in self._limits if name not in metrics and name != EPOCH]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and (self._any_usable or not missing):
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
        if not self._any_usable:
            self._stopper.refuse(RequestError(f"{option}: trial {trial_id} {what}{hint}"))
        return f"the trial {what}"

    def _refuse_pause(self, trial: Trial, result: dict[str, Any], decision: RuleDecision) -> str:
        """Stops a trial and the search, because a scheduler that pauses trials needs their checkpoints."""
        reason = (
            f"--scheduler {self._experiment.scheduler} pauses trials, and this one saves no checkpoint to continue from"
        )
        self._stopper.refuse(RequestError(f"{reason}; report checkpoints, or use asha, median or fifo"))
        stopped = decision._replace(action="stop", reason=reason)
        return self._stop(trial.trial_id, result[EPOCH], result[self.metric], stopped, "failed")

    def _stop(self, trial_id: str, epoch: int, value: Any, decision: RuleDecision, status: str = "pruned") -> str:
        self._journal_decision(trial_id, epoch, value, decision)
        self.ends[trial_id] = TrialEnd(status, decision.reason)
        return RAY_ACTIONS["stop"]

    def _journal_decision(self, trial_id: str, epoch: int, value: Any, decision: RuleDecision, **copied: str) -> None:
        fields = decision._asdict()
        if decision.compared is None:
            del fields["compared"]
        number = value if isinstance(value, float) or finite(value) is not None else None
        self._journal.write("decision", trial_id, epoch=epoch, value=number, **fields, **copied)


def _is_metric(name: str) -> bool:
    return name not in NOT_METRICS and not name.startswith("config/")
