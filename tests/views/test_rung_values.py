"""The rung plot: values pruned and continued apart, as dots or boxes, and the cutoffs over time; prunes as curves."""

import json
import math

import plotly.graph_objects as go
from test_figures import decided, record, trial

from tuner.record.records import Decision
from tuner.views.figures.curves import draw_curves
from tuner.views.figures.rung_values import MOST_DOTS, draw_rung_values


def searched(num):
    """Every second trial is pruned at rung 1, the others at rung 2; the cutoff falls with each trial."""
    trials = []
    for n in range(num):
        first = decided(1, 5.0 + n % 2, 6.0 - n / num, "stop" if n % 2 else "continue", recorded=n)
        calls = [first] if n % 2 else [first, decided(2, 4.0, 3.5, recorded=n)]
        trials.append(trial(n, [5.0 + n % 2] if n % 2 else [5.0, 4.0], "pruned", calls, x=n))
    return record(*trials)


def test_a_few_trials_are_dots_with_their_ids():
    figure = draw_rung_values(searched(8))
    go.Figure(figure)
    dots = {trace["name"]: trace for trace in figure["data"] if trace["meta"] in ("continued", "pruned")}
    assert dots["continued"]["customdata"] == ["00000", "00002", "00004", "00006"]
    places = {name: [round(x) for x in trace["x"]] for name, trace in dots.items()}
    assert places == {"continued": [0] * 4, "pruned": [0] * 4 + [1] * 4}
    over_time = [trace for trace in figure["data"] if trace.get("xaxis") == "x2"]
    assert over_time[0]["y"] == [6.0 - n / 8 for n in range(8)] and over_time[0]["x"] == sorted(over_time[0]["x"])
    assert "Rung 1: 4 of 8 trials pruned, cutoff from 6 at first to 5.125 at last." in figure["layout"]["meta"]["text"]


def test_many_trials_are_boxes_and_the_figure_stays_small():
    figure = draw_rung_values(searched(4000))
    boxes = {trace["name"]: trace for trace in figure["data"] if trace["type"] == "box"}
    assert boxes["pruned"]["median"] == [6.0, 4.0] and boxes["continued"]["median"] == [5.0]
    assert not [trace for trace in figure["data"] if trace["meta"] in ("continued", "pruned")]
    assert len(json.dumps(figure)) < 40_000 and 2 * MOST_DOTS < 4000


def test_a_waiting_trial_is_not_drawn_and_brackets_are_apart():
    def at(bracket, action):
        return Decision(1, 1, bracket, 2.0, None, 1, action, "why", 0)

    waiting = trial(0, [2.0], "running", [at(0, "pause")])
    went_on = trial(1, [2.0, 1.0], "completed", [at(0, "pause"), at(0, "continue")])
    other = trial(2, [2.0], "pruned", [at(1, "stop")])
    figure = draw_rung_values(record(waiting, went_on, other, scheduler="hyperband"))
    text = "Rung 1: 0 of 2 trials pruned, 1 trial waiting. Rung 1 of bracket 1: 1 of 1 trials pruned."
    assert text in figure["layout"]["meta"]["text"]
    assert [(trace["name"], trace["customdata"]) for trace in figure["data"]] == [
        ("continued", ["00001"]), ("pruned", ["00002"])
    ]  # fmt: skip
    assert draw_rung_values(record(waiting, scheduler="hyperband")) is None


def test_many_prunes_are_no_column_of_crosses():
    few, many = (draw_curves(searched(num))["data"] for num in (20, 200))
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
    assert lines[0]["x"] == [1, 2]
    assert [trace["y"] for trace in lines] == [[100.0, 50.0], [900.0, 450.0], [500.0, 250.0]]
    assert band(trials[:100]) == []
