import itertools
import random

import numpy as np
import pytest

from tuner.core.rules.asha import Asha
from tuner.core.rules.order import Order, best_first, fronts, hypervolume, knee, pareto
from tuner.core.rules.promotion import Promotion
from tuner.spec.constraints import Point
from tuner.spec.experiment import Experiment

TWO = {"metric": ("accuracy", "latency_ms"), "mode": ("max", "min"), "max_epochs": 4}


def better(a, b):
    return all(x <= y for x, y in zip(a, b, strict=True)) and tuple(a) != tuple(b)


@pytest.mark.parametrize(("metrics", "seed"), itertools.product((1, 2, 3), range(5)))
def test_fronts_are_those_of_the_definition(metrics, seed):
    losses = np.random.default_rng(seed).integers(0, 6, (40, metrics)).astype(float)
    left, expected = set(range(40)), []
    while left:
        expected.append({i for i in left if not any(better(losses[j], losses[i]) for j in left)})
        left -= expected[-1]
    assert [set(front) for front in fronts(losses)] == expected


@pytest.mark.parametrize(("metrics", "seed"), itertools.product((1, 2, 3), range(3)))
def test_the_hypervolume_is_the_share_of_random_points_that_are_covered(metrics, seed):
    stream = np.random.default_rng(seed)
    losses, drawn = stream.random((15, metrics)), stream.random((40_000, metrics))
    covered = (losses[None] <= drawn[:, None]).all(axis=2).any(axis=1).mean()
    assert hypervolume(losses, np.ones(metrics)) == pytest.approx(covered, abs=0.01)
    assert hypervolume(np.ones((3, metrics)), np.ones(metrics)) == 0


def test_the_knee_bulges_most_towards_the_best_values():
    assert knee(np.array([[0.0, 10.0], [1.0, 2.0], [5.0, 1.0], [10.0, 0.0]])) == 1
    assert knee(np.array([[0.0, 1.0], [1.0, 0.0]])) == 0 == knee(np.array([[3.0, 3.0]]))


def test_the_order_is_front_by_front_and_first_what_breaks_no_constraint():
    line = [Point(0.0, (float(x), 10.0 - x)) for x in range(11)]
    behind, broken = Point(0.0, (11.0, 11.0)), [Point(0.5, (0.0, 0.0)), Point(0.2, (9.0, 9.0))]
    order = best_first([*broken, behind, *line])
    assert order[-3:] == [2, 1, 0] and {order[1], order[2]} == {3, 13}  # the ends of the front after its knee
    assert pareto([*broken, behind, *line]) == [order[0], *(i for i in range(3, 14) if i != order[0])]
    assert pareto(broken) == [1] and pareto([]) == []
    assert pareto([line[3], line[3], line[5]]) in ([0, 2], [2, 0])  # of equal points, the first


@pytest.mark.parametrize(("metrics", "most"), itertools.product((1, 2, 3), (4, 1000)))
def test_points_that_come_one_by_one_have_the_places_of_the_whole_order(metrics, most):
    losses = np.random.default_rng(metrics).integers(0, most, (60, metrics)).astype(float)
    order, values = Order(metrics), [tuple(each) for each in losses]
    for number, each in enumerate(values):
        assert order.add(each) == number and len(order) == number + 1
        ranked = best_first([Point(0.0, value) for value in values[: number + 1]])
        first = [values[at] for at in ranked].index  # equal points have the place of the first of them
        assert [order.place(at) for at in range(number + 1)] == [1 + first(value) for value in values[: number + 1]]
        assert order.first(range(number + 1)) == (ranked[0], 0)
        assert order.first({ranked[-1]}) == (ranked[-1], number)


def test_an_arrival_at_a_rung_does_not_sort_all_its_trials(monkeypatch):
    stream, sort, sizes = random.Random(0), np.lexsort, []
    monkeypatch.setattr(np, "lexsort", lambda keys: sizes.append(len(keys[0])) or sort(keys))
    rules = [Asha(Experiment(scheduler="asha", **TWO), 1), Promotion(Experiment(scheduler="asha-promotion", **TWO), 1)]
    for trial, rule in itertools.product(range(300), rules):
        rule.judge(trial, 1, (stream.random(), stream.random()))
    assert 300 < sum(sizes) < 300 * 300 / 2  # with both rules; to sort all at each arrival takes at least twice that


def test_asha_stops_no_trial_that_equals_the_best():
    rule = Asha(Experiment(scheduler="asha", **TWO), 1)
    assert {rule.judge(trial, 1, (0.5, 5.0))[0].action for trial in range(5)} == {"continue"}


def test_asha_stops_the_worse_ranks_and_says_them():
    rule = Asha(Experiment(scheduler="asha", **TWO), 1)
    judge = lambda trial, *values: rule.judge(trial, 1, values)[0]  # noqa: E731
    assert judge(0, 0.5, 5.0).reason == "no other trial to compare with at rung 1"
    assert judge(1, 0.4, 6.0)[:2] == (
        "stop", "rank 2 of the 2 trials recorded at rung 1: accuracy 0.4, latency_ms 6; rank 1 or better continues"
    )  # fmt: skip
    assert judge(2, 0.6, 4.0).action == "continue"
    assert judge(3, 0.9, 9.0).action == "continue"  # no other trial is better in both
    assert judge(4, 0.1, 9.0).action == "stop"
    assert rule.judge(2, 4, (0.7, 4.0))[0].action == "continue"  # nothing is stopped at the last epoch


def test_with_one_good_metric_asha_decides_as_with_that_metric_alone():
    stream, one = random.Random(0), Experiment(scheduler="asha", metric="accuracy", mode="max", max_epochs=4)
    several, single = Asha(Experiment(scheduler="asha", **TWO), 1), Asha(one, 1)
    for trial in range(50):
        value = stream.random()
        decided = several.judge(trial, 1, (value, 7.0))[0].action
        alone = single.judge(trial, 1, value)[0].action
        assert decided == alone or trial % 2 == 0  # of an even number, the cutoff lies between two values


def test_promotion_pauses_the_worse_ranks_and_promotes_the_best():
    rule = Promotion(Experiment(scheduler="asha-promotion", **TWO), 1)
    first, none = rule.judge(0, 1, (0.5, 5.0))
    assert (first.action, none, first.cutoff) == ("pause", [], None)
    second, _ = rule.judge(1, 1, (0.6, 4.0))
    assert second.action == "continue"
    assert second.reason == (
        "rank 1 of the 2 trials there (accuracy 0.6, latency_ms 4) is among the best 1/2 of the 2 trials at rung 1"
    )
    third, _ = rule.judge(2, 1, (0.1, 9.0))
    assert third.action == "pause" and third.reason.endswith(
        "of the trials there: rank 3 of the 3 trials there (accuracy 0.1, latency_ms 9)"
    )
    fourth, promoted = rule.judge(3, 1, (0.05, 9.5))
    assert fourth.action == "pause" and [trial for trial, _ in promoted] == [0]
    assert rule.ended(1, 4, (0.7, 4.0)) == [] and [each.action for _, each in rule.idle()] == ["stop", "stop"]
