"""What past searches know: it runs first, teaches a model, and cannot ruin a search that it misleads."""

import json
import math
import random

import numpy as np
import pytest
from ray import tune
from searching import drive, experiment_of

from tuner.errors import RequestError
from tuner.space import Space
from tuner.spec import domains
from tuner.tuning.searchers.named import build_searcher
from tuner.tuning.searchers.past import Past, PastModel, cells_of, columns_of, misordered
from tuner.tuning.searchers.trees import features, no_risk

LEARNING = ("forest", "hyperopt", "optuna", "bohb")
SEARCHERS = ("random", "grid", "refine", *LEARNING)


def space_of(**more):
    params = {"x": tune.uniform(0, 1), "y": tune.loguniform(1e-3, 1), "act": tune.choice(["relu", "tanh"])}
    return Space(params={**params, **more}, train=print)


def loss(flat):
    """Best at x = .9 and y = .5."""
    return abs(flat["x"] - 0.9) + abs(math.log(flat["y"] / 0.5)) / 7 + (flat["act"] == "tanh")


def recorded(space, *, first=2, told=60, better=loss):
    """What a past search of random settings would record."""
    columns, stream = columns_of(space), random.Random(3)
    settings = [
        {"x": stream.random(), "y": 10 ** stream.uniform(-3, 0), "act": stream.choice(["relu", "tanh"])}
        for _ in range(told)
    ]
    settings.sort(key=better)
    cells = [cells_of(columns, each) for each in settings]
    source = {"from": "old", "note": "", "first": cells[:first], "told": [[*each, 4] for each in cells]}
    return {"params": list(columns), "sources": [source]}, settings


def built(searcher, past, num_samples=30, seed=0):
    return build_searcher(experiment_of(searcher, seed, num_samples), space_of(), (), past)


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_the_best_known_settings_run_first(searcher):
    record, settings = recorded(space_of())
    first = drive(built(searcher, Past(json.loads(json.dumps(record)), space_of())), 2)
    assert first == [pytest.approx(each) for each in settings[:2]]


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_without_a_past_a_searcher_proposes_as_ever(searcher):
    cold = drive(built(searcher, None), 16, score=loss)
    assert drive(built(searcher, Past({}, space_of())), 16, score=loss) == cold


@pytest.mark.parametrize("searcher", LEARNING)
def test_a_model_of_the_past_proposes_in_place_of_the_first_random_settings(searcher):
    losses = []
    for past in (None, Past(recorded(space_of(), first=0)[0], space_of())):
        each = [drive(built(searcher, past, seed=seed), 8, score=loss) for seed in range(4)]
        losses.append(np.mean([loss(setting) for settings in each for setting in settings]))
    cold, warm = losses
    assert warm < 0.8 * cold


def test_the_forest_believes_a_past_only_as_far_as_it_orders_the_own_results():
    """`model.proposed` answers for own results that the past orders right, not at all, and wrong."""
    record, settings = recorded(space_of())
    leaves = dict(domains.leaves(space_of().encoded))
    model = PastModel(Past(record, space_of()), leaves, seed=0)
    known = features(leaves, {name: [each[name] for each in settings[::5]] for name in leaves})
    right = np.arange(len(known), dtype=float)
    shuffled = np.random.default_rng(0).permutation(right)
    shares = []
    for values in (right, shuffled, right[::-1]):
        answers = [model.proposed(np.random.default_rng(seed), known, values, no_risk()) for seed in range(60)]
        shares.append(np.mean([answer is not None for answer in answers]))
        assert not any(answers) or np.mean([loss(answer) for answer in answers if answer]) < 0.6
    assert shares[0] > 0.6 and shares[1] < 0.4 and shares[2] == 0
    assert model.proposed(np.random.default_rng(0), known[:0], right[:0], no_risk()) is None


def test_a_setting_that_lacks_a_parameter_has_it_at_random():
    record, _ = recorded(space_of(), first=1)
    record["sources"][0]["first"][0][1] = None
    past = Past(record, space_of())
    drawn = {drive(built("random", past, seed=seed), 1)[0]["y"] for seed in range(3)}
    assert len(drawn) == 3 and "y" not in past.first[0]


def test_conditional_parameters_come_back_as_they_were():
    branches = [{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam"}]
    space = Space(params={"optimizer": tune.choice(branches), "lr": tune.uniform(0, 1)}, train=print)
    columns = columns_of(space)
    cells = cells_of(columns, {"optimizer/chosen": "branch0", "optimizer/branch0/momentum": 0.25, "lr": 0.5})
    record = {"params": list(columns), "sources": [{"from": "", "note": "", "first": [cells], "told": [[*cells, 1]]}]}
    searcher = build_searcher(experiment_of("forest"), space, (), Past(json.loads(json.dumps(record)), space))
    assert drive(searcher, 1, score=lambda flat: 0.0) == [{"optimizer": {"name": "sgd", "momentum": 0.25}, "lr": 0.5}]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda record: record.update(params=["x"]), "other parameters"),
        (lambda record: record["sources"][0]["first"][0].__setitem__(0, 7.0), "x=7.0"),
        (lambda record: record["sources"][0]["first"][0].__setitem__(0, "7"), "no number"),
        (lambda record: record["sources"][0]["first"][0].__setitem__(0, math.inf), "no number"),
        (lambda record: record["sources"][0]["first"][0].__setitem__(2, 2), "no choice 2"),
        (lambda record: record["sources"][0]["first"][0].append(1), "longer"),
        (lambda record: record["sources"][0]["told"][0].__setitem__(3, -1), "epochs"),
        (lambda record: record["sources"][0].pop("told"), "told"),
        (lambda record: record.update(sources=5), "int"),
    ],
)
def test_a_damaged_record_is_refused_in_one_line(change, names):
    record, _ = recorded(space_of())
    change(record)
    with pytest.raises(RequestError, match="record of --start-from is damaged") as refused:
        Past(record, space_of())
    assert names in str(refused.value) and "--name" in str(refused.value)


def test_a_domain_keeps_its_values_as_cells():
    space = space_of(units=tune.lograndint(2, 200), z=tune.randn(), pair=tune.choice([(1, 2), None]))
    columns = columns_of(space)
    flat = {"x": 0.5, "y": 0.1, "act": "tanh", "units": 7, "z": -3.5, "pair": "branch1"}
    cells = json.loads(json.dumps(cells_of(columns, flat)))
    record = {"params": list(columns), "sources": [{"from": "", "note": "", "first": [cells], "told": []}]}
    assert Past(record, space).first == [flat] and set(columns) == set(dict(domains.leaves(space.encoded)))


def test_misordered_counts_the_pairs_that_a_prediction_orders_wrongly():
    values = np.array([1.0, 2.0, 3.0])
    assert misordered(np.array([1.0, 2.0, 3.0]), values) == 0
    assert misordered(np.array([3.0, 2.0, 1.0]), values) == 1
    assert misordered(np.array([1.0, 1.0, 1.0]), values) == 0.5
    assert misordered(np.array([1.0, 3.0, 2.0]), values) == pytest.approx(1 / 3)
    assert misordered(values, np.array([math.inf, math.inf, math.inf])) == 0.5
