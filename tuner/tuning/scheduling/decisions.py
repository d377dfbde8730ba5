"""Journals each report, asks Ray's scheduler unless the report ends its trial, and journals decisions with reasons.

Ray's schedulers do not say why they stop a trial. ASHA never stops a trial whose metric is NaN, because `nan < cutoff`
is false. And in Ray, one report without the metric ends the whole experiment.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.engine.controller.halt import Halt
from tuner.engine.controller.stage import BareStage
from tuner.engine.controller.trials import SearchTrial
from tuner.errors import RequestError, nearest
from tuner.record.events import RETURNED, plain
from tuner.record.journal import Ledger
from tuner.record.records import finite
from tuner.record.report_keys import FINAL, RAY_KEYS, USAGE
from tuner.spec.experiment import Experiment
from tuner.spec.length import of_length
from tuner.tuning.scheduling.explain import Comparison, Explainer
from tuner.tuning.scheduling.ruling import RuleScheduler
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
class Verdict:
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
    """Wraps one of Ray's schedulers, which decides; this class checks reports and journals the decisions.

    Args:
        concurrent: returns how many trials may run at once; paused trials wait until fewer run. None = Ray's limit.
        metric_option: the name of the option or argument that chose the metric, for error texts.
    """

    def __init__(
        self,
        inner: TrialScheduler,
        experiment: Experiment,
        journal: Ledger,
        halt: Halt,
        mutable: tuple[str, ...],
        resumed: bool = False,
        concurrent: Callable[[], int] | None = None,
        metric_option: str = "",
    ) -> None:
        super().__init__()
        self._inner, self._experiment, self._journal, self._halt = inner, experiment, journal, halt
        self._mutable, self._metric_option = mutable, metric_option or f"--metric {experiment.metric}"
        self._explain = Explainer(inner, experiment.metric, experiment.mode)
        self._judged_any = resumed
        self._judged: dict[str, int] = {}  # trial -> the last epoch with a decision; empty with pbt
        self._concurrent = concurrent
        self._known: set[str] = set()  # unfinished trials that the inner scheduler has, also from the replay
        self._queue: dict[str, Trial] = {}  # unfinished trials that Ray has, in the order in which it added them
        self._first: list[Trial] = []
        self._stops = experiment.scheduler == "asha"  # asha-promotion, too, may come to use the rule of asha
        self._limits = experiment.limits
        self.max_epochs = experiment.max_epochs
        self.verdicts: dict[str, Verdict] = {}

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

    def on_trial_error(self, tune_controller: Any, trial: SearchTrial) -> None:
        """Removes a failed trial from the inner scheduler; one that is retried stays, with its rung and bracket."""
        if not trial.will_retry:
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
            return self._decide(trial_id, epoch, value, STOP, refused, Comparison(), "failed")
        self._judged_any = True
        assert isinstance(value, (int, float))  # `_refuse` has checked this
        if finite(value) is None:
            # The scheduler gets no NaN or infinite value: recorded as the worst value, it would distort the percentile.
            reason = f"{self.metric} is {value} at epoch {epoch}: the training diverged"
            return self._decide(trial_id, epoch, value, STOP, reason, Comparison(), "pruned")
        reason = self._completes(metrics, epoch) or (RETURNED if final else "")
        if reason:
            return self._decide(trial_id, epoch, value, STOP, reason, Comparison(), "completed")
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
        # The comparison is read before the scheduler decides: afterwards the rung also contains this trial's value.
        compared = self._explain.before(trial, result)
        with self._seeded(int(trial_id), epoch):
            action: str = self._inner.on_trial_result(self._seen(tune_controller), trial, result)
        self._note_change()
        compared = self._explain.after(trial, compared)
        changed = {k: (before[k], v) for k, v in trial.config.items() if k in self._mutable and v != before[k]}
        if changed:
            compared = self._explain.copying(trial, compared)
        # In a report without a checkpoint, Ray sets `checkpoint_dir_name` to None.
        unsaved = not trial.checkpoint and result.get("checkpoint_dir_name") is None
        if action == PAUSE and unsaved and not isinstance(self._inner, RuleScheduler):
            reason = f"--scheduler {self._experiment.scheduler} pauses trials, and this one saves no checkpoint"
            what_to_do = "report checkpoints, or use asha, median or fifo"
            self._halt.refuse(RequestError(f"{reason} to continue from; {what_to_do}"))
            return self._decide(trial_id, epoch, value, STOP, reason, compared, "failed")
        if compared.rung is not None or changed or action not in (CONTINUE, NOOP):
            reason = self._explain.reason(ACTIONS[action], value, compared, changed)
            self._decide(trial_id, epoch, value, action, reason, compared, "pruned")
        self._promote()
        return action

    def _note_change(self) -> None:
        """Journals that asha-promotion from now on uses the rule of asha, once."""
        if isinstance(self._inner, RuleScheduler) and self._inner.stops != self._stops:
            self._stops = True
            self._journal.write("scheduler_changed", scheduler="asha", reason=STOPS)

    def _promote(self) -> None:
        """Journals that paused trials continue, for which the scheduler returns no decision."""
        for trial, compared in self._explain.promoted():
            last = trial.last_result
            value = plain(last[self.metric])
            reason = self._explain.reason("continue", value, compared, {})
            self._journal_decision(trial.trial_id, last["training_iteration"], value, CONTINUE, reason, compared)

    def _seeded(self, trial: int, epoch: int) -> AbstractContextManager[None]:
        """Seeds the random draws of one decision; only population-based training draws when it gets a report."""
        if self._experiment.scheduler != "pbt":
            return nullcontext()
        return seeded(self._experiment.seed, 5, trial, epoch)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._forget(trial)
        value = plain(result.get(self.metric))
        if finite(value) is not None:
            self._inner.on_trial_complete(tune_controller, trial, result)
        else:
            self._inner.on_trial_remove(tune_controller, trial)
        self._promote()
        verdict, epochs = self.verdicts.get(trial.trial_id), result.get(EPOCH, self.max_epochs)
        # A search that is being stopped ends its trials in the same way.
        if (verdict is None or verdict.reason == RETURNED) and epochs < self.max_epochs and not self._halt.reason:
            self.learn(trial.trial_id, epochs)

    def learn(self, trial_id: str, epochs: int) -> None:
        """Moves the rungs to the length of a trial that has ended by itself, and journals it if they move."""
        rungs = self._inner.learn(epochs) if isinstance(self._inner, RuleScheduler) else None
        if rungs is not None:
            self._journal.write("length_learned", trial_id, epochs=epochs, rungs=rungs, reason=of_length(epochs, rungs))
            self._promote()

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._forget(trial)
        self._removed(trial)
        self._inner.on_trial_remove(tune_controller, trial)
        self._promote()

    def _removed(self, trial: Trial) -> None:
        """Journals that the scheduler stops a paused trial: it returns no decision, but makes Ray stop the trial."""
        last = trial.last_result or {}
        if trial.trial_id not in self.verdicts and not self._halt.reason and "training_iteration" in last:
            value = plain(last.get(self.metric))
            compared = self._explain.removed(trial)
            reason = self._explain.reason("stop", value, compared, {})
            self._decide(trial.trial_id, last["training_iteration"], value, STOP, reason, compared, "pruned")

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
        return chosen if busy < self._concurrent() else None

    def places(self, concurrent: int) -> int:
        """Of the trials that may run at once, how many may be new: promoted trials take precedence."""
        return concurrent - (self._inner.num_next() if isinstance(self._inner, RuleScheduler) else 0)

    def close(self, stage: BareStage, trial: Trial) -> None:
        """Repeats the recorded decision on a paused trial that asha-promotion made when nothing was left to run."""
        if isinstance(self._inner, RuleScheduler) and self._inner.waits(trial):
            self._inner.close(stage)
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
            self._halt.refuse(RequestError(f"{option}: trial {trial_id} {what}{hint}"))
        return f"the trial {what}"

    def _decide(
        self, trial_id: str, epoch: int, value: Any, action: str, reason: str, compared: Comparison, status: str
    ) -> str:
        self._journal_decision(trial_id, epoch, value, action, reason, compared)
        if action == STOP:
            self.verdicts[trial_id] = Verdict(status, reason)
        return action

    def _journal_decision(
        self, trial_id: str, epoch: int, value: Any, action: str, reason: str, compared: Comparison
    ) -> None:
        number = value if isinstance(value, float) or finite(value) is not None else None
        of_trial = {} if compared.value is None else {"compared": compared.value}
        self._journal.write(
            "decision",
            trial_id,
            epoch=epoch,
            rung=compared.rung,
            bracket=compared.bracket,
            band=compared.band,
            value=number,
            cutoff=compared.cutoff,
            recorded=compared.recorded,
            action=ACTIONS[action],
            reason=reason,
            **of_trial,
            **({"copied": compared.copied} if compared.copied else {}),
        )


def _is_metric(name: str) -> bool:
    return name not in NOT_METRICS and not name.startswith("config/")
