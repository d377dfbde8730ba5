"""The scheduler of population-based training: Ray's class decides, its decisions are journaled like those of a rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, cast

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.core.rules.rule import RuleDecision
from tuner.engine.controller.trials import population_of
from tuner.record.lines import is_trial_id
from tuner.record.report_keys import EPOCH
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.scheduler import SearchScheduler
from tuner.tuning.searchers.sampling import seeded


class PopulationScheduler(SearchScheduler):
    """Gets decisions from Ray's population-based training; seeds its draws from (seed, trial, epoch).

    `slots` says how many trials may run at once; of the paused ones, Ray would resume as many as the CPUs allow.
    """

    def __init__(
        self, experiment: Experiment, *args: Any, space: Space, slots: Callable[[], int], **options: Any
    ) -> None:
        super().__init__(experiment, *args, **options)
        self._slots = slots
        self._mutable, self._population = space.mutable, population_of(experiment, space)

    def _add(self, tune_controller: Any, trial: Trial) -> None:
        with seeded(self._experiment.seed, 4, int(trial.trial_id)):
            self._population.on_trial_add(tune_controller, trial)

    def _ask(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        trial_id, epoch, before = trial.trial_id, result[EPOCH], dict(trial.config)
        with seeded(self._experiment.seed, 5, int(trial_id), epoch):
            others_wait = not tune_controller.search_alg.is_exhausted()
            controller = OthersWait(tune_controller) if others_wait else tune_controller
            action = str(self._population.on_trial_result(controller, trial, result))
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
        if pauses:  # or copies: that of equal parameters is not journaled, but follows from the reports
            self._journal.sync()
        return action

    def _choose(self, tune_controller: Any) -> Trial | None:
        trial = cast("Trial | None", self._population.choose_trial_to_run(tune_controller))
        is_paused = trial is not None and trial.status == Trial.PAUSED
        return None if is_paused and self.num_busy() >= self._slots() else trial


class OthersWait:
    """A controller with one more pending trial, for which Ray pauses a trial that it compares.

    The trials that wait for a slot are not in Ray's own controller yet. Without this, each one would train to its end
    before the next one starts, and there would be no population.
    """

    def __init__(self, controller: Any) -> None:
        self._controller = controller

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def get_trials(self) -> list[Any]:
        return [*self._controller.get_trials(), SimpleNamespace(status=Trial.PENDING)]


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
