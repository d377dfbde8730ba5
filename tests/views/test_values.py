"""Which value of each trial figures compare, and how axes and colours treat outliers and the best value."""

import math
from itertools import pairwise

import plotly.graph_objects as go
import pytest
from test_figures import decided, record, trial

from tuner.errors import RequestError
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.contour import draw_contour
from tuner.views.figures.curves import draw_curves, draw_history
from tuner.views.figures.importance import importance_of
from tuner.views.figures.parameters import draw_parallel, draw_slices, parallel_of
from tuner.views.figures.plot import VIRIDIS, clipped, color_axis, ticks_between
from tuner.views.figures.values import default, offered, value_of


def values(whole, choice=""):
    return draw_slices(whole, choice)["data"][0]["y"]


def pruned_search(num=24):
    """Each trial loses 1 per epoch; the lower half by `x` is pruned after epoch 1, the others train 4 epochs."""
    trials = []
    for n in range(num):
        is_pruned = n >= num // 2
        values = [10.0 + n - e for e in range(1 if is_pruned else 4)]
        call = decided(1, values[0], 15.0, "stop" if is_pruned else "continue")
        trials.append(trial(n, values, "pruned" if is_pruned else "completed", [call], x=float(n), y=n % 3))
    return record(*trials, max_epochs=4)


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
    pytest.importorskip("sklearn")
    whole = record(*trials, max_epochs=2)
    assert importance_of(whole).names[0] == "x" and importance_of(whole).values == "loss at epoch 1"
    assert importance_of(whole, "best").names[0] == "y"


def test_without_prunes_the_best_value_is_compared():
    whole = record(trial(0, [3.0, 1.0, 2.0], x=1), trial(1, [2.0], "failed", x=2), trial(2, [4.0, 3.0], x=3))
    assert default(whole) == "best" and values(whole) == [1.0, 2.0, 3.0]
    assert values(whole, "last") == [2.0, 2.0, 3.0]
    assert values(whole, "2") == [1.0, 3.0]  # one trial has no second epoch


def test_a_value_at_an_epoch_is_that_of_the_first_report_from_there_on():
    known = trial(0, [5.0, math.nan, 3.0])
    assert [value_of(known, "loss", "min", choice) for choice in ("1", "2", "3", "4", "last")] == [5, None, 3, None, 3]


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


def test_a_clipped_axis_says_so_and_can_be_shown_whole():
    trials = [trial(n, [2.0 + n / 10, 1.0 + n / 10], x=n) for n in range(10)]
    whole = record(*trials, trial(10, [1e6, 1e5], x=10))
    for figure in (draw_curves(whole), draw_slices(record(*trials * 2, *whole.trials))):
        axis = figure["layout"]["yaxis"]
        assert "clipped at " in axis["title"]["text"] and axis["range"][1] < 5
        assert figure["layout"]["meta"]["clipped"]["axis"] == "yaxis"
    assert "clipped" not in draw_curves(record(*trials))["layout"]["meta"]


def test_the_history_leaves_out_a_bad_first_value_that_lasted_shortly():
    trials = [trial(0, [1e9]), *(trial(n, [2.0 - n / 100] * 8) for n in range(1, 20))]
    layout = draw_history(record(*trials))["layout"]
    assert layout["yaxis"]["range"][1] < 3 and "clipped" in layout["yaxis"]["title"]["text"]
    assert layout["meta"]["text"].startswith("Best loss so far: 1.81, of trial 00019, found after 146 of 153 epochs")


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_scale_gets_lighter_evenly_so_near_the_best_looks_like_the_best():
    lightness = [116 * luminance(color) ** (1 / 3) - 16 for color in VIRIDIS]
    steps = [after - before for before, after in pairwise(lightness)]
    assert min(steps) > 0.6 * max(steps) > 0


@pytest.mark.parametrize(("mode", "best"), [("min", 0), ("max", -1)])
def test_the_best_end_of_the_scale_is_marked_and_outliers_share_the_worst_colour(mode, best):
    sign = 1 if mode == "min" else -1
    axis = color_axis([sign * n / 10 for n in range(20)] + [sign * 1e9], mode, "loss")
    bar = axis["colorbar"]
    assert bar["ticktext"][best].endswith("(best)") and bar["tickvals"][best] == 0.0
    assert sum("(best)" in text for text in bar["ticktext"]) == 1
    assert bar["ticktext"][-1 - best].endswith("or worse") and abs(bar["tickvals"][-1 - best]) == 1.9
    assert axis["reversescale"] is (mode == "max")


def test_every_figure_has_a_text_and_it_is_plotlys():
    for name, figure in all_figures(pruned_search()).items():
        go.Figure(figure)
        assert len(figure["layout"]["meta"]["text"]) > 30, name
    text = all_figures(pruned_search())["curves"]["layout"]["meta"]["text"]
    assert text == (
        "24 trials: 12 pruned, 12 completed. Best loss: 7, of trial 00000 at epoch 4. Pruned: 12 of 24 at rung 1."
    )


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 726855679.5, ["0", "1.817e+08", "3.634e+08", "5.451e+08", "7.269e+08"]),
        (726855679, 726855679.4, ["726855679", "726855679.1", "726855679.2", "726855679.3", "726855679.4"]),
        (0.5, 0.5, ["0.5"]),
        (-1e300, 1e300, ["-1e+300", "-5e+299", "0", "5e+299", "1e+300"]),
        (1.0, 1.0 + 2**-52, ["1"] * 5),
    ],
)
def test_ticks_have_as_few_digits_as_tell_them_apart(low, high, texts):
    assert ticks_between(low, high)[1] == texts
    bar = color_axis([low, high], "max", "loss")["colorbar"]["ticktext"]
    assert bar == [*texts[:-1], f"{texts[-1]} (best)"]


def test_each_numeric_axis_of_parallel_coordinates_has_texts_of_its_own():
    pairs = [(1.0, 0.123456789), (726855679.5, 726855679.5)]
    (trace,) = draw_parallel(record(*(trial(n, [loss], lr=lr) for n, (lr, loss) in enumerate(pairs))))["data"]
    for dimension in trace["dimensions"]:
        assert max(map(len, dimension["ticktext"])) <= 9 and dimension["tickvals"][-1] == 726855679.5
