"""Figures of records: what is shown, checked as data and as Plotly's own schema; curves, history and rungs."""

import json
import math
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from journals import ruled

from tuner.core.events import DIVERGED, Report
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.spec.experiment import Experiment
from tuner.views.figures.answer import draw_confirmed, draw_front
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.curves import draw_curves, draw_history, draw_whatif
from tuner.views.figures.importance import Importance, draw_importance
from tuner.views.figures.parameters import draw_contour, draw_slices
from tuner.views.figures.plot import BEYOND
from tuner.views.figures.rung_values import MAX_RUNG_DOTS, draw_rung_values
from tuner.views.one_trial import draw_metrics
from tuner.views.tables import rung_rows
from tuner.views.whatif import what_if


def trial(number, values, status="completed", decisions=(), **config):
    reports = tuple(Report(e, {"loss": v}, None, 10 * number + e, 10 * number + e) for e, v in enumerate(values, 1))
    reason = DIVERGED if status == "pruned" and values[-1] != values[-1] else "r"
    return TrialRecord(f"{number:05}", config or {"lr": 0.1}, status, reason, reports, tuple(decisions))


def decided(epoch, value, cutoff, action="stop", rung=None, bracket=0, recorded=1):
    return ruled(epoch, rung or epoch, bracket, value, cutoff, recorded, action, "why")


def record(*trials, params=None, **options):
    experiment = Experiment(**{"max_epochs": 8, "name": "e", "results": "/nowhere", **options})
    return ExperimentRecord(experiment, {"space": {"params": params or {}}}, trials, "finished")


@pytest.fixture
def searched():
    return record(
        trial(0, [3.0, 2.0, 1.0], decisions=[decided(1, 3.0, None, "continue", recorded=0)]),
        trial(1, [4.0], "pruned", [decided(1, 4.0, 3.9)]),
        trial(2, [3.5, 3.0], "pruned", [decided(1, 3.5, 3.6, "continue"), decided(2, 3.0, 2.0)]),
        trial(3, [2.5, math.nan], "pruned", [ruled(2, None, None, math.nan, None, 0, "stop", "diverged")]),
    )


def pruned_search(num=24):
    """Each trial loses 1 per epoch; the lower half by `x` is pruned after epoch 1, the others train 4 epochs."""
    trials = []
    for n in range(num):
        is_pruned = n >= num // 2
        values = [10.0 + n - e for e in range(1 if is_pruned else 4)]
        call = decided(1, values[0], 15.0, "stop" if is_pruned else "continue")
        trials.append(trial(n, values, "pruned" if is_pruned else "completed", [call], x=float(n), y=n % 3))
    return record(*trials, max_epochs=4)


def branched(num=12):
    """Trials of a conditional space: `momentum` and `beta` exclude each other, `lr` has a range in each branch."""
    trials = []
    for n in range(num):
        own = {"momentum": n / num} if n % 2 else {"beta": 10.0 ** -(1 + n % 3), "warm": None if n % 4 else "on"}
        optimizer = {"kind": "sgd" if n % 2 else "adam", "lr": 10.0 ** -(1 + n % 4), **own}
        trials.append(trial(n, [float(n)], optimizer=optimizer))
    lrs = [{"kind": "loguniform", "lower": 1e-4, "upper": 0.1}, {"kind": "choice", "values": [0.1]}]
    params = {
        "optimizer/kind": {"kind": "choice", "values": ["sgd", "adam"]},
        "optimizer/momentum": {"kind": "uniform", "lower": 0, "upper": 1},
        "optimizer/beta": {"kind": "loguniform", "lower": 1e-4, "upper": 0.1},
        "optimizer/lr": {"kind": "conditional", "branches": lrs},
    }
    return record(*trials, params=params)


