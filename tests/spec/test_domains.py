"""Ray's domains as read here: the same ends that Ray's own samplers have, a grid and neighbours in them."""

import math
import random

import numpy as np
import pytest
from ray import tune

from tuner.errors.gate import plain
from tuner.spec import domains
from tuner.tuning.searchers.sampling import seeded

RANGES = [
    tune.uniform(-3, 5),
    tune.uniform(0.1, 0.2),
    tune.quniform(0, 1, 0.25),
    tune.quniform(0.5, 3, 0.5),
    tune.loguniform(1e-4, 1e-1),
    tune.qloguniform(1e-3, 1, 1e-3),
    tune.randint(0, 10),
    tune.randint(-5, -1),
    tune.randint(3, 5),
    tune.qrandint(0, 12, 4),
    tune.lograndint(1, 1000),
    tune.lograndint(2, 4),
    tune.qlograndint(4, 64, 4),
]
NUMBERS = [*RANGES, tune.choice([8, 2, 4]), tune.choice([0.1, 1, 10.0]), tune.grid_search([3, 1, 2])]
ids = lambda domain: str(domains.describe(domain))  # noqa: E731


def allowed(domain, value):
    described = domains.describe(domain)
    if "values" in described:
        return value in described["values"]
    integers, step = "randint" in described["kind"], described.get("q")
    top = domain.upper - 1 if integers and not step else domain.upper
    whole = isinstance(value, int) if integers else isinstance(value, float)
    on_step = not step or math.isclose(value / step, round(value / step), abs_tol=1e-9)
    return whole and on_step and domain.lower <= value <= top


@pytest.mark.parametrize("domain", RANGES, ids=ids)
def test_grid_values_lie_in_the_range_and_try_both_ends(domain):
    values = domains.grid_values(domain)
    assert all(allowed(domain, value) for value in values)
    assert values == sorted(set(values))
    excluded = "randint" in domains.kind(domain) and not domains.describe(domain).get("q")
    assert (values[0], values[-1]) == (domain.lower, domain.upper - excluded)


@pytest.mark.parametrize("domain", [d for d in RANGES if "randint" in domains.kind(d)], ids=ids)
def test_integer_ends_are_those_that_ray_draws(domain):
    with seeded(0):
        drawn = {int(domain.sample()) for _ in range(4000)}
    assert min(drawn) == domains.grid_values(domain)[0]
    if domain.upper - domain.lower <= 20:
        assert max(drawn) == domains.grid_values(domain)[-1]
    assert max(drawn) <= domains.grid_values(domain)[-1]


@pytest.mark.parametrize("domain", RANGES, ids=ids)
def test_what_ray_draws_goes_to_the_unit_range_and_comes_back(domain):
    with seeded(1):
        for _ in range(200):
            value, span = domain.sample(), domains.Range(domain)
            position = span.position(value)
            assert -1e-9 <= position <= 1 + 1e-9
            assert span.value_at(min(1.0, max(0.0, position))) == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("domain", NUMBERS, ids=ids)
@pytest.mark.parametrize("radius", [1, 2, 5, 10])
def test_neighbours_lie_in_the_range_without_the_value_itself(domain, radius):
    with seeded(2):
        drawn = [
            random.choice(domains.values_of(domain)) if domains.is_grid(domain) else domain.sample() for _ in range(50)
        ]
    for value in [*drawn, *domains.grid_values(domain)]:
        near = domains.neighbours(domain, value, radius)
        assert value not in near and len(near) == len(set(near)) <= 2 * radius
        assert all(allowed(domain, other) for other in near)


def test_neighbours_of_a_choice_of_numbers_are_the_next_ones_and_of_words_all_others():
    assert domains.neighbours(tune.choice([16, 2, 8, 4]), 8) == [4, 16]
    assert domains.neighbours(tune.choice([16, 2, 8, 4]), 2, radius=2) == [4, 8]
    assert domains.neighbours(tune.choice(["relu", "tanh", "gelu"]), "tanh") == ["relu", "gelu"]
    assert domains.neighbours(tune.choice([True, False]), True) == [False]
    assert domains.neighbours(tune.randn(), 0.3) == []


@pytest.mark.parametrize("domain", [tune.randn(), tune.sample_from(lambda spec: 1)])
def test_a_domain_without_bounds_has_no_grid(domain):
    domains.check_domain(domain)
    with pytest.raises(ValueError, match="has no bounds, so it has no grid"):
        domains.grid_values(domain)


OBJECTS = [
    np.array([0.1, 0.9]),
    np.array([0.5, 0.5]),
    {"b", "a"},
    math.tanh,
    len,
    (1, 2),
    math.inf,
    math.nan,
    "inf",
    1,
    True,
]


@pytest.mark.parametrize("place", range(len(OBJECTS)))
def test_a_value_of_a_choice_is_found_again_by_itself_and_by_its_json(place):
    value, domain = OBJECTS[place], tune.choice(OBJECTS)
    json = plain(value)
    assert domains.checked_value(domain, value, "x") is value
    if not isinstance(json, (bool, float)):  # in JSON, 1 and True differ, but not for Python; "inf" is a text here
        assert domains.checked_value(domain, json, "x") is value
        assert domains.checked_value(domain, str(json), "x") is value
    assert len(domains.neighbours(domain, value)) == len(OBJECTS) - (2 if json in (1, True) else 1)
    with pytest.raises(
        ValueError, match=r"x='other': must be one of \[0.1, 0.9\], \[0.5, 0.5\], \['a', 'b'\], math.tanh"
    ):
        domains.checked_value(domain, "other", "x")


def test_a_domain_is_described_in_json_with_ends_as_declared():
    assert domains.describe(tune.qrandint(0, 12, 4)) == {"kind": "randint", "lower": 0, "upper": 12, "q": 4}
    described = {"kind": "choice", "values": [1, "a", None, "[1, 2]"]}
    assert domains.describe(tune.choice([1, "a", None, (1, 2)])) == described
    assert domains.describe(tune.randn()) == {"kind": "normal"}
    assert domains.describe(tune.sample_from(lambda spec: 1)) == {"kind": "sample_from"}
