"""Figures of parameters: which values they compare, axes without outliers, contour and importance."""

import json
import math
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_figures import branched, decided, pruned_search, record, trial

from tuner.errors import RequestError
from tuner.record.texts import MAX_NAME_CHARS, flat
from tuner.spec.experiment import Experiment
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.importance import Importance, draw_importance, importance_of
from tuner.views.figures.parameters import (
    MAX_AXES,
    REACH,
    draw_contour,
    draw_parallel,
    draw_slices,
    parallel_of,
    parameters_of,
    smoothed_grid,
)
from tuner.views.figures.plot import clipped, color_axis, ticks_between
from tuner.views.figures.values import default, offered, value_of


def values(whole, choice=""):
    return draw_slices(whole, choice)["data"][0]["y"]


def test_a_search_that_pruned_compares_values_of_one_epoch_everywhere():
    whole = pruned_search()
    assert (offered(whole), default(whole)) == (["best", "last", "1"], "1")
    at_one = [10.0 + n for n in range(24)]
    surface, dots = draw_contour(whole, "x", "y")["data"]
    assert values(whole) == parallel_of(whole).values == dots["marker"]["color"] == at_one
    title = draw_slices(whole)["layout"]["yaxis"]["title"]["text"]
    dimensions = draw_parallel(whole)["data"][0]["dimensions"]
    assert title == dimensions[-1]["label"] == surface["colorbar"]["title"]["text"] == "loss at epoch 1"
    assert values(whole, "best")[:2] == [7.0, 8.0] and values(whole, "best")[-1] == 33.0


@pytest.mark.parametrize("num", [9, 10, 11, 20, 30])
def test_the_compared_epoch_is_the_last_one_that_nine_of_ten_trials_reached(num):
    short = num // 10  # so many of all may be shorter
    for fewer, epoch in ((short, "4"), (short + 1, "1")):
        trials = [trial(n, [3.0, 2.0, 1.0, 0.0], x=n) for n in range(num - fewer)]
        trials += [trial(num - 1 - n, [9.0], "pruned", x=n) for n in range(fewer)]
        assert default(record(*trials, max_epochs=4)) == ("best" if not fewer else epoch)


def test_importance_compares_values_of_one_epoch():
    """The value at epoch 1 follows x alone; trials with a high y, and only those, train on and get far better."""
    trials = []
    for n in range(60):
        x, y = (n * 7 % 60) / 60, (n * 11 % 60) / 60
        values = [x] if y < 0.5 else [x, x - 5 * y]
        trials.append(trial(n, values, "pruned" if y < 0.5 else "completed", [decided(1, x, 0.5)], x=x, y=y))
    whole = record(*trials, max_epochs=2)
    assert importance_of(whole).names[0] == "x" and importance_of(whole).values == "loss at epoch 1"
    assert importance_of(whole, "best").names[0] == "y"


def test_without_prunes_the_best_value_is_compared():
    whole = record(trial(0, [3.0, 1.0, 2.0], x=1), trial(1, [2.0], "failed", x=2), trial(2, [4.0, 3.0], x=3))
    assert default(whole) == "best" and values(whole) == [1.0, 2.0, 3.0]
    assert values(whole, "last") == [2.0, 2.0, 3.0]
    assert values(whole, "2") == [1.0, 3.0]  # one trial has no second epoch


def test_a_value_at_an_epoch_is_that_of_the_first_report_from_there_on():
    known, aim = trial(0, [5.0, math.nan, 3.0]), Experiment().aim
    assert [value_of(known, aim, choice) for choice in ("1", "2", "3", "4", "last")] == [
        5,
        None,
        3,
        None,
        3,
    ]
    rare = replace(known, reports=known.reports[::2])  # at epochs 1 and 3
    assert [value_of(rare, aim, choice) for choice in ("1", "2", "3", "4")] == [5, 3, 3, None]


@pytest.mark.parametrize("choice", ["worst", "-1", "1.5", "\u0663"])
def test_a_choice_that_there_is_not_is_refused(choice):
    with pytest.raises(RequestError, match="must be best, last or an epoch"):
        draw_slices(pruned_search(), choice)


