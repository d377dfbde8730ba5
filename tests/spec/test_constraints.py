import math

import pytest

from tuner.errors import RequestError
from tuner.spec.constraints import Constraint, Point, aim_of, constraint_of
from tuner.spec.experiment import Experiment
from tuner.spec.space import Space

TWO = {"metric": ("accuracy", "latency_ms"), "mode": ("max", "min")}


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("size_mb <= 10", Constraint("size_mb", "<=", 10.0)),
        ("val/acc>=0.5", Constraint("val/acc", ">=", 0.5)),
        ("  a b <= -1e3 at start ", Constraint("a b", "<=", -1000.0, "start")),
        ("size_mb <= 10 at end", Constraint("size_mb", "<=", 10.0)),
    ],
)
def test_a_constraint_is_read_and_written(text, read):
    assert constraint_of(text) == read == constraint_of(str(read))


@pytest.mark.parametrize("text", ["size", "size < 10", "size <= ten", "size <= inf", "<= 10", "size <= 10 at once"])
def test_what_is_no_constraint_is_refused_with_how_to_write_it(text):
    with pytest.raises(RequestError, match="write it as 'size_mb <= 10'"):
        Experiment(constraint=(text,))


def test_an_excess_is_relative_to_the_limit():
    assert Constraint("size", "<=", 10).excess({"size": 15}) == 0.5
    assert Constraint("size", ">=", 10).excess({"size": 15}) == -0.5
    assert Constraint("size", "<=", 0).excess({"size": 3}) == 3
    assert Constraint("size", "<=", 10).excess({"size": math.nan}) == math.inf
    assert Constraint("size", "<=", 10).excess({}) is None
    assert Constraint("size", "<=", 10).broken_by({"size": 12.5}) == "size is 12.5, not <= 10"
    assert not Constraint("size", "<=", 10).broken_by({"size": 10})
    assert Constraint("size", "<=", 1e6).broken_by({"size": 1_000_001}) == "size is 1000001, not <= 1000000"


def test_what_breaks_no_constraint_is_better_and_of_two_that_do_the_smaller_violation():
    assert Point(0, (9, 9)).covers(Point(0.1, (1, 1))) and not Point(0.1, (1, 1)).covers(Point(0, (9, 9)))
    assert Point(0.1, (9, 9)).covers(Point(0.2, (1, 1)))
    assert Point(0, (1, 2)).covers(Point(0, (1, 2))) and not Point(0, (1, 2)).covers(Point(0, (2, 1)))


def improvements(aim, reports):
    best, found = math.inf, []
    for report in reports:
        improved, best = aim.improved(best, report)
        found.append(improved)
    return found


def test_a_report_improves_if_no_earlier_one_is_as_good_in_everything():
    one = aim_of("loss", "min", ())
    assert improvements(one, [{"loss": v} for v in (3, 2, 2, math.nan, 4, 1)]) == [
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    two = aim_of(*TWO.values(), ())
    assert two.improved(math.inf, {"accuracy": 0.5, "latency_ms": 3})[1] == [(0.0, (-0.5, 3))]
    assert type(two.improved(math.inf, {"accuracy": 0.5, "latency_ms": 3})[1][0]) is tuple  # for `torch.load`
    values = [(0.1, 5), (0.2, 6), (0.2, 6), (0.15, 7), (0.3, 4), (0.3, math.nan)]
    reports = [{"accuracy": a, "latency_ms": b} for a, b in values]
    assert improvements(two, reports) == [True, True, False, False, True, False]
    limited = aim_of("loss", "min", ("size <= 1",))
    sizes = [{"loss": 1, "size": 3}, {"loss": 5, "size": 2}, {"loss": 9, "size": 1}, {"loss": 0, "size": 2}]
    assert improvements(limited, sizes) == [True, True, True, False]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({**TWO, "mode": "max"}, "--mode max: --metric has 2; give one mode for each"),
        ({**TWO, "metric": ("a", "a")}, "--metric a a: names a metric twice"),
        ({**TWO, "mode": ("max", "least")}, "--mode least: must be one of min, max"),
        ({**TWO, "metric": ("accuracy", "")}, "--metric '': give the name of a reported metric"),
        ({**TWO, "searcher": "hyperopt"}, r"--searcher hyperopt: does not work with several metrics \(accuracy, lat"),
        ({**TWO, "scheduler": "median"}, "--scheduler median: .* give one of asha, asha-promotion, fifo"),
        ({**TWO, "confirm": 3}, "--confirm 3: does not work with several metrics .*; leave it out"),
        ({**TWO, "prune_by": "loss"}, "--prune-by loss: does not work with several metrics"),
        ({**TWO, "prior": ("lr=1",)}, "--prior lr=1: does not work with several metrics"),
        ({"searcher": "refine", "constraint": ("size <= 1",)}, "--searcher refine does not learn what breaks it"),
    ],
)
def test_what_does_not_work_with_several_metrics_or_a_constraint_is_refused_in_a_line(options, why):
    with pytest.raises(RequestError, match=why):
        Experiment(**options)


def test_one_metric_in_a_list_is_one_metric():
    e = Experiment(metric=("loss",), mode=["min"])
    assert (e.metric, e.mode, e.aim.simple) == ("loss", "min", True)


def test_a_space_declares_metrics_and_constraints():
    def train(config):
        return 1

    from ray import tune

    limits = {"size_mb": "<= 10", "latency_ms": [">= 1", "<= 5 at start"]}
    space = Space(params={"x": tune.uniform(0, 1)}, train=train, constraints=limits, **TWO)
    texts = ("size_mb <= 10", "latency_ms >= 1", "latency_ms <= 5 at start")
    assert space.options.constraint == texts and space.options.aim == aim_of(*TWO.values(), texts)
    with pytest.raises(ValueError, match="constraints=5: must be a dict"):
        Space(params={"x": tune.uniform(0, 1)}, train=train, constraints=5)
    with pytest.raises(ValueError, match="constraint 'size_mb 10': write it as 'size_mb <= 10'"):
        Space(params={"x": tune.uniform(0, 1)}, train=train, constraints={"size_mb": 10})
