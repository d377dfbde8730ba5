"""The median rule decides as Ray's own scheduler does."""

import random
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from ray.tune.schedulers import MedianStoppingRule

from tuner.core.rules.median import Median
from tuner.spec.experiment import Experiment


def raced(seed):
    """Reports of 20 trials in a random order, each trial's own in order: (trial, epoch, value)."""
    draw = random.Random(seed)
    epochs = dict.fromkeys(range(20), 0)
    while epochs:
        trial = draw.choice(sorted(epochs))
        epochs[trial] += 1
        yield trial, epochs[trial], round(draw.random() + trial / 30, 2)
        if epochs[trial] == 7:
            del epochs[trial]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("left_out", [0.0, 0.4])
def test_the_median_rule_decides_as_rays_does(seed, left_out):
    theirs = MedianStoppingRule(time_attr="t", metric="m", mode="min", grace_period=2)
    nobody = SimpleNamespace(get_live_trials=list)
    ours, stopped, trials, chance = Median(Experiment(max_epochs=8, grace_period=2)), set(), {}, random.Random(seed)
    for trial, epoch, value in raced(seed):
        if trial in stopped or chance.random() < left_out:
            continue
        result = {"t": epoch, "m": value}
        one = trials.setdefault(trial, Mock(trial_id=str(trial)))
        wanted = theirs.on_trial_result(nobody, one, result)
        assert ours.judge(trial, epoch, value)[0].action == wanted.lower()
        if wanted == "STOP":
            stopped.add(trial)
            theirs.on_trial_complete(nobody, one, result)
            ours.ended(trial, epoch, value)
    assert stopped
