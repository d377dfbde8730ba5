"""Every searcher with every domain: its settings are those that Ray's documentation allows, or the pair is refused.

`RAY` states the documentation of `ray.tune`'s search space API, without the code that this project has for it.
"""

import math
from collections import Counter
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from ray import tune
from searching import drive, experiment_of

from tuner.core.events import ExperimentStarted
from tuner.engine.controller.trials import population_of
from tuner.errors import RequestError
from tuner.space import Space
from tuner.spec.domains import words
from tuner.spec.experiment import CHOICES, Experiment
from tuner.tuning.searchers.named import build_searcher
from tuner.tuning.searchers.sampling import seeded

MIXED = [1, 0.5, None, "1", True, 1.0]
OBJECTS = [[1, 2], (1, 2), {"a": 1}, [], len, dict, np.arange(2), np.arange(3)]


class Allowed(NamedTuple):
    domain: object
    values: list = []  # all that there are, in their types
    low: float = -math.inf
    high: float = math.inf
    step: float = 0  # of floats
    point: object = None
    refused_by: str = ""  # the searchers that propose no such domain


ALL_BUT_RANDOM = "grid refine forest hyperopt optuna nsga2 bohb"
UNBOUNDED = "grid optuna nsga2 bohb"
RAY = {
    # "Sample a float value uniformly between lower and upper."
    "uniform": Allowed(tune.uniform(-3, -1), low=-3, high=-1, point=-1.5),
    "loguniform": Allowed(tune.loguniform(1e-4, 1e-1), low=1e-4, high=1e-1, point=1e-1),
    # "Rounded to an integer increment of q. Quantization makes the upper bound inclusive."
    "quniform": Allowed(tune.quniform(0, 0.3, 0.1), [0.0, 0.1, 0.2, 0.3], point=0.3),
    "qloguniform": Allowed(tune.qloguniform(0.25, 1, 0.25), [0.25, 0.5, 0.75, 1.0], point=0.75),
    # "lower is inclusive, upper is exclusive."
    "randint": Allowed(tune.randint(3, 6), [3, 4, 5], point=5),
    "randint-one": Allowed(tune.randint(3, 4), [3], point=3),
    "lograndint": Allowed(tune.lograndint(1, 4), [1, 2, 3], point=1),
    "lograndint-one": Allowed(tune.lograndint(7, 8), [7], point=7),
    # "lower is inclusive, upper is also inclusive except for q=1 where it's exclusive. A multiple of q."
    "qrandint": Allowed(tune.qrandint(2, 10, 2), [2, 4, 6, 8, 10], point=10),
    "qrandint-inside": Allowed(tune.qrandint(1, 10, 3), [3, 6, 9], point=9),
    "qrandint-by-1": Allowed(tune.qrandint(0, 3, 1), [0, 1, 2], point=2),
    "qrandint-one": Allowed(tune.qrandint(1, 5, 3), [3], point=3),
    "qrandint-below-0": Allowed(tune.qrandint(-5, 4, 3), [-3, 0, 3], point=-3),
    "qlograndint": Allowed(tune.qlograndint(4, 12, 4), [4, 8, 12], point=12),
    "qlograndint-inside": Allowed(tune.qlograndint(1, 11, 3), [3, 6, 9], point=3),
    "qlograndint-by-1": Allowed(tune.qlograndint(4, 6, 1), [4, 5], point=4),
    "randn": Allowed(tune.randn(3, 2), point=-1.0, refused_by=UNBOUNDED),
    "qrandn": Allowed(tune.qrandn(0, 1, 0.5), step=0.5, point=0.5, refused_by=UNBOUNDED),
    "choice": Allowed(tune.choice(MIXED), MIXED, point=0.5),
    "choice-objects": Allowed(tune.choice(OBJECTS), OBJECTS),
    "choice-one": Allowed(tune.choice([7]), [7], point=7),
    "grid": Allowed(tune.grid_search(MIXED), MIXED, point=0.5, refused_by=ALL_BUT_RANDOM.removeprefix("grid ")),
    # "The callable receives the config dict", or in earlier versions a spec with it.
    "sample-from": Allowed(tune.sample_from(lambda config: config["three"] * 2), [6], refused_by=ALL_BUT_RANDOM),
    "sample-from-spec": Allowed(tune.sample_from(lambda spec: spec.config.three * 2), [6], refused_by=ALL_BUT_RANDOM),
}  # fmt: skip


