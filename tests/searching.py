"""Searchers without a search: their trials run one after the other."""

import math

from tuner.spec import domains
from tuner.spec.experiment import PAIRS, Experiment

SAMPLES = 14


def experiment_of(searcher, seed=0, num_samples=SAMPLES, **others):
    scheduler = PAIRS[searcher][0]
    return Experiment(
        searcher=searcher, scheduler=scheduler, seed=seed, num_samples=num_samples, max_epochs=8, **others
    )


def loss_of(flat):
    return sum(abs(math.log(abs(v) + 1e-9)) for v in flat.values() if isinstance(v, (int, float)))


def drive(searcher, num=None, score=loss_of):
    """The settings of `num` trials, or of all."""
    settings = []
    for number in range(searcher.num_settings if num is None else num):
        setting = searcher.suggest(trial := f"{number:05d}")
        if setting is None:
            break
        settings.append(setting)
        value = score(dict(domains.leaves(setting)))
        result = {"training_iteration": 1, "loss": value, "hyperband_info": {"budget": 1}}
        searcher.report(trial, result)
        searcher.complete(trial, result)
    return settings
