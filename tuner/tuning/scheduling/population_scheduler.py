"""Runs Ray's population-based training, `--scheduler pbt`, as a scheduler of this search."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tuner.engine.controller.scheduling import Population
from tuner.errors import RequestError
from tuner.record.events import is_trial_id
from tuner.rules.rule import RuleDecision
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.scheduling.scheduler import EPOCH, SearchScheduler
from tuner.tuning.searchers.sampling import seeded


def check_scheduler(experiment: Experiment, space: Space) -> None:
    """Raises a RequestError if the scheduler does not work with the space."""
    if experiment.scheduler == "pbt" and not space.mutable:
        raise RequestError(
            f"--scheduler pbt changes parameters while a trial trains, but space {experiment.space!r} has no mutable "
            f'parameters; add for example mutable=("lr",) to it, or use another scheduler'
        )


class PopulationScheduler(SearchScheduler):
    """Asks Ray's population-based training; seeds its random draws from (seed, trial, epoch)."""

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
            copied = {"copied": owner} if changed and (owner := _owner(trial)) else {}
            self._journal_decision(trial_id, decision, **copied)
        return action

    def _choose(self, tune_controller: Any) -> Trial | None:
        chosen: Trial | None = self._population.choose_trial_to_run(tune_controller)
        return chosen


def population_of(experiment: Experiment, space: Space) -> Population:
    """Returns Ray's scheduler with the parameters that the space declares as mutable."""
    population = Population(
        perturbation_interval=experiment.perturbation_interval or experiment.grace_period,
        hyperparam_mutations={name: _mutation(domain) for name, domain in space.mutations.items()},
        log_config=False,  # the journal has the changes; a replay would write Ray's file of changes again
        time_attr=EPOCH,
    )
    population.set_search_properties(experiment.metric, experiment.mode)
    return population


def _mutation(domain: Any) -> Any:
    # PBT gets the values of a choice as a list, from which it takes a random or an adjacent value. A value of a
    # tune.choice itself it may multiply by 0.8 or 1.2.
    kind = domains.kind(domain)
    if kind == "sample_from":
        return domain.sample  # PBT takes a function, but not Ray's object for tune.sample_from
    return domains.values_of(domain) if kind in ("choice", "grid_search") else domain


def _owner(trial: Trial) -> str:
    """Returns the other trial whose checkpoint a trial continues from, such as `ray/00003/checkpoint_000001`."""
    owner = PurePath(trial.checkpoint.path).parent.name if trial.checkpoint else ""
    return owner if is_trial_id(owner) and owner != trial.trial_id else ""


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
