"""The map of where trials fail: how each one failed, the two parameters, and the region in words."""

import math
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from journals import folding, ruled
from test_figures import record, trial

from tuner.views.figures.failing import draw_failing, failure_of

DIVERGED = ruled(1, None, None, math.nan, None, 0, "stop", "diverged")


def text_of(whole):
    return draw_failing(whole)["layout"]["meta"]["text"]


def search(fails, num=40, **values):
    """Trials with parameters that `values` gives by the trial's number (None = absent); those in `fails` fail."""
    known = {"constant": lambda n: 1, **values}
    configs = [{name: value for name, of in known.items() if (value := of(n)) is not None} for n in range(num)]
    ends = ["failed" if fails(n) else "completed" for n in range(num)]
    return record(*(trial(n, [1.0], ends[n], **configs[n]) for n in range(num)))


def memory_search():
    """Trials with a width of 512 or more and a batch of 64 or more run out of memory; one in ten others diverges."""
    trials = []
    for n in range(40):
        config = {"width": 2 ** (5 + n % 7), "batch": 2 ** (4 + n // 7 % 6), "lr": 0.1 * (n * 11 % 40)}
        if config["width"] >= 512 and config["batch"] >= 64:
            trials.append(replace(trial(n, [], "failed", **config), failure="oom"))
        elif n % 10 == 0:
            trials.append(trial(n, [math.nan], "pruned", [DIVERGED], **config))
        else:
            trials.append(trial(n, [1.0 + n], **config))
    return record(*trials)


def test_the_map_shows_how_trials_failed_and_names_the_region():
    figure, whole = draw_failing(memory_search()), memory_search()
    go.Figure(figure)
    shown = {trace["name"]: len(trace["x"]) for trace in figure["data"]}
    assert shown == {"did not fail": 27, "ran out of memory": 10, "diverged": 3}
    assert {figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")} == {"width", "batch"}
    assert text_of(whole) == (
        "13 of 40 ended trials failed, diverged or broke a constraint: 3 diverged, 10 ran out of memory. "
        "10 of the 10 trials where width is at least 512 and batch is at least 64 ran out of memory, and 0 of the 30 "
        "others."
    )


@pytest.mark.parametrize(
    ("fails", "values", "region"),
    [
        (lambda n: n % 2, {"kind": lambda n: "ab"[n % 2]}, "20 of the 20 trials where kind is b"),
        (lambda n: n % 4 == 1, {"x": lambda n: n % 4}, "10 of the 10 trials where x is 1"),
        (lambda n: n % 9 in (3, 4), {"x": lambda n: n % 9 / 10}, "9 of the 9 trials where x is 0.3 to 0.4"),
        (lambda n: n >= 30, {"x": lambda n: 1e38 * n**2}, "10 of the 10 trials where x is at least 9e+40"),
        (lambda n: n >= 30, {"x": lambda n: 125_886 + n}, "10 of the 10 trials where x is at least 125916"),
        (lambda n: n % 3 == 0, {"x": lambda n: None if n % 3 else 0.9 + n}, "14 of the 14 trials where x is given"),
        (lambda n: n % 3 == 0, {"x": lambda n: n if n % 3 else None}, "14 of the 14 trials where x is (none)"),
        # In the order of texts, 16 comes before 8.
        (lambda n: n % 3 == 0, {"x": lambda n: ("8", "16", "32")[n % 3]}, "14 of the 14 trials where x is 8"),
        (lambda n: n < 20, {"x": lambda n: f"{'ab'[n >= 20]}{n}"}, "20 of the 20 trials where x is one of 20 values"),
        # 28 of 40 fail: more than two thirds.
        (lambda n: n % 10 < 7, {"x": lambda n: n % 10}, "28 of the 28 trials where x is at most 6"),
    ],
)  # fmt: skip
def test_the_region_in_words(fails, values, region):
    whole = search(fails, **values)
    others = sum(not fails(n) for n in range(40))
    assert text_of(whole).endswith(f". {region} raised an error, and 0 of the {others} others.")


@pytest.mark.parametrize(
    ("fails", "values"),
    [
        (lambda n: n > 0, {"x": lambda n: int(n > 36)}),  # three of three do not outweigh 36 of 37
        (lambda n: n % 2, {"x": lambda n: n // 2}),
        (lambda n: n in (3, 7, 21), {"x": lambda n: n * 7 % 40, "y": lambda n: n * 11 % 40}),  # by chance
    ],
)
def test_no_region_is_named_by_chance(fails, values):
    assert text_of(search(fails, **values)).endswith("No part of the space stands out.")


def test_each_way_to_fail_has_its_region():
    diverged = [trial(n, [math.nan], "pruned", [DIVERGED], x=n) for n in range(5)]
    others = [trial(n, [1.0], "failed" if n > 30 else "completed", x=n) for n in range(5, 40)]
    assert text_of(record(*diverged, *others)).endswith(
        "9 of the 9 trials where x is at least 31 raised an error, and 0 of the 31 others. 5 of the 5 trials where x "
        "is at most 4 diverged, and 0 of the 35 others."
    )


def test_one_parameter_is_drawn_against_the_number_of_the_trial_and_few_failures_are_not_drawn():
    layout = draw_failing(search(lambda n: n % 2, x=lambda n: n % 2))["layout"]
    assert layout["yaxis"]["title"]["text"] == "number of the ended trial"
    for fails in (lambda n: n < 2, lambda n: True, lambda n: False):
        assert draw_failing(search(fails, x=lambda n: n)) is None
    assert draw_failing(search(lambda n: n < 9, x=lambda n: 1)) is None  # no parameter differs
    ended, running = search(lambda n: n < 3, 6, x=lambda n: n), [trial(n, [1.0], "running", x=n) for n in range(3)]
    assert draw_failing(record(*ended.trials, *running))["data"][0]["x"] == [3, 4, 5]


def test_of_many_trials_a_sample_is_drawn_and_said(monkeypatch):
    monkeypatch.setattr("tuner.views.figures.failing.MAX_DRAWN", 10)
    figure = draw_failing(search(lambda n: n < 12, x=lambda n: n))
    assert [len(trace["x"]) for trace in figure["data"]] == [10, 6]
    assert figure["layout"]["meta"]["text"].endswith("and 0 of the 28 others. The figure shows 16 of the ended trials.")


def test_how_a_trial_failed():
    aim = record(constraint=("loss <= 2",), metric="accuracy", mode="max").experiment.aim
    named = {
        "oom": "ran out of memory",
        "worker_lost": "lost its worker",
        "user": "raised an error",
        "": "raised an error",
    }
    failed = {kind: replace(trial(0, [1.0], "failed"), failure=kind) for kind in named}
    assert {kind: failure_of(each, aim) for kind, each in failed.items()} == named
    assert failure_of(trial(0, [1.0, 3.0]), aim) == "broke a constraint"
    assert failure_of(trial(0, [3.0, 1.0]), aim) == failure_of(trial(0, []), aim) == ""
    pruned = ruled(1, 1, 0, 1.0, 0.5, 4, "stop", "worse")
    assert failure_of(trial(0, [1.0], "pruned", [pruned]), aim) == ""
    assert failure_of(trial(0, [math.nan], "pruned", [DIVERGED]), aim) == "diverged"


def test_a_retried_trial_that_completed_did_not_fail():
    failed = {
        "event": "trial_failed",
        "trial": "0",
        "error": "e",
        "kind": "worker_lost",
        "will_retry": True,
        "time": 2.0,
    }
    events = [
        {"event": "trial_suggested", "trial": "0", "config": {}, "time": 1.0},
        {"event": "trial_started", "trial": "0", "resources": {}, "node": "", "time": 1.5},
        {**failed, "time": 2.0},
        {"event": "trial_ended", "trial": "0", "status": "completed", "reason": "", "time": 3.0},
    ]
    (made,) = folding(events).records()
    assert made.failure == "worker_lost" and failure_of(made, record().experiment.aim) == ""
