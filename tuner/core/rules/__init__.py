"""The stopping rules, one per file: each gets the reported values of trials and returns decisions with reasons.

The rules are pure: no Ray, no files, no clock. A search, its replay, what-if and the simulation use the same classes.
"""

from tuner.core.rules.rule import Rule
from tuner.spec.experiment import Experiment
from tuner.spec.methods import SCHEDULERS, class_of


def rule_of(experiment: Experiment, brackets: int) -> Rule:
    """Returns a new rule for an experiment's scheduler (for pbt, that of fifo); only asha's rules use `brackets`."""
    rule: Rule = class_of(SCHEDULERS[experiment.scheduler], __package__)(experiment, brackets)
    return rule
