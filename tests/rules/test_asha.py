"""ASHA's rule decides as Ray's own scheduler does."""

from types import SimpleNamespace

import hypothesis.strategies as some
import numpy as np
from hypothesis import given, settings
from ray.tune.schedulers import AsyncHyperBandScheduler

from tuner.core.rules import asha
from tuner.spec.experiment import Experiment

VALUES = some.floats(-1e9, 1e9) | some.integers(-3, 3) | some.sampled_from([0.0, -0.0, 1.0])


@some.composite
def searches(draw):
    """A search's options, its number of brackets, and its reports: (trial, epochs since its last report, value)."""
    most = draw(some.integers(1, 40))
    options = {
        "max_epochs": most,
        "grace_period": draw(some.integers(1, most)),
        "reduction_factor": draw(some.sampled_from([1.1, 1.5, 2, 2.0, 2.5, 3, 4, 10])),
        "mode": draw(some.sampled_from(["min", "max"])),
        "seed": draw(some.integers(0, 9)),
    }
    reports = some.tuples(some.integers(0, 7), some.integers(1, 5), VALUES)
    return options, draw(some.integers(1, 4)), draw(some.lists(reports, max_size=60))


def rays(experiment, brackets):
    """Ray's scheduler with these options."""
    return AsyncHyperBandScheduler(
        time_attr="t", metric="m", mode=experiment.mode, max_t=experiment.max_epochs,
        grace_period=experiment.grace_period, reduction_factor=experiment.reduction_factor, brackets=brackets,
    )  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(searches())
def test_every_decision_rung_and_cutoff_is_that_of_ray(search):
    options, brackets, reports = search
    experiment = Experiment(**options)
    ours, theirs = asha.Asha(experiment, brackets), rays(experiment, brackets)
    sign, epochs, stopped = (1 if experiment.mode == "max" else -1), {}, set()
    for trial, later, value in reports:
        epoch = epochs[trial] = epochs.get(trial, 0) + later
        if trial in stopped or epoch >= experiment.max_epochs:
            continue
        bracket = theirs._trial_info.setdefault(str(trial), theirs._brackets[ours._brackets.of(trial)])
        before = {rung: (bracket.cutoff(rewards), str(trial) in rewards) for rung, rewards in bracket._rungs}
        action = theirs.on_trial_result(None, SimpleNamespace(trial_id=str(trial)), {"t": epoch, "m": value})
        judged, _ = ours.judge(trial, epoch, value)
        assert judged.action == action.lower()
        (rung,) = [at for at, rewards in bracket._rungs if (str(trial) in rewards) != before[at][1]] or [None]
        assert judged.rung == rung
        cutoff = None if rung is None else before[rung][0]
        assert judged.cutoff == (None if cutoff is None else sign * cutoff)
        stopped |= {trial} if action == "STOP" else set()


@given(some.lists(some.floats(-1e9, 1e9), min_size=1, max_size=40), some.floats(1.01, 20))
def test_the_cutoff_is_numpys_percentile_to_the_bit(values, factor):
    assert asha.cutoff(sorted(values), factor) == np.nanpercentile(values, (1 - 1 / factor) * 100)


def test_a_bracket_is_drawn_with_rays_odds():
    """Ray gives a bracket with one rung more e times as many trials; a search draws with the seed (seed, trial)."""
    experiment = Experiment(max_epochs=8, seed=3)
    ours, theirs = asha.Asha(experiment, 3), rays(experiment, 3)
    for trial in range(200):
        derived = np.random.SeedSequence((3, 4, trial)).generate_state(1)[0]
        np.random.seed(derived)
        theirs.on_trial_add(None, SimpleNamespace(trial_id=str(trial)))
        assert theirs._brackets[ours._brackets.of(trial)] is theirs._trial_info[str(trial)]
