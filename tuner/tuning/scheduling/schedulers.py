"""Builds the Ray scheduler that `--scheduler` names."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import TrialScheduler

from tuner.engine.controller.population import Population
from tuner.errors import RequestError
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.scheduling.rule_scheduler import RuleScheduler


def build_scheduler(experiment: Experiment, space: Space) -> TrialScheduler:
    """Builds a new scheduler for an experiment.

    Raises:
        RequestError: the space does not fit the scheduler (`check_scheduler`).
    """
    check_scheduler(experiment, space)
    scheduler = _pbt(experiment, space) if experiment.scheduler == "pbt" else RuleScheduler(experiment)
    scheduler.set_search_properties(experiment.metric, experiment.mode)
    return scheduler


def check_scheduler(experiment: Experiment, space: Space) -> None:
    """Raises a RequestError if the scheduler does not work with the space."""
    if experiment.scheduler == "pbt" and not space.mutable:
        raise RequestError(
            f"--scheduler pbt changes parameters while a trial trains, but space {experiment.space!r} has no mutable "
            f'parameters; add for example mutable=("lr",) to it, or use another scheduler'
        )


def _pbt(experiment: Experiment, space: Space) -> TrialScheduler:
    return Population(
        perturbation_interval=experiment.perturbation_interval or experiment.grace_period,
        hyperparam_mutations={name: _mutation(domain) for name, domain in space.mutations.items()},
        log_config=False,  # the journal has the changes; a replay would write Ray's file of changes again
        time_attr="training_iteration",
    )


def _mutation(domain: Any) -> Any:
    # PBT gets the values of a choice as a list, from which it takes a random or an adjacent value. A value of a
    # tune.choice itself it may multiply by 0.8 or 1.2.
    kind = domains.kind(domain)
    if kind == "sample_from":
        return domain.sample  # PBT takes a function, but not Ray's object for tune.sample_from
    return domains.values_of(domain) if kind in ("choice", "grid_search") else domain
