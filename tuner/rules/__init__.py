"""The stopping rules, one per file: each gets the reported values of trials and returns decisions with reasons.

The rules are pure: no Ray, no files, no clock. A search, its replay, what-if and the simulation use the same classes.
"""

from tuner.rules.hyperband import HyperBand
from tuner.rules.median import Median
from tuner.rules.own_length import OwnLength
from tuner.rules.rule import Rule
from tuner.spec.experiment import Experiment


def rule_of(experiment: Experiment, brackets: int) -> Rule:
    """Returns a new rule for an experiment's scheduler (for pbt, that of fifo); only asha's rules use `brackets`."""
    match experiment.scheduler:
        case "asha" | "asha-promotion":
            return OwnLength(experiment, brackets)
        case "median":
            return Median(experiment)
        case "hyperband" | "bohb":
            return HyperBand(experiment, for_bohb=experiment.scheduler == "bohb")
        case _:
            return Rule(experiment)