def test_every_figure_has_a_text_and_is_plotlys_and_strict_json(searched):
    # The one parameter is the same in all.
    assert set(all_figures(searched)) == {"best", "curves", "rung_values", "history"}
    assert all_figures(record()) == all_figures(record(trial(0, [math.nan], "pruned"), trial(1, [], "failed"))) == {}
    for whole in (searched, pruned_search(), branched()):
        for name, figure in all_figures(whole).items():
            go.Figure(figure)
            json.dumps(figure, allow_nan=False)
            assert len(figure["layout"]["meta"]["text"]) > 30, name
    text = all_figures(pruned_search())["curves"]["layout"]["meta"]["text"]
    assert text == (
        "24 trials: 12 pruned, 12 completed. Best loss: 7, of trial 00000 at epoch 4. Pruned: 12 of 24 at rung 1."
    )


def trials_in(figure):
    return {trial for trace in figure["data"] for trial in trace.get("customdata", [])} - {None}


def test_every_point_and_bar_of_a_trial_has_the_trials_id():
    trials = [
        replace(trial(n, [3.0 + n, 2.0 + n], "pruned" if n > 3 else "completed", lr=n, b=n % 3), spans=((n, n + 2.0),))
        for n in range(5)
    ]
    trials.append(trial(5, [9.0], "pruned", [decided(1, 9.0, 8.0)], lr=7, b=1))
    whole, ids = record(*trials, max_epochs=2), {each.id for each in trials}
    outcome = what_if(whole, "asha", 1, 2)
    contour = draw_contour(whole, "lr", "b")
    figures = {**all_figures(whole), "contour": contour, "what-if": draw_whatif(whole, outcome)}
    del figures["best"]  # all of it is of one trial
    assert {"curves", "history", "parallel", "slices", "timeline"} < set(figures)
    for name, figure in figures.items():
        shown = trials_in(figure)
        assert shown <= ids and (shown == ids or name in ("history", "rung_values", "timeline"))
        for trace in figure["data"]:
            values = trace.get("y") or trace.get("dimensions", [{}])[0].get("values") or []
            if "customdata" not in trace:
                assert trace["type"] == "contour" or trace["meta"] == "cutoff"  # of a rung, not of one trial
            else:
                assert len(trace["customdata"]) == len(values), name
                gaps = zip(trace["customdata"], values, strict=True)
                assert all(value is None for each, value in gaps if each is None)


HOSTILE = '<a href="https://evil.com">x</a>\x1b]0;x\x07\u202e\udcff'


