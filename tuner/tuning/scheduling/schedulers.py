"""Builds the Ray scheduler that `--scheduler` names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tuner.engine.controller.population import Population
from tuner.engine.controller.rungs import HyperBand, HyperBandForBOHB
from tuner.errors import RequestError
from tuner.spec import domains
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space
from tuner.tuning.scheduling.incremental import IncrementalMedian
from tuner.tuning.scheduling.ruling import RuleScheduler

BY_EPOCH = {"time_attr": "training_iteration"}


def build_scheduler(experiment: Experiment, space: Space) -> TrialScheduler:
    """Builds a new scheduler for an experiment.

    Raises:
        RequestError: the space does not fit the scheduler (`check_scheduler`).
    """
    check_scheduler(experiment, space)
    scheduler = BUILDERS[experiment.scheduler](experiment, space)
    scheduler.set_search_properties(experiment.metric, experiment.mode)
    return scheduler


def check_scheduler(experiment: Experiment, space: Space) -> None:
    """Raises a RequestError if the scheduler does not work with the space."""
    if experiment.scheduler == "pbt" and not space.mutable:
        raise RequestError(
            f"--scheduler pbt changes parameters while a trial trains, but space {experiment.space!r} has no mutable "
            f'parameters; add for example mutable=("lr",) to it, or use another scheduler'
        )


def _hyperband(experiment: Experiment, space: Space) -> TrialScheduler:
    return HyperBand(max_t=experiment.max_epochs, reduction_factor=experiment.reduction_factor, **BY_EPOCH)


def _bohb(experiment: Experiment, space: Space) -> TrialScheduler:
    return HyperBandForBOHB(max_t=experiment.max_epochs, reduction_factor=experiment.reduction_factor, **BY_EPOCH)


def _pbt(experiment: Experiment, space: Space) -> TrialScheduler:
    return Population(
        perturbation_interval=experiment.perturbation_interval or experiment.grace_period,
        hyperparam_mutations={name: _mutation(domain) for name, domain in space.mutations.items()},
        log_config=False,  # the journal has the changes; a replay would write Ray's file of changes again
        **BY_EPOCH,
    )


def _mutation(domain: Any) -> Any:
    # PBT gets the values of a choice as a list, from which it takes a random or an adjacent value. A value of a
    # tune.choice itself it may multiply by 0.8 or 1.2.
    kind = domains.kind(domain)
    if kind == "sample_from":
        return domain.sample  # PBT takes a function, but not Ray's object for tune.sample_from
    return domains.values_of(domain) if kind in ("choice", "grid_search") else domain


BUILDERS: dict[str, Callable[[Experiment, Space], Any]] = {
    "asha": lambda experiment, space: RuleScheduler(experiment),
    "asha-promotion": lambda experiment, space: RuleScheduler(experiment),
    "bohb": _bohb,
    "hyperband": _hyperband,
    "median": lambda experiment, space: IncrementalMedian(experiment),
    "pbt": _pbt,
    "fifo": lambda experiment, space: FIFOScheduler(),
}