def assert_allowed(value, allowed):
    if allowed.values:
        assert any(same(value, each) for each in allowed.values), value
        return
    assert type(value) is float and allowed.low <= value <= allowed.high
    assert not allowed.step or value == round(value / allowed.step) * allowed.step


def same(value, other):
    if isinstance(other, np.ndarray):
        return isinstance(value, np.ndarray) and np.array_equal(value, other)
    if isinstance(other, float):
        return type(value) is float and math.isclose(value, other)
    return type(value) is type(other) and value == other


def values_of(searcher, space, num, **options):
    """The parameter's values in three places: alone, in a dictionary and in one of the dictionaries of a choice."""
    settings = drive(build_searcher(experiment_of(searcher, num_samples=num, **options), space), score=score)
    places = [[setting["x"] for setting in settings], [setting["inner"]["x"] for setting in settings]]
    assert len(settings) == num or searcher == "grid" or space.params["x"] == RAY["grid"].domain
    return [*places, [setting["optimizer"]["x"] for setting in settings if "x" in setting.get("optimizer", {})]]


def score(flat):
    return sum(len(repr(value)) for value in flat.values()) % 7


def spread(domain, kind):
    params = {"three": 3, "x": domain, "inner": {"x": domain, "three": 3}}
    if kind != "grid":
        params["optimizer"] = tune.choice([{"x": domain, "three": 3}, {"y": tune.uniform(0, 1)}])
    return Space(params=params, train=print)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RAY)
@pytest.mark.parametrize("searcher", CHOICES["searcher"])
def test_a_searcher_proposes_what_ray_documents_or_refuses_the_pair_by_name(searcher, kind):
    allowed = RAY[kind]
    space = spread(allowed.domain, kind)
    if searcher in allowed.refused_by.split():
        with pytest.raises(RequestError, match=f"--searcher {searcher} cannot propose parameter 'x', a "):
            values_of(searcher, space, 1)
        return
    places = values_of(searcher, space, 2 if (searcher, kind) == ("random", "grid") else 20)
    for values in places:
        for value in values:
            assert_allowed(value, allowed)
    for each in allowed.values:
        assert any(same(value, each) for values in places for value in values), f"never {each!r}"
    if allowed.point is None:
        return
    given = {"x": allowed.point, "inner": {"x": allowed.point}}
    for options in ({"point": (words(given),)}, {"prior": words(given)}):
        if kind == "grid" and "prior" in options:
            with pytest.raises(RequestError, match="--prior x: tune.grid_search runs each of its values"):
                values_of(searcher, space, 4, **options)
            continue
        alone, inner, _ = places = values_of(searcher, space, 4, **options)
        assert same(alone[0], allowed.point) and same(inner[0], allowed.point)
        for value in (value for values in places for value in values):
            assert_allowed(value, allowed)


@pytest.mark.parametrize("kind", [kind for kind in RAY if kind not in ("choice-objects", "sample-from-spec")])
def test_pbt_stays_in_the_declared_range_with_its_steps_and_its_type(kind):
    allowed = RAY[kind]
    space = Space(params={"x": 3, "y": tune.uniform(0, 1), "three": 3}, train=print, mutable={"x": allowed.domain})
    population = population_of(Experiment(scheduler="pbt"), space)
    config = {"x": space.declared["x"].categories[0], "y": 0.5, "three": 3}
    with seeded(1):
        for _ in range(60):
            population.prepare(config)
            config, _ = population._get_new_config(None, SimpleNamespace(config=config))
            if kind != "sample-from":  # a number that Ray multiplies
                assert_allowed(config["x"], allowed)
    assert config["y"] == 0.5 and config["three"] == 3


def test_pbt_does_not_round_the_values_of_a_float_range_that_begin_with_an_integer():
    space = Space(params={"x": 1, "y": tune.uniform(0, 1)}, train=print, mutable={"x": tune.uniform(0.1, 3)})
    assert [setting["x"] for setting in settings_of("random", space, 2)] == [1.0, 1.0]
    population, (config, _) = population_of(Experiment(scheduler="pbt"), space), settings_of("random", space, 2)
    with seeded(1):
        changed = [population._get_new_config(None, SimpleNamespace(config=config))[0]["x"] for _ in range(20)]
    assert len(set(changed)) > 2 and not all(value.is_integer() for value in changed)