@pytest.mark.parametrize(("mode", "sign"), [("min", 1), ("max", -1)])
def test_an_axis_leaves_out_outliers_on_the_worst_side_only(mode, sign):
    usual = [sign * (1 + n / 20) for n in range(20)]
    within = clipped([*usual, sign * 1e30, sign * 500.0], mode)
    assert within.end == usual[-1]
    assert within.low < min(usual) and max(usual) < within.high
    assert clipped([*usual, sign * -50.0], mode) is None  # far better than all others: never left out
    assert clipped(usual, mode) is None and clipped([sign * 1.0, sign * 1e9], mode) is None
    assert clipped([sign * 1.0] * 30 + [sign * 2.0], mode) is None


@pytest.mark.parametrize(("mode", "best"), [("min", 0), ("max", -1)])
def test_the_best_end_of_the_scale_is_marked_and_outliers_share_the_worst_colour(mode, best):
    sign = 1 if mode == "min" else -1
    axis = color_axis([sign * n / 10 for n in range(20)] + [sign * 1e9], mode, "loss")
    bar = axis["colorbar"]
    assert bar["ticktext"][best].endswith("(best)") and bar["tickvals"][best] == 0.0
    assert sum("(best)" in text for text in bar["ticktext"]) == 1
    assert bar["ticktext"][-1 - best].endswith("or worse") and abs(bar["tickvals"][-1 - best]) == 1.9
    assert axis["reversescale"] is (mode == "max")


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 726855679.5, ["0", "2e+08", "4e+08", "6e+08", "7.27e+08"]),
        (726855679, 726855679.4, ["726855679", "726855679.1", "726855679.2", "726855679.3", "726855679.4"]),
        (0.5, 0.5, ["0.5"]),
        (-1.379e-05, 1.0, ["0", "0.25", "0.5", "0.75", "1"]),
        (0.0123, 0.0987, ["0.0123", "0.04", "0.06", "0.08", "0.0987"]),
        (0.24, 1.02, ["0.24", "0.4", "0.6", "0.8", "1.02"]),  # 0.2 and 1 would stand too close to the ends
        (-1e300, 1e300, ["-1e+300", "-5e+299", "0", "5e+299", "1e+300"]),
        (-1.7e308, 1.7e308, ["-1.7e+308", "1.7e+308"]),  # their distance is infinite
        (0.0, 5e-324, ["0", "4.941e-324"]),
        (1.0, 1.0 + 2**-52, ["1", "1.0000000000000002"]),
    ],
)
def test_ticks_are_round_between_both_ends_and_have_as_few_digits_as_tell_them_apart(low, high, texts):
    ticks, shown = ticks_between(low, high)
    assert shown == texts and (ticks[0], ticks[-1]) == (low, high) and ticks == sorted(ticks)
    bar = color_axis([low, high], "max", "loss")["colorbar"]["ticktext"]
    assert bar == [*texts[:-1], f"{texts[-1]} (best)"]


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_ticks_of_any_range_have_its_ends_and_differ_in_their_texts(one, other):
    low, high = sorted((one, other))
    ticks, texts = ticks_between(low, high)
    assert (ticks[0], ticks[-1]) == (low, high) and ticks == sorted(ticks) and len(ticks) <= 6
    assert len(set(texts)) == len(texts) == len(ticks)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_many_trials_a_sample_with_the_best_and_the_worst_is_drawn_and_said_to_be_one(monkeypatch, mode):
    monkeypatch.setattr("tuner.views.figures.parameters.MAX_DRAWN", 25)
    wide = [trial(n, [100.0 + n * 37 % 101], x=float(n * 7 % 101), y=n % 3) for n in range(101)]  # each value once
    whole = record(*wide, mode=mode)
    drawn = parallel_of(whole)
    assert drawn.total == 101 and {min(drawn.values), max(drawn.values)} == {100.0, 200.0} and len(drawn.trials) <= 28
    said = f"{len(drawn.trials)} of 101 trials (an even sample, with the best)"
    best = {"min": "100", "max": "200"}[mode]
    texts = [draw(whole)["layout"]["meta"]["text"] for draw in (draw_parallel, draw_slices)]
    assert texts[0].startswith(f"{said} as lines") and texts[0].endswith(f"The best line is at {best}.")
    assert texts[1].startswith(f"{said}: best loss against x, y. The best trial, {whole.best()[0].id}, is at x ")
    contour = draw_contour(whole, "x", "y")["layout"]["meta"]["text"]
    assert f"{len(drawn.trials)} trials (of a sample of {len(drawn.trials)} of 101)" in contour and best in contour
    importance = draw_importance(importance_of(whole))
    assert f"{len(drawn.trials)} trials (an even sample of 101)" in importance["layout"]["meta"]["text"]
    few = draw_parallel(record(*wide[:25], mode=mode))["layout"]["meta"]["text"]
    assert few.startswith("25 trials as lines")


