"""The rule that each scheduler's name stands for."""

from __future__ import annotations

from tuner.rules.hyperband import HyperBand
from tuner.rules.median import Median
from tuner.rules.own_length import OwnLength
from tuner.rules.rule import Rule
from tuner.spec.experiment import Experiment


def rule_of(experiment: Experiment, brackets: int) -> Rule:
    """Returns a new rule for an experiment's scheduler.

    Args:
        brackets: the number of brackets of asha and asha-promotion.

    Raises:
        ValueError: the scheduler is pbt, which changes settings instead of stopping trials.
    """
    match experiment.scheduler:
        case "asha" | "asha-promotion":
            return OwnLength(experiment, brackets)
        case "median":
            return Median(experiment)
        case "hyperband" | "bohb":
            return HyperBand(experiment, for_bohb=experiment.scheduler == "bohb")
        case "fifo":
            return Rule(experiment)
    raise ValueError(f"scheduler {experiment.scheduler} has no stopping rule; all others have one")