def test_pbt_draws_what_is_no_number_again():
    drawn = tune.sample_from(lambda config: config["y"] * 2)
    space = Space(params={"x": "a", "y": "b", "z": tune.uniform(0, 1)}, train=print, mutable={"x": drawn})
    population, config = population_of(Experiment(scheduler="pbt"), space), {"x": "a", "y": "b"}
    population.prepare(config)
    assert population._get_new_config(None, SimpleNamespace(config=config))[0] == {"x": "bb", "y": "b"}


def test_pbt_cannot_change_a_choice_of_dictionaries_with_domains():
    nested = tune.choice([{"lr": tune.uniform(0, 1)}, {"name": "adam"}])
    space = Space(params={"optimizer": nested}, train=print, mutable=["optimizer"])
    with pytest.raises(RequestError, match="--scheduler pbt cannot change parameter 'optimizer', a choice of dict"):
        build_searcher(Experiment(scheduler="pbt"), space)


# grid_search, sample_from and points


def space_of(**params):
    return Space(params=params, train=print)


def points(*settings):
    return {"point": tuple(words(each) for each in settings)}


def settings_of(searcher, space, num_samples, **options):
    return drive(build_searcher(experiment_of(searcher, num_samples=num_samples, **options), space))


GRID = [0.1, 0.2, 0.5, 0.6, 0.9]


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize(
    ("given", "extra"),
    [([{"x": 0.5}], 0), ([{"y": 0.5}, {"y": 0.6}], 0), ([{"x": 0.5, "y": 0.1}, {"x": 0.5}, {"y": 0.3}], 1)],
)
def test_a_point_takes_no_value_of_a_grid_away(given, extra, num_samples):
    space = space_of(x=tune.grid_search(GRID), y=tune.uniform(0, 1), c=7)
    settings = settings_of("random", space, num_samples, **points(*given))
    for point, setting in zip(given, settings, strict=False):
        assert point.items() <= setting.items()
    extra *= num_samples == 1  # with three samples, there is room for both
    counts = Counter(setting["x"] for setting in settings)
    assert counts == Counter({x: num_samples + extra * (x == 0.5) for x in GRID})
    more = settings_of("random", space, num_samples + 1, **points(*given))
    assert len({setting["y"] for setting in more}) == len(more)


def test_an_extended_search_with_a_grid_and_points_goes_on_where_it_was():
    space, given = space_of(x=tune.grid_search(GRID), y=tune.uniform(0, 1)), points({"x": 0.5}, {"x": 0.5})
    first = settings_of("random", space, 1, **given)
    begun = [ExperimentStarted(num_samples=1)]
    whole = drive(build_searcher(experiment_of("random", num_samples=3, **given), space, begun))
    assert whole[: len(first)] == first and len(whole) == 15
    assert Counter(setting["x"] for setting in whole) == Counter({x: 3 for x in GRID})


def test_a_point_on_the_grid_is_not_tried_twice_and_takes_no_other_value_away():
    space = space_of(x=tune.grid_search(GRID), n=tune.choice([1, 2]), c=3)
    settings = settings_of("grid", space, 10, **points({"x": 0.5, "n": 2}))
    assert settings[0] == {"x": 0.5, "n": 2}
    assert sorted((setting["x"], setting["n"]) for setting in settings) == [(x, n) for x in GRID for n in (1, 2)]
    optimizers = [{"name": "sgd", "momentum": tune.choice([0.0, 0.9])}, {"name": "adam"}]
    conditional = space_of(optimizer=tune.choice(optimizers))
    given = points({"optimizer": {"name": "sgd", "momentum": 0.9}})
    tried = [tuple(setting["optimizer"].values()) for setting in settings_of("grid", conditional, 9, **given)]
    assert tried[0] == ("sgd", 0.9) and sorted(tried) == [("adam",), ("sgd", 0.0), ("sgd", 0.9)]


