"""The timeline: who ran beside whom, and what it cost; the lineage of population-based training: who copied whom."""

import json
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from journals import ruled
from test_figures import record, trial

from tuner.core.timing import Session
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.curves import draw_history
from tuner.views.figures.timeline import cost_of, draw_lineage, draw_timeline


def ran(number, *spans, node="n", status="completed", **resources):
    return replace(trial(number, [1.0 + number], status), spans=spans, node=node, resources=resources, seconds=8.0)


def bars(*trials):
    """The rows from top to bottom, and each bar: its trial, its row and its start."""
    figure = draw_timeline(record(*trials))
    go.Figure(figure)
    columns = ([trace[name] for name in ("customdata", "y", "base")] for trace in figure["data"])
    found = [bar for each in columns for bar in zip(*each, strict=True)]
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


def test_lanes_are_in_the_order_of_their_numbers_and_of_very_many_sessions_the_latest_are_drawn(monkeypatch):
    trials = [ran(n, (100, 200)) for n in range(12)]
    assert bars(*trials)[0] == [f"n / {n}" for n in range(1, 13)]
    text = draw_timeline(record(*trials))["layout"]["meta"]["text"]
    assert text == "12 runs of 12 trials in 100 seconds on 12 slots, busy 100 % of the time. The best trial is 00000."
    sessions = (Session(90, 0.0), Session(1140, 60.0))  # the second resumed the search 990 s after the first had ended
    text = draw_timeline(replace(record(ran(0, (100, 150)), ran(1, (1150, 1200))), sessions=sessions))["layout"]["meta"]
    assert "in 18.3 minutes on 1 slot, busy 91 % of the sessions' time" in text["text"]
    monkeypatch.setattr("tuner.views.figures.timeline.MOST_SPANS", 3)
    assert [trial for trial, *_ in bars(*(ran(n, (n, n + 1)) for n in range(9)))[1]] == ["00006", "00007", "00008"]


WHY = "is in the worst quarter: copies the state of a better trial, with lr 0.1 -> 0.12"


def copied(epoch, value, source):
    return ruled(epoch, None, None, value, None, 0, "pause", WHY, copied=source or None)


def population():
    """Trial 0 copies trial 1 after epoch 2, which copied trial 2 after epoch 1; times are 10 * trial + epoch."""
    return record(
        trial(0, [9.0, 8.0, 1.0], decisions=[copied(2, 8.0, "00001")], lr=0.1),
        trial(1, [7.0, 6.0, 5.0], decisions=[copied(1, 7.0, "00002")], lr=0.2),
        trial(2, [3.0, 3.0, 3.0], lr=0.3),
        scheduler="pbt",
    )


def test_copies_have_their_source_and_the_changed_parameters():
    figure = draw_lineage(population())
    go.Figure(figure)
    heads = next(trace for trace in figure["data"] if trace["name"] == "copy with changed parameters")
    assert heads["customdata"] == ["00000", "00001"] and "copied trial 00001" in heads["text"][0]
    assert "lr 0.1 -&gt; 0.12" in heads["text"][0]
    lines = next(trace for trace in figure["data"] if trace["name"] == "copied from")
    assert lines["y"] == [1, 0, None, 2, 1, None] and lines["x"][0] == lines["x"][1]


def test_the_best_value_is_traced_back_through_the_copies():
    """In time: trial 0 copies at 2, and trial 1 copied at 11, after that: its copy is no ancestor."""
    figure = draw_lineage(population())
    (best,) = (trace for trace in figure["data"] if trace["meta"] == "best")
    assert best["customdata"] == ["00000", "00000", "00001", "00001"]
    assert "goes back to 00001" in figure["layout"]["meta"]["text"]
    first, *others = population().trials
    late = replace(first, decisions=(*first.decisions, copied(3, 1.0, "00002")))  # after the best value
    (again,) = (
        trace for trace in draw_lineage(record(late, *others, scheduler="pbt"))["data"] if trace["meta"] == "best"
    )
    assert again["customdata"] == best["customdata"] and again["x"] == best["x"]
    assert "lineage" in all_figures(population())
    assert "lineage" not in all_figures(record(*population().trials, scheduler="asha"))


def test_epochs_that_were_trained_again_are_counted_apart():
    first, *others = population().trials
    again = replace(first, repeated=(first.reports[1]._replace(order=2, time=2), first.reports[2]._replace(order=5)))
    whole = record(again, *others, scheduler="pbt")
    assert whole.stats.epochs == 9 and whole.stats.repeated == 2
    history = draw_history(whole)["layout"]
    assert history["xaxis"]["title"]["text"] == "epochs trained by all trials, 2 of them again"
    assert "of 11 epochs, 2 of which were trained again;" in history["meta"]["text"]
    assert "again" not in json.dumps(draw_history(population()))


def test_a_large_population_has_few_rows(monkeypatch):
    monkeypatch.setattr("tuner.views.figures.timeline.MOST_LANES", 3)
    trials = [trial(n, [float(n)], lr=n) for n in range(20)]
    late = trial(19, [5.0, 0.5], decisions=[copied(1, 5.0, "00007")], lr=1)
    layout = draw_lineage(record(*trials[:19], late, scheduler="pbt"))["layout"]
    assert layout["yaxis"]["ticktext"] == ["00000", "00007", "00019"] and "20 trials" in layout["meta"]["text"]