def strings(value):
    if isinstance(value, dict):
        return [text for item in value.values() for text in strings(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


def test_no_text_of_a_folder_reaches_plotly_as_markup_or_control():
    """Plotly draws links, and more, of what looks like HTML in any of its texts."""
    metric, used = f"loss {HOSTILE}", f"cpu_{HOSTILE}"
    trials = [
        TrialRecord(
            f"{n} {HOSTILE}", {f"{HOSTILE} lr": 0.1 * n, "b": n % 3, "act": f"{HOSTILE}{n % 2}"}, "pruned", HOSTILE,
            tuple(Report(e, {metric: n + 1 / e, used: float(n + e)}, None, e, 10 * n + e) for e in (1, 2)),
            (ruled(2, 2, 0, n + 0.5, 0.1, n, "stop", HOSTILE),), (HOSTILE,), {"CPU": 1}, f"{HOSTILE} node",
            1.0, n, n, ((float(n), n + 1.5),),
        )
        for n in range(12)
    ]  # fmt: skip
    whole = record(*trials, metric=metric)
    outcome = what_if(whole, "asha", 1, 2)
    repeats = [replace(each, id=f"again {each.id}", confirms=each.id) for each in trials[:2]]
    confirming = replace(whole.experiment, confirm=2, confirm_seeds=2)
    figures = {
        **all_figures(whole),
        "contour": draw_contour(whole, f"{HOSTILE} lr", "b"),
        "importance": draw_importance(Importance([HOSTILE], [1.0], [0.1], 0.5, 12)),
        "what-if": draw_whatif(whole, outcome),
        "one trial": draw_metrics(trials[0], metric, 1),
        "other curves": draw_curves(whole, f"time:{used}"),
        "other slices": draw_slices(whole, f"last:{used}"),
        "other contour": draw_contour(whole, f"{HOSTILE} lr", "b", f"best:{used}"),
        "front": draw_front(record(*trials, metric=(metric, used), mode=("min", "max"))),
        "confirmed": draw_confirmed(replace(whole, trials=(*trials, *repeats), experiment=confirming)),
    }
    assert set(figures) >= {"best", "curves", "history", "parallel", "slices", "usage", "timeline"}
    for name, figure in figures.items():
        for text in strings(figure):
            plain = text.replace("<br>", "").replace("<extra></extra>", "")
            assert not {"<", "\x1b", "\x07", "\u202e", "\udcff"} & set(plain), (name, text)


def test_history_goes_by_time_and_keeps_the_improvements(searched):
    (line,) = draw_history(searched)["data"]
    assert (line["x"], line["y"]) == ([1, 2, 3, 8], [3.0, 2.0, 1.0, 1.0])
    (turned,) = draw_history(record(*searched.trials, mode="max"))["data"]
    assert (turned["x"], turned["y"]) == ([1, 4, 8], [3.0, 4.0, 4.0])


def test_the_history_leaves_out_a_bad_first_value_that_lasted_shortly():
    trials = [trial(0, [1e9]), *(trial(n, [2.0 - n / 100] * 8) for n in range(1, 20))]
    layout = draw_history(record(*trials))["layout"]
    assert layout["yaxis"]["range"][1] < 3 and "clipped" in layout["yaxis"]["title"]["text"]
    assert layout["meta"]["text"].startswith("Best loss so far: 1.81, of trial 00019, found after 146 of 153 epochs")


@pytest.mark.parametrize(("sign", "symbol"), [(1, "triangle-up"), (-1, "triangle-down")])
def test_first_values_beyond_the_historys_axis_are_marks_at_its_end(sign, symbol):
    trials = [trial(n, [sign * value]) for n, value in enumerate([1e9, 1e8])]
    trials += [trial(n, [sign * (2.0 - n / 100)] * 8) for n in range(2, 20)]
    figure = draw_history(record(*trials, mode="min" if sign > 0 else "max"))
    line, beyond = figure["data"]
    assert line["y"][:2] == [sign * 1e9, sign * 1e8] and beyond["meta"] == BEYOND
    worst = max(figure["layout"]["yaxis"]["range"], key=lambda end: sign * end)
    assert (beyond["x"], beyond["y"], beyond["customdata"]) == ([1, 2], [worst] * 2, ["00000", "00001"])
    assert beyond["text"] == [f"{sign * 1e9:.5g}", f"{sign * 1e8:.5g}"] and beyond["marker"]["symbol"] == symbol
    assert len(draw_history(record(*trials[2:]))["data"]) == 1


def test_of_very_many_trials_the_survivors_the_best_and_a_sample_of_the_pruned_are_drawn(monkeypatch):
    monkeypatch.setattr("tuner.views.figures.curves.MAX_CURVES", 40)
    pruned = [trial(n, [100.0 + n], "pruned") for n in range(100)]
    left = [trial(100 + n, [float(n)]) for n in range(20)]
    figure = draw_curves(record(*pruned, *left))
    shown = trials_in(figure)
    assert {t.id for t in left} <= shown and len(shown) <= 40
    assert len(shown & {t.id for t in pruned[:50]}) == len(shown & {t.id for t in pruned[50:]}) >= 8
    assert f"{len(shown)} of 120 trials drawn" in figure["layout"]["xaxis"]["title"]["text"]
    shown = trials_in(draw_curves(record(*(trial(n, [float(n)]) for n in range(100, 0, -1)))))
    assert {f"{n:05}" for n in range(1, 21)} <= shown and len(shown) <= 40
    assert draw_curves(record(*left))["layout"]["xaxis"]["title"]["text"] == "epoch"


def test_a_clipped_axis_says_so_and_can_be_shown_whole():
    trials = [trial(n, [2.0 + n / 10, 1.0 + n / 10], x=n) for n in range(10)]
    whole = record(*trials, trial(10, [1e6, 1e5], x=10))
    for figure in (draw_curves(whole), draw_slices(record(*trials * 2, *whole.trials))):
        axis = figure["layout"]["yaxis"]
        assert "clipped at " in axis["title"]["text"] and axis["range"][1] < 5
        assert figure["layout"]["meta"]["clipped"]["axis"] == "yaxis"
    assert "clipped" not in draw_curves(record(*trials))["layout"]["meta"]


def at_two_rungs(num):
    """Every second trial is pruned at rung 1, the others at rung 2; the cutoff falls with each trial."""
    trials = []
    for n in range(num):
        first = decided(1, 5.0 + n % 2, 6.0 - n / num, "stop" if n % 2 else "continue", recorded=n)
        calls = [first] if n % 2 else [first, decided(2, 4.0, 3.5, recorded=n)]
        trials.append(trial(n, [5.0 + n % 2] if n % 2 else [5.0, 4.0], "pruned", calls, x=n))
    return record(*trials)


def test_a_few_trials_are_dots_with_their_ids_and_many_are_boxes_in_a_small_figure():
    figure = draw_rung_values(at_two_rungs(8))
    go.Figure(figure)
    dots = {trace["name"]: trace for trace in figure["data"] if trace["meta"] in ("continued", "pruned")}
    assert dots["continued"]["customdata"] == ["00000", "00002", "00004", "00006"]
    places = {name: [round(x) for x in trace["x"]] for name, trace in dots.items()}
    assert places == {"continued": [0] * 4, "pruned": [0] * 4 + [1] * 4}
    over_time = [trace for trace in figure["data"] if trace.get("xaxis") == "x2"]
    assert over_time[0]["y"] == [6.0 - n / 8 for n in range(8)] and over_time[0]["x"] == sorted(over_time[0]["x"])
    assert "Rung 1: 4 of 8 trials pruned, last cutoff used 5.125." in figure["layout"]["meta"]["text"]
    figure = draw_rung_values(at_two_rungs(4000))
    boxes = {trace["name"]: trace for trace in figure["data"] if trace["type"] == "box"}
    assert boxes["pruned"]["median"] == [6.0, 4.0] and boxes["continued"]["median"] == [5.0]
    assert not [trace for trace in figure["data"] if trace["meta"] in ("continued", "pruned")]
    assert len(json.dumps(figure)) < 40_000 and 2 * MAX_RUNG_DOTS < 4000


def test_a_waiting_trial_is_not_drawn_and_brackets_are_apart():
    def at(bracket, action):
        return ruled(1, 1, bracket, 2.0, None, 1, action, "why", 0)

    waiting = trial(0, [2.0], "paused", [at(0, "pause")])
    went_on = trial(1, [2.0, 1.0], "completed", [at(0, "pause"), at(0, "continue")])
    other = trial(2, [2.0], "pruned", [at(1, "stop")])
    figure = draw_rung_values(record(waiting, went_on, other, scheduler="hyperband"))
    text = "Rung 1: 0 of 2 trials pruned, 1 trial waiting. Rung 1 of bracket 1: 1 of 1 trials pruned."
    assert text in figure["layout"]["meta"]["text"]
    assert [(trace["name"], trace["customdata"]) for trace in figure["data"]] == [
        ("continued", ["00001"]), ("pruned", ["00002"])
    ]  # fmt: skip
    assert draw_rung_values(record(waiting, scheduler="hyperband")) is None


def names_of(figure):
    return figure["layout"]["xaxis"]["ticktext"], figure["layout"]["xaxis"]["title"]["text"]


def test_each_band_bracket_and_rung_has_a_place_of_its_own_and_of_many_a_sample_is_drawn():
    def reached(number, band, bracket, rung, value, action="continue"):
        call = ruled(rung, rung, bracket, value, None, 1, action, "why", band)
        return trial(number, [value] * rung, "pruned" if action == "stop" else "completed", [call])

    places = [(0, 0, 1), (0, 1, 1), (0, 1, 3), (1, 0, 1), (1, 1, 3)]
    trials = [reached(n, *place, 10.0 * n, "stop" if n == 3 else "continue") for n, place in enumerate(places)]
    figure = draw_rung_values(record(*trials[::-1], scheduler="hyperband"))
    names = ["1 (0.0)", "1 (0.1)", "3 (0.1)", "1 (1.0)", "3 (1.1)"]
    assert names_of(figure) == (names, "rung (band.bracket)")
    dots = {trial: (round(x), y) for trace in figure["data"] if trace["meta"] in ("continued", "pruned")
            for trial, x, y in zip(trace["customdata"], trace["x"], trace["y"], strict=True)}  # fmt: skip
    assert dots == {f"{n:05}": (n, 10.0 * n) for n in range(5)}
    text = figure["layout"]["meta"]["text"]
    assert "Rung 1 of bracket 1: 0 of 1 trials pruned. " in text and "Rung 1 of bracket 0 in band 1: 1 of 1" in text
    assert "The plot has" not in text
    one_band = draw_rung_values(record(*trials[:3], scheduler="hyperband"))
    assert names_of(one_band) == (["1 (0)", "1 (1)", "3 (1)"], "rung (bracket)")
    assert names_of(draw_rung_values(record(*trials[1:3]))) == (["1", "3"], "rung")
    many = record(*(reached(n, 0, 0, n + 1, 1.0) for n in range(30)), max_epochs=30)
    figure = draw_rung_values(many)
    assert names_of(figure)[0] == [f"{rung}" for rung in range(1, 31, 3)]
    assert figure["layout"]["meta"]["text"].startswith("The plot has 10 of 30 rungs. Values of loss at each rung.")


def test_the_median_rules_figure_has_the_running_means_of_which_its_cutoffs_are_medians():
    def judged(number, values, *calls):
        return trial(number, values, "pruned" if calls[-1][2] == "stop" else "completed", [
            ruled(epoch, epoch, None, values[epoch - 1], cutoff, 3, action, "why", compared=min(values[:epoch]))
            for epoch, cutoff, action in calls
        ])  # fmt: skip

    first = judged(0, [100.0, 4.0, 2.0], (2, None, "continue"), (3, 3.0, "continue"))
    worse = judged(1, [50.0, 9.0, 6.0], (2, None, "continue"), (3, 3.0, "stop"))
    whole = record(first, worse, scheduler="median", grace_period=2)  # which leaves out the first values
    figure = draw_rung_values(whole)
    dots = {trace["name"]: (list(map(round, trace["x"])), trace["y"], trace["customdata"]) for trace in figure["data"]
            if trace["meta"] in ("continued", "pruned")}  # fmt: skip
    assert dots["continued"] == ([0, 0, 1], [4.0, 9.0, 3.0], ["00000", "00001", "00000"])
    assert dots["pruned"] == ([1], [7.5], ["00001"])
    assert figure["layout"]["yaxis"]["title"]["text"] == "running mean of loss"
    assert "The values are running means, of which the cutoff is the median" in figure["layout"]["meta"]["text"]
    nan = judged(2, [1.0, math.nan, 1.7e308, 1.7e308], (4, 1.0, "continue"))
    figure = draw_rung_values(replace(whole, trials=(nan,)))
    assert figure["data"][0]["y"] == [pytest.approx(1.7e308)] and "running" not in json.dumps(
        draw_rung_values(record(first, worse, grace_period=2))
    )


def test_the_figure_counts_trials_and_names_cutoffs_as_the_table_does():
    """The last cutoff is that of the decision that saw the most trials, whichever report came last."""
    calls = [("continue", 3.0, 3.5, 2), ("stop", 5.0, 3.6, 7), ("stop", math.inf, 3.4, 3)]
    trials = [
        trial(
            n, [value], "pruned" if action == "stop" else "completed", [decided(1, value, cutoff, action, recorded=r)]
        )
        for n, (action, value, cutoff, r) in enumerate(calls)
    ]
    figure, (row,) = draw_rung_values(record(*trials)), rung_rows(record(*trials))
    assert (row.cutoff_then, row.stopped, row.reached) == (3.6, 2, 3)
    assert "Rung 1: 2 of 3 trials pruned, last cutoff used 3.6." in figure["layout"]["meta"]["text"]
    (mark,) = (trace for trace in figure["data"] if trace["name"] == "last cutoff used")
    assert mark["y"] == [3.6] and trials_in(figure) == {"00000", "00001"}  # an infinite value has no dot


def test_trials_that_had_passed_a_rung_before_it_was_placed_are_drawn_and_counted_as_in_the_report():
    trials = trial(0, [3.0, 2.0]), trial(1, [4.0], "pruned", [decided(1, 4.0, 3.0)])
    whole = replace(record(*trials, grace_period=1), length=2)
    (row,), figure = rung_rows(whole), draw_rung_values(whole)
    assert (row.reached, row.stopped) == (2, 1) and trials_in(figure) == {"00000", "00001"}
    assert f"Rung 1: {row.stopped} of {row.reached} trials pruned" in figure["layout"]["meta"]["text"]


def test_many_prunes_are_no_column_of_crosses():
    few, many = (draw_curves(at_two_rungs(num))["data"] for num in (20, 200))
    assert "stop" in [trace["meta"] for trace in few] and "stop" not in [trace["meta"] for trace in many]
    (cutoffs,) = (trace for trace in many if trace["meta"] == "cutoff")
    assert cutoffs["x"] == [1, 2] and "200 trials reached it, 100 pruned" in cutoffs["text"][0]


def test_of_many_curves_only_those_that_no_line_shows_have_dots():
    """A dot at each of 4,000 points takes the browser as long as all the rest of the page."""
    lines = [trial(n, [2.0 + n, 1.0 + n]) for n in range(100)]
    lone = [trial(100, [5.0]), trial(101, [5.0, math.nan, 4.0])]
    traces = {trace["mode"]: trace for trace in draw_curves(record(*lines, *lone))["data"][:2]}
    assert {len(set(trace["customdata"]) - {None}) for trace in traces.values()} == {99, 2}  # one is the best
    assert set(traces["lines+markers"]["customdata"]) == {"00100", "00101", None}
    assert [trace["showlegend"] for trace in traces.values()] == [True, False]
    assert {trace["type"] for trace in traces.values()} == {"scatter"}
    long = [trial(n, [float(e + n) for e in range(200)]) for n in range(100)]
    assert draw_curves(record(*long))["data"][0]["type"] == "scattergl"


def test_of_very_many_trials_a_band_shows_them_all():
    def band(trials):
        return [trace for trace in draw_curves(record(*trials))["data"] if trace["meta"] == "band"]

    trials = [trial(n, [float(n), float(n) / 2], x=n) for n in range(1001)]
    lines = band(trials)
    go.Figure({"data": lines})
    assert lines[0]["x"] == [1, 2] and lines[1]["name"] == "middle 80 % of 501 of 1,001 trials"
    assert [trace["y"] for trace in lines] == [[100.0, 50.0], [900.0, 450.0], [500.0, 250.0]]
    assert band(trials[:100]) == []