def test_sample_from_is_computed_from_the_values_that_the_trial_gets():
    inner = {
        "name": "sgd",
        "lr": tune.uniform(0, 1),
        "twice": tune.sample_from(lambda config: config["optimizer"]["lr"] * 2),
    }
    space = space_of(
        c=7,
        a=tune.uniform(0, 1),
        b=tune.sample_from(lambda spec: spec.config.a * 2),
        d=tune.sample_from(lambda config: config.b + 1),
        e=tune.sample_from(lambda: 3),
        g=tune.sample_from(lambda config: config.get("c", 1) * 2),
        optimizer=tune.choice([inner, {"name": "adam"}]),
        z={"k": tune.sample_from(lambda config: config["z"]["n"] + 1), "n": tune.grid_search([1, 2])},
    )
    sgd = {"optimizer": {"name": "sgd", "lr": 0.25}}
    settings = settings_of("random", space, 8, **points({"a": 0.5}, {"a": 0.25, **sgd}, {"z": {"n": 2}}))
    assert [setting["a"] for setting in settings[:2]] == [0.5, 0.25]
    assert settings[1]["optimizer"] == {"name": "sgd", "lr": 0.25, "twice": 0.5} and settings[2]["z"]["n"] == 2
    for setting in settings:
        assert setting["b"] == 2 * setting["a"] and setting["d"] == setting["b"] + 1
        assert (setting["e"], setting["g"]) == (3, 14) and setting["z"]["k"] == setting["z"]["n"] + 1
        assert setting["optimizer"].get("twice", 0) == 2 * setting["optimizer"].get("lr", 0)


def test_a_grid_inside_a_choice_is_refused_by_random():
    space = space_of(optimizer=tune.choice([{"lr": tune.grid_search([0.1, 0.2])}, {"name": "adam"}]))
    with pytest.raises(
        RequestError, match="'optimizer/branch0/lr', a grid_search inside a choice; use --searcher grid"
    ):
        settings_of("random", space, 2)
    assert len(settings_of("grid", space, 9)) == 3


@pytest.mark.parametrize("searcher", ["hyperopt", "optuna", "nsga2", "bohb"])
def test_a_point_between_two_steps_runs_as_it_was_given(searcher):
    space = space_of(units=tune.qrandint(4, 64, 4), drop=tune.quniform(0, 1, 0.25))
    settings = settings_of(searcher, space, 5, **points({"units": 33, "drop": 0.3}))
    assert settings[0] == {"units": 33, "drop": 0.3}
    assert all(setting["units"] % 4 == 0 and setting["drop"] % 0.25 == 0 for setting in settings[1:])


# bohb


class Recorded:
    """Ray's adapter of BOHB, which notes what the model is told: setting, budget and loss."""

    def __init__(self, built):
        self.told, (register, settings) = [], (built.library.bohber.new_result, built.library.trial_to_params)

        def note(job):
            self.told.append((job.kwargs["config"]["0:x"], job.kwargs["budget"], job.result["loss"]))
            return register(job)

        built.library.bohber.new_result = note
        assert settings == {}


def test_bohb_learns_of_failures_and_of_the_trial_that_ends_a_bracket():
    space = space_of(x=tune.uniform(0, 1))
    experiment = Experiment(searcher="bohb", scheduler="bohb", num_samples=9, max_epochs=9, reduction_factor=3)
    built = build_searcher(experiment, space)
    recorded = Recorded(built)
    x = [built.suggest(f"{number:05d}")["x"] for number in range(6)]

    def report(number, epoch, loss, budget=None):
        info = {"budget": budget} if budget else {}
        built.report(f"{number:05d}", {"training_iteration": epoch, "loss": loss, "hyperband_info": info})

    def complete(number, epoch=None, loss=0.5, **options):
        result = {"training_iteration": epoch, "loss": loss} if epoch else None
        built.complete(f"{number:05d}", result, **options)

    report(0, 1, 0.9, budget=1)
    complete(0)  # stopped while it was paused: its value at this rung is known
    complete(1, 1, 0.4)  # the one that ends a bracket is stopped with its report
    report(2, 1, 0.3, budget=1)
    report(2, 2, 0.2)
    complete(2, error=True)  # fails on its way to the rung 3
    complete(3, error=True)  # fails in its first epoch
    complete(4, 4, math.nan)  # diverges
    report(5, 3, 0.1, budget=3)
    complete(5, 9, 0.05)  # trains all its epochs
    inf = math.inf
    assert recorded.told == [
        (x[0], 1, 0.9), (x[1], 1, 0.4), (x[2], 1, 0.3), (x[2], 3, inf), (x[3], 1, inf), (x[4], 9, inf),
        (x[5], 3, 0.1), (x[5], 9, 0.05),
    ]  # fmt: skip
