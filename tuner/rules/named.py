"""The rule of each `--scheduler`."""

from __future__ import annotations

from tuner.rules.hyperband import HyperBand
from tuner.rules.median import Median
from tuner.rules.own_length import OwnLength
from tuner.rules.rule import Rule
from tuner.spec.experiment import Experiment


def rule_of(experiment: Experiment, brackets: int) -> Rule:
    """Returns a new rule for an experiment's scheduler; for pbt, which changes settings instead, the rule of fifo.

    Args:
        brackets: the number of brackets of asha and asha-promotion.
    """
    match experiment.scheduler:
        case "asha" | "asha-promotion":
            return OwnLength(experiment, brackets)
        case "median":
            return Median(experiment)
        case "hyperband" | "bohb":
            return HyperBand(experiment, for_bohb=experiment.scheduler == "bohb")
        case _:
            return Rule(experiment)
