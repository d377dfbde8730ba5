"""The timeline: who ran beside whom, and what it cost."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest
from test_figures import record, trial

from tuner.views.figures.timeline import cost_of, draw_timeline


def ran(number, *spans, node="n", status="completed", **resources):
    return replace(trial(number, [1.0 + number], status), spans=spans, node=node, resources=resources, seconds=8.0)


def bars(*trials):
    """The rows from top to bottom, and each bar: its trial, its row and its start."""
    figure = draw_timeline(record(*trials))
    go.Figure(figure)
    found = [
        bar
        for trace in figure["data"]
        for bar in zip(*(trace[name] for name in ("customdata", "y", "base")), strict=True)
    ]
    return figure["layout"]["yaxis"]["categoryarray"][::-1], sorted(found)


def test_trials_at_a_time_are_in_lanes_and_a_free_lane_is_used_again():
    lanes, found = bars(ran(0, (100, 104)), ran(1, (101, 109)), ran(2, (104.02, 106)), ran(3, (110, 111)))
    assert found == [("00000", "n / 1", 0), ("00001", "n / 2", 1), ("00002", "n / 1", 4.02), ("00003", "n / 1", 10)]
    assert lanes == ["n / 1", "n / 2"]
    lanes, found = bars(ran(0, (0, 4), (10, 12)), ran(1, (0, 4), node="m"))  # a resumed trial, and another node
    assert [trial for trial, *_ in found] == ["00000", "00000", "00001"] and lanes == ["m / 1", "n / 1"]


@pytest.mark.parametrize(
    ("resources", "text"),
    [({"CPU": 2}, "1 epoch in 8 s on 2 CPU: 16 CPU-seconds"),
     ({"CPU": 1, "GPU": 0.5}, "1 epoch in 8 s on 0.5 GPU, 1 CPU: 4 GPU-seconds")],
)  # fmt: skip
def test_the_cost_is_of_the_gpu_where_there_is_one(resources, text):
    assert cost_of(ran(0, (0, 8), **resources)) == text


@pytest.mark.parametrize(("end", "unit", "length"), [(100, "seconds", 100), (600, "minutes", 10), (9000, "hours", 2.5)])
def test_the_axis_is_in_a_unit_that_reads(end, unit, length):
    figure = draw_timeline(record(ran(0, (0, end))))
    assert figure["layout"]["xaxis"]["title"]["text"].startswith(unit)
    assert figure["data"][0]["x"] == [pytest.approx(length)]


def test_each_end_has_its_colour_and_the_winner_its_own():
    whole = record(ran(0, (0, 1)), ran(1, (1, 2), status="pruned"), ran(2, (2, 3), status="failed"))
    assert [trace["name"] for trace in draw_timeline(whole)["data"]] == ["pruned", "failed", "best: trial 00000"]


def test_of_very_many_sessions_the_latest_are_drawn(monkeypatch):
    monkeypatch.setattr("tuner.views.figures.timeline.MOST_SPANS", 3)
    assert [trial for trial, *_ in bars(*(ran(n, (n, n + 1)) for n in range(9)))[1]] == ["00006", "00007", "00008"]


def test_lanes_are_in_the_order_of_their_numbers():
    trials = [ran(n, (100, 200)) for n in range(12)]
    assert bars(*trials)[0] == [f"n / {n}" for n in range(1, 13)]
    text = draw_timeline(record(*trials))["layout"]["meta"]["text"]
    assert text == "12 runs of 12 trials in 100 seconds on 12 slots, busy 100 % of the time. The best trial is 00000."