def test_parallel_axes_follow_what_was_declared():
    params = {"lr": {"kind": "loguniform"}, "act": {"kind": "choice"}, "width": {"kind": "choice"}}
    trials = [
        trial(0, [1.0], lr=0.001, act="relu", width=8, drop=0.1, same=1),
        trial(1, [2.0], lr=0.1, act="gelu", width=16, drop=0.2, same=1),
        trial(2, [3.0], lr=0.01, act="<b>", width=128, same=1),
        trial(3, [math.nan], lr=0.5, act="none", width=4, drop=0.3, same=2),
    ]
    axes = {axis.name: axis for axis in parallel_of(record(*trials, params=params)).axes}
    assert list(axes) == ["lr", "act", "width", "drop"]
    assert axes["lr"].values == pytest.approx([-3, -1, -2]) and "0.01" in axes["lr"].texts
    assert axes["width"].texts == ["8", "16", "128"] and axes["width"].values == [0, 1, 2]
    assert axes["drop"].values == [0.1, 0.2, None] and axes["drop"].texts == []
    figure = all_figures(record(*trials, params=params))["parallel"]
    go.Figure(figure)
    assert "<b>" not in json.dumps(figure)


def test_a_trial_without_a_conditional_parameter_is_at_a_tick_of_its_own_and_log_axes_stay():
    whole = branched()
    axes = {axis.name: axis for axis in parallel_of(whole).axes}
    beta, momentum = axes["optimizer/beta"], axes["optimizer/momentum"]
    assert beta.values[1::2] == [None] * 6 and momentum.values[::2] == [None] * 6
    assert beta.values[:5:2] == pytest.approx([-1, -3, -2]) and beta.texts == ["0.001", "0.01", "0.1"]
    assert momentum.texts == [] and momentum.values[1] == pytest.approx(1 / 12)
    assert axes["optimizer/lr"].texts == ["0.0001", "0.001", "0.01", "0.1"]
    assert axes["optimizer/warm"].texts == ["None", "on"] and axes["optimizer/warm"].values[1] is None
    figures = all_figures(whole)
    dimensions = {each["label"]: each for each in figures["parallel"]["data"][0]["dimensions"]}
    for name in ("optimizer/beta", "optimizer/momentum", "optimizer/warm"):
        drawn = dimensions[name]
        assert drawn["ticktext"][0] == "(none)" and drawn["tickvals"][0] == drawn["range"][0] < drawn["tickvals"][1]
        assert drawn["values"].count(drawn["tickvals"][0]) == 6
    assert "(none)" not in dimensions["optimizer/kind"]["ticktext"]
    assert sum(None in each["x"] for each in figures["slices"]["data"]) == 3


def test_names_of_a_nested_setting_are_short_and_few():
    config = {"x" * 1000 + str(n): {f"{n}_{i}": i for i in range(100)} for n in range(20)}
    assert max(map(len, flat(config))) <= MAX_NAME_CHARS <= 200
    wide = trial(0, [1.0], **{f"a{n}": {str(i): i for i in range(100)} for n in range(20)})
    assert len(parameters_of(wide)) == MAX_AXES < 2000
    deep = {"end": 1}
    for _ in range(300):
        deep = {"a": deep, "b": 2}
    assert len(flat(deep)) == 100 + 1 and all(len(name) <= MAX_NAME_CHARS for name in flat(deep))


