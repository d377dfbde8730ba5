"""Constants, conditional parameters, given points and extended searches, for every searcher."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray import tune
from searching import drive, experiment_of
from tiers import further

from tuner.core.events import ExperimentStarted
from tuner.errors import RequestError
from tuner.space import Space
from tuner.spec import parameters
from tuner.spec.domains import nested, words
from tuner.spec.experiment import CHOICES
from tuner.training.task import whole_config
from tuner.tuning.searchers.named import build_searcher

SEARCHERS = CHOICES["searcher"]


def train(config):
    pass


def conditional(**others):
    """Two optimizers with parameters of their own, a branch within a branch, and constants at each level."""
    sgd = {"name": "sgd", "lr": tune.loguniform(1e-3, 1), "momentum": tune.uniform(0, 0.99)}
    decay = tune.choice([None, {"weight_decay": tune.loguniform(1e-6, 1e-2)}])
    adam = {"name": "adam", "lr": tune.loguniform(1e-5, 1e-1), "decay": decay}
    params = {"optimizer": tune.choice([sgd, adam]), "width": tune.choice([4, 8]), "steps": 4}
    return Space(params=params | {"net": {"kind": "mlp", "depth": tune.randint(1, 4)}}, train=train, **others)


def settings_of(searcher, space, num=14, first=None, seed=0, **options):
    points = tuple(words(point) for point in space.points)
    experiment = experiment_of(searcher, seed, num, point=points, **options)
    begun = ExperimentStarted(num_samples=first)
    history = [begun] if first else ()
    built = build_searcher(experiment, space, history)
    return drive(built, num=min(num, built.num_settings))


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_a_trial_gets_the_parameters_of_its_branch_alone(searcher):
    names = {"sgd": {"name", "lr", "momentum"}, "adam": {"name", "lr", "decay"}}
    configs = settings_of(searcher, conditional(), num=30)
    assert {config["optimizer"]["name"] for config in configs} == set(names)
    for config in configs:
        assert set(config) == {"optimizer", "width", "net"} and set(config["net"]) == {"depth"}
        optimizer = config["optimizer"]
        assert set(optimizer) == names[optimizer["name"]]
        low, high = (1e-3, 1) if optimizer["name"] == "sgd" else (1e-5, 1e-1)
        assert low <= optimizer["lr"] <= high
        assert optimizer.get("decay") is None or 1e-6 <= optimizer["decay"]["weight_decay"] <= 1e-2


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_the_given_points_come_first_and_the_searcher_fills_in_the_rest(searcher):
    whole = {"optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9}, "width": 8, "net": {"depth": 2}}
    points = [whole, {"optimizer": {"name": "adam", "lr": 0.001, "decay": None}}, {"width": 4}]
    first, second, third, *rest = settings_of(searcher, conditional(points=points))
    assert first == whole
    assert second["optimizer"] == points[1]["optimizer"] and second["width"] in (4, 8)
    assert third["width"] == 4 and "lr" in third["optimizer"]
    assert len(rest) == 11


@pytest.mark.parametrize("searcher", SEARCHERS)
@pytest.mark.parametrize(
    ("numbers", "points"),
    [
        ((3, 14), ({"width": 4},)),
        *further(
            [((31, 45), ()), ((31, 45), ({"width": 4},)), ((3, 14), ()), ((10, 20), ()), ((10, 20), ({"width": 4},))], 1
        ),
    ],
)
def test_an_extended_search_proposes_what_it_has_proposed(searcher, numbers, points):
    few, many = numbers
    space = conditional(points=points)
    begun = settings_of(searcher, space, num=few)
    extended = settings_of(searcher, space, num=many, first=few)
    assert extended[:few] == begun and len(extended) == many


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_a_choice_of_arrays_is_proposed(searcher):
    arrays = [np.array([0.1, 0.9]), np.array([0.5, 0.5])]
    space = Space(params={"x": tune.uniform(0, 1), "weights": tune.choice(arrays)}, train=train)
    assert all(
        any(np.array_equal(config["weights"], each) for each in arrays) for config in settings_of(searcher, space)
    )


def test_a_trial_changes_only_its_own_constants():
    constants = {"model": {"depth": 3, "head": {"width": 4}}, "steps": 5}
    for _ in range(2):
        config = whole_config({"lr": 0.1, "model": {"rate": 0.5}}, constants)
        assert config == {"lr": 0.1, "steps": 5, "model": {"depth": 3, "head": {"width": 4}, "rate": 0.5}}
        config["model"]["depth"] += 1
        config["model"]["head"]["width"] += 1


def test_a_trials_own_values_come_before_the_spaces_and_those_before_the_datas():
    given = {"data_constants": {"classes": 3, "steps": 1, "lr": 9}, "seed": 0, "length": "epochs", "max_epochs": 7}
    whole = whole_config({"lr": 0.1}, {"steps": 5, "seed": 1}, **given)
    assert whole == {"classes": 3, "steps": 5, "lr": 0.1, "seed": 0, "epochs": 7}
    assert whole_config({"lr": 0.1}) == {"lr": 0.1}


def test_a_grid_has_each_combination_of_each_branch_once():
    branches = [{"a": tune.choice([1, 2]), "b": tune.choice([3, 4, 5])}, {"a": tune.choice([6, 7])}, None]
    space = Space(params={"x": tune.choice(branches), "y": tune.choice("pq"), "z": 1}, train=train)
    configs = settings_of("grid", space, num=100)
    assert len(configs) == (2 * 3 + 2 + 1) * 2
    assert len({str(config) for config in configs}) == len(configs)


def test_refine_keeps_to_the_branch_of_the_best_trial_or_leaves_it_whole():
    configs = settings_of("refine", conditional(), num=30)
    assert len({str(config) for config in configs}) == 30, "no setting twice: an inactive parameter is no difference"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_drawn_setting_becomes_a_config_and_the_same_point_again(seed):
    (config,) = settings_of("random", space := conditional(), num=1, seed=seed)
    placed = parameters.place(space.declared, config)
    assert parameters.decode(space.searched, nested(placed)) == config
    whole = whole_config(config, space.constants)
    assert whole["steps"] == 4 and whole["net"]["kind"] == "mlp"
    assert parameters.searched_in(space.declared, whole) == config


@pytest.mark.parametrize(
    "point, message",
    [
        ({"widht": 4}, "'widht' is no parameter; did you mean 'width'?"),
        (
            {"widht": 4, "stesp": 1},
            "'widht' is no parameter; did you mean 'width'?; 'stesp' is no parameter; did you mean",
        ),
        ({"width": 5}, "width=5: must be one of 4, 8"),
        ({"steps": 5}, "steps=5: the space fixes it to 4"),
        ({"net": 3}, "net=3: must be a dict of kind, depth"),
        ({"net": {"depth": 9}}, "net/depth=9: must be 1..3"),
        ({"net": {"depth": 1.5}}, "net/depth=1.5: must be a whole number"),
        ({"net": {"depth": "deep"}}, "net/depth='deep': must be a number"),
        ({"optimizer": {"name": "adm"}}, "optimizer/name='adm'"),
        ({"optimizer": {"name": "adam", "momentum": 1}}, "'optimizer/momentum' is no parameter"),
    ],
)
def test_a_wrong_point_is_refused_by_name(point, message):
    with pytest.raises(ValueError, match="points: .*" + message.split("?")[0].replace("(", r"\(")):
        conditional(points=[point])
    with pytest.raises(RequestError) as refused:
        experiment = experiment_of("random", point=(words(point),))
        build_searcher(experiment, conditional())
    assert message in str(refused.value) and str(refused.value).startswith("--point")


@pytest.mark.parametrize(
    "value, message",
    [
        (lambda spec: 1, "is a function (tests/spec/test_parameters.py, line "),
        (tune.choice([{"a": tune.choice([])}]), "tune.choice([]) has no values"),
        (tune.choice([{"a": tune.uniform(0, 1)}, [1]]), "a list among dictionaries with domains"),
    ],
)
def test_what_is_neither_a_domain_nor_a_constant_is_refused_with_what_to_write(value, message, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    with pytest.raises(ValueError) as refused:
        Space(params={"x": value, "y": tune.uniform(0, 1)}, train=train)
    assert message in str(refused.value) and "'x'" in str(refused.value)
