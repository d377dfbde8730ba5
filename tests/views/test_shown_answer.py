"""Figures of the answer: the best trial's curve, the Pareto front, and the settings that other seeds confirmed."""

import json
import math
from dataclasses import replace

import plotly.graph_objects as go
from test_figures import decided, record, strings, trial

from tuner.core.events import Report
from tuner.views.figures import answer
from tuner.views.figures.answer import draw_confirmed, draw_front
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.metrics import draw_best

HOSTILE = "<b>&\x1b"


def parts(figure):
    """By what a trace shows: its x, its y, and its trials."""
    go.Figure(figure)
    json.dumps(figure, allow_nan=False)
    return {trace["meta"]: (trace["x"], trace["y"], trace["customdata"]) for trace in figure["data"]}


def test_the_best_trial_is_drawn_with_its_cutoffs_and_the_metric_that_the_rungs_compare():
    better = trial(0, [3.0, 1.0, 2.0], decisions=[decided(1, 3.0, 3.5, "continue")])
    whole = record(better, trial(1, [4.0]))
    loss, cutoff = draw_best(whole)["data"]
    assert (loss["x"], loss["y"], cutoff["x"], cutoff["y"]) == ([1, 2, 3], [3.0, 1.0, 2.0], [1], [3.5])
    best = [color for color in loss["marker"]["color"] if color != loss["marker"]["color"][0]]
    assert len(best) == 1 and draw_best(whole)["layout"]["meta"]["text"] == "Over 3 reports: loss from 3 to 2."
    reports = tuple(r._replace(metrics=r.metrics | {"acc": r.epoch, "other": -r.epoch}) for r in better.reports)
    two = record(replace(better, reports=reports), metric="acc", mode="max", prune_by="loss")
    assert [trace["name"] for trace in draw_best(two)["data"]] == ["loss", "acc", "cutoff"]
    only = record(replace(better, reports=(Report(1, {"acc": 1.0, "other": 2.0}, None, 1.0),), decisions=()))
    only = replace(only, experiment=two.experiment)  # the rungs' metric came in no report of it
    assert [trace["name"] for trace in draw_best(only)["data"]] == ["acc"]
    for none in (record(trial(0, [math.nan])), record(), replace(whole, refused=True)):
        assert draw_best(none) is None


def sized(number, loss, size, **more):
    one = trial(number, [loss + 1, loss])
    return replace(one, reports=tuple(r._replace(metrics={**r.metrics, "size": size, **more}) for r in one.reports))


TWO = {"metric": ("loss", "size"), "mode": ("min", "max")}


def test_the_front_has_every_trial_the_best_ones_as_a_line_and_the_knee():
    """Sizes are better if larger: only trial 3 is worse than another one in both."""
    whole = record(sized(0, 1.0, 1), sized(1, 2.0, 8), sized(2, 5.0, 9), sized(3, 5.0, 3), **TWO)
    shown = parts(draw_front(whole))
    assert shown["trials"] == ([1.0, 2.0, 5.0, 5.0], [1, 8, 9, 3], ["00000", "00001", "00002", "00003"])
    assert shown["front"] == ([1.0, 2.0, 5.0], [1, 8, 9], ["00000", "00001", "00002"])
    assert shown["best"] == ([2.0], [8], ["00001"])
    layout = draw_front(whole)["layout"]
    assert [layout[axis]["title"]["text"] for axis in ("xaxis", "yaxis")] == ["loss (min)", "size (max)"]
    assert layout["meta"]["text"] == (
        "3 trials on the Pareto front of 4 trials. Each trial counts by one report: the last one that none of its "
        "earlier reports beats. The knee is trial 00001: loss 2, "
        "size 8."
    )
    assert draw_front(record(*whole.trials)) is None and draw_front(replace(whole, refused=True)) is None
    assert draw_front(record(sized(0, math.nan, 1), **TWO)) is None and draw_front(record(**TWO)) is None


def test_of_many_trials_a_front_shows_a_sample_and_of_three_metrics_two(monkeypatch):
    monkeypatch.setattr(answer, "MAX_DOTS_BESIDE_FRONT", 5)
    trials = [sized(n, float(n), n, **{HOSTILE: n % 3}) for n in range(12)]
    three = {"metric": ("loss", "size", HOSTILE), "mode": ("min", "max", "min")}
    figure = draw_front(record(*trials, **three))
    shown = parts(figure)
    assert len(shown["trials"][0]) == 4 and len(shown["front"][0]) == 12
    assert figure["data"][0]["name"] == "4 of 12 trials" and figure["data"][1]["mode"] == "markers"
    assert "It shows two of 3 metrics; the table has all." in figure["layout"]["meta"]["text"]
    figure = draw_front(record(*trials, metric=(HOSTILE, "size"), mode=("min", "max")))
    assert not any("<b>" in text or "\x1b" in text for text in strings(figure))
    assert figure["data"][1]["mode"] == "lines+markers"


def repeat(number, loss, of, status="completed"):
    return replace(trial(number, [loss], status, x=of), confirms=f"{of:05}", seed=number)


def test_confirmed_settings_have_all_values_their_means_and_intervals_the_best_on_top():
    found = [trial(n, [value], x=n) for n, value in enumerate([0.2, 0.1, 0.9])]
    repeats = repeat(3, 0.5, 1), repeat(4, 0.3, 0), repeat(5, 0.7, 1), repeat(6, 0.5, 0)
    options = {"confirm": 2, "confirm_seeds": 2, "max_epochs": 1}
    whole = record(*found, *repeats, **options)
    figure = draw_confirmed(whole)
    means, others = figure["data"][2], ["setting of 00000"] * 2 + ["setting of 00001"] * 2
    (first, second), shown = whole.confirmation.settings, {**parts(figure), "trials": None}
    values, single = figure["data"][:2]
    assert (values["x"], values["y"], values["customdata"]) == (
        [0.3, 0.5, 0.5, 0.7], others, ["00004", "00006", "00003", "00005"]
    )  # fmt: skip
    assert (single["x"], single["customdata"]) == ([0.2, 0.1], ["00000", "00001"])
    assert shown["best"] == ([0.4, 0.6], others[1:3], ["00000", "00001"]) and first.low < 0.4 < first.high
    bars = means["error_x"]
    assert [0.4 - bars["arrayminus"][0], 0.6 + bars["array"][1]] == [first.low, second.high]
    assert figure["layout"]["yaxis"]["categoryarray"] == ["setting of 00001", "setting of 00000"]  # from below
    assert figure["layout"]["meta"]["text"].startswith(
        "Mean loss over other seeds, with its 95 % interval: 00000 0.4 ("
    )
    assert {"best", "confirmed"} <= set(all_figures(whole))
    early = draw_confirmed(record(*found, repeats[0], **options))  # one value: its interval is unknown
    assert early["data"][2]["error_x"]["array"] == [0.0] and "00001 0.5." in early["layout"]["meta"]["text"]
    diverged = draw_confirmed(record(*found, repeat(3, math.nan, 1), repeats[1], repeats[3], **options))
    assert parts(diverged)["best"][2] == ["00000"]  # a setting without any value has no mean
    assert draw_confirmed(record(*found, **options)) is draw_confirmed(record(*found)) is None