def test_at_a_lone_trial_the_value_is_its_own_and_far_away_there_is_none():
    ticks = [float(at) for at in np.linspace(0, 1, 11)]
    grid = smoothed_grid([0.0, 1.0], [0.0, 1.0], [3.0, 5.0], ticks, ticks)
    assert grid[0][0] == pytest.approx(3.0) and grid[10][10] == pytest.approx(5.0)
    assert grid[0][10] is None and grid[5][5] is None
    near = [(i, j) for i in range(11) for j in range(11) if grid[i][j] is not None]
    assert all(min(math.hypot(i, j), math.hypot(10 - i, 10 - j)) / 10 <= REACH + 1e-9 for i, j in near)
    same = smoothed_grid([0.0, 0.0], [0.0, 0.0], [1.0, 2.0], [0.0, 1.0], [0.0, 1.0])
    assert same[0][0] == pytest.approx(1.5)  # two trials at one place are their mean


def test_trials_without_a_finite_value_are_left_out_a_name_is_mended_and_one_value_for_all_is_no_axis():
    whole = record(
        *(trial(n, [float(n)], width=n, depth=-n, same=1) for n in range(5)),
        trial(5, [math.nan], width=9, depth=9, same=1),
    )
    figure = draw_contour(whole, "width", "depth")
    go.Figure(figure)
    surface, dots = figure["data"]
    assert dots["x"] == dots["marker"]["color"] == [0, 1, 2, 3, 4]
    assert len(surface["z"]) == len(surface["y"]) and len(surface["z"][0]) == len(surface["x"])
    with pytest.raises(RequestError, match="no parameter 'widht'.*did you mean 'width'"):
        draw_contour(whole, "widht", "depth")
    with pytest.raises(RequestError, match="no parameter 'same'"):
        draw_contour(whole, "width", "same")


def test_what_the_value_follows_comes_first_and_noise_is_near_zero():
    stream = np.random.default_rng(0)
    settings = [{"noise": float(a), "lr": float(b)} for a, b in stream.random((60, 2))]
    importance = importance_of(record(*(trial(n, [s["lr"] ** 2], **s) for n, s in enumerate(settings))))
    assert importance.names == ["lr", "noise"] and importance.trials == 60
    assert importance.explained > 0.8 and importance.means[0] > 10 * abs(importance.means[1])
    assert draw_importance(importance)["data"][0]["y"] == ["noise", "lr"]  # Plotly draws the last on top


def test_values_are_compared_by_rank_so_one_that_exploded_changes_little():
    trials = [trial(n, [float(n)], x=n, y=n % 3) for n in range(20)]
    calm = importance_of(record(*trials))
    wild = importance_of(record(*trials[:-1], trial(19, [1e30], x=19, y=1)))
    assert calm.names == wild.names and calm.means == pytest.approx(wild.means)
    assert importance_of(record(*trials)) == calm  # the same record gives the same figure


@pytest.mark.parametrize(
    ("trials", "said"),
    [
        ([trial(n, [float(n)], x=n) for n in range(10)], "at least 20 trials.*here 10 trials have"),
        ([trial(n, [float(n)], x=1) for n in range(20)], "at least 20 trials with a value, and a parameter"),
        ([trial(n, [math.nan], x=n) for n in range(20)], "here 0 trials have a value"),
        ([], "here 0 trials have a value"),
        ([trial(n, [1.0], x=n) for n in range(30)], "values that differ; all 30 trials have 1"),
    ],
)
def test_too_little_to_tell_is_refused(trials, said):
    with pytest.raises(RequestError, match=said):
        importance_of(record(*trials))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("num", [20, 21, 40])
def test_noise_gives_a_sentence_and_no_bars_and_no_warning(num):
    stream = np.random.default_rng(1)
    found = importance_of(record(*(trial(n, [float(stream.random())], x=n, y=(n * 7) % 11) for n in range(num))))
    figure = draw_importance(found)
    go.Figure(figure)
    assert found.explained <= 0 and figure["data"] == []
    assert figure["layout"]["annotations"][0]["text"].startswith("Nothing can be read from these")
    undefined = draw_importance(Importance(["x"], [math.nan], [math.nan], math.nan, 10))
    assert undefined["data"] == [] and "nan" not in undefined["layout"]["meta"]["text"]
