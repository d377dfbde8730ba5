"""A guess of good values: it runs first, moves a share of the random settings, and loses it if it is wrong."""

import math

import numpy as np
import pytest
from ray import tune
from searching import drive, experiment_of

from tuner.errors import RequestError
from tuner.space import Space
from tuner.spec import domains
from tuner.tuning.searchers.named import build_searcher
from tuner.tuning.searchers.prior import Prior

PARAMS = {"lr": tune.loguniform(1e-4, 1), "width": tune.randint(1, 100), "act": tune.choice(["relu", "tanh", "elu"])}
SPACE = Space(params=PARAMS, train=print, prior={"lr": 1e-3})


def built(searcher, num_samples=60, seed=0, prior=("lr=0.001",), space=SPACE):
    return build_searcher(experiment_of(searcher, seed, num_samples, prior=prior), space)


@pytest.mark.parametrize("searcher", ["random", "forest", "refine", "grid", "hyperopt", "optuna", "bohb"])
def test_the_guess_runs_first_and_the_other_parameters_are_random(searcher):
    first = [drive(built(searcher, seed=seed), 1)[0] for seed in range(4)]
    assert {each["lr"] for each in first} == {1e-3} and len({each["width"] for each in first}) > 1


@pytest.mark.parametrize("searcher_name", ["random", "forest"])
def test_a_right_guess_draws_half_of_the_random_settings_to_it_and_a_wrong_one_fewer(searcher_name):
    for score, low, high in ((1, 0.4, 0.5), (-1, 0, 0.35)):
        shares = []
        for seed in range(8):
            searcher = built(searcher_name, seed=seed)
            drive(searcher, 40, score=lambda flat, sign=score: sign * abs(math.log10(flat["lr"]) + 3))
            shares.append(searcher._prior.share)
        assert low <= np.mean(shares) <= high


@pytest.mark.parametrize("searcher", ["random", "forest"])
def test_without_a_guess_the_settings_are_as_ever(searcher):
    plain = Space(params=PARAMS, train=print)
    assert drive(built(searcher, prior=()), 15) == drive(built(searcher, prior=(), space=plain), 15)


def test_the_share_falls_as_the_guess_loses():
    def share(around, others):
        prior = Prior({"lr": 1e-3}, dict(domains.leaves(SPACE.encoded)))
        for number, (value, is_around) in enumerate([(v, True) for v in around] + [(v, False) for v in others]):
            prior._is_around[str(number)] = is_around
            prior.learn(str(number), value)
        return prior.share

    assert share([], []) == share([1], []) == share([1, 2], [3, 4]) == 0.5
    assert 0 < share([4], [1]) < 0.3 and share([4, 5], [1, 2]) < 0.2 and share([4, 5, 6], [1, 2, 3]) == 0
    assert share([math.inf], [math.inf]) == 0.5


def test_values_near_a_guess_lie_in_their_domains():
    params = {**PARAMS, "units": tune.qlograndint(4, 64, 4), "z": tune.randn(3, 2), "drop": tune.quniform(0, 0.5, 0.1)}
    space = Space(params=params, train=print)
    leaves = dict(domains.leaves(space.encoded))
    guess = {"lr": 1.0, "width": 99, "act": "elu", "units": 64, "z": 1.0, "drop": 0.0}
    prior, stream = Prior(guess, leaves), np.random.default_rng(0)
    moved = []
    for number in range(200):
        flat = {name: domain.sample(random_state=stream) for name, domain in leaves.items()}
        moved.append(prior.moved(str(number), flat, stream))
        assert all(domains.checked_value(leaves[name], value, name) == value for name, value in moved[-1].items())
    around = [each for number, each in enumerate(moved) if prior._is_around[str(number)]]
    assert 70 < len(around) < 130
    assert np.mean([each["act"] == "elu" for each in around]) == pytest.approx(2 / 3, abs=0.12)
    assert np.std([each["z"] for each in around]) == pytest.approx(0.5, abs=0.1)
    assert np.mean([each["lr"] > 0.01 for each in around]) > 0.95


def test_conditional_parameters_are_guessed_too():
    branches = [{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam"}]
    space = Space(params={"optimizer": tune.choice(branches), "lr": tune.uniform(0, 1)}, train=print)
    guess = {"optimizer": {"name": "sgd", "momentum": 0.9}}
    space = Space(params=space.params, train=print, prior=guess)
    settings = drive(
        build_searcher(experiment_of("random", prior=space.options.prior, num_samples=30), space), 30, lambda flat: 0
    )
    assert settings[0]["optimizer"] == guess["optimizer"]
    assert np.mean([each["optimizer"]["name"] == "sgd" for each in settings]) > 0.5


def test_a_choice_of_texts_and_of_tuples_is_guessed_too():
    params = {**PARAMS, "blocks": tune.choice(["8", "16"]), "kernel": tune.choice([(1, 3), (3, 5)])}
    space = Space(params=params, train=print, prior={"blocks": "16", "kernel": (3, 5)})
    first = drive(built("random", prior=space.options.prior, space=space), 1)[0]
    assert (first["blocks"], first["kernel"]) == ("16", (3, 5))


@pytest.mark.parametrize("searcher", ["random", "forest", "refine", "grid", "hyperopt", "optuna", "bohb"])
def test_a_value_that_is_a_dictionary_is_guessed_whole(searcher):
    layers = [{"depth": 1}, {"depth": 2, "width": 8}]
    space = Space(params={**PARAMS, "layers": tune.choice(layers)}, train=print, prior={"layers": layers[1]})
    settings = drive(built(searcher, prior=space.options.prior, space=space), 20)
    assert settings[0]["layers"] == layers[1] and all(each["layers"] in layers for each in settings)


def test_a_guess_cannot_replace_points_of_a_grid():
    space = Space(params={**PARAMS, "seed": tune.grid_search([1, 2])}, train=print)
    with pytest.raises(RequestError, match="--prior seed: tune.grid_search runs each of its values"):
        built("random", prior=("seed=1",), space=space)


def test_a_wrong_guess_is_refused_by_name():
    with pytest.raises(ValueError, match="prior: lr=7"):
        Space(params=PARAMS, train=print, prior={"lr": 7})
    with pytest.raises(ValueError, match="prior=5.*a dict"):
        Space(params=PARAMS, train=print, prior=5)
    with pytest.raises(RequestError, match="--prior 'lrr' is no parameter"):
        built("random", prior=("lrr=1",))
    computed = Space(params={**PARAMS, "x": tune.sample_from(lambda spec: 1)}, train=print)
    with pytest.raises(RequestError, match="--prior: does not work with tune.sample_from"):
        built("random", space=computed)
