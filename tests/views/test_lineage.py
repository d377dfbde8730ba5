"""The lineage of population-based training: who copied whom, and the history of the best value."""

import json
from dataclasses import replace

import plotly.graph_objects as go
from test_figures import record, trial

from tuner.record.records import Decision, Folding
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.curves import draw_history
from tuner.views.figures.timeline import draw_lineage

WHY = "is in the worst quarter: copies the state of a better trial, with lr 0.1 -> 0.12"


def copied(epoch, value, source):
    return Decision(epoch, None, None, value, None, 0, "pause", WHY, copied=source or None)


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


def test_the_journal_may_name_the_copied_trial_or_not():
    event = {"time": 1.0, "event": "decision", "trial": "0", "epoch": 1, "rung": None, "bracket": None, "value": 1.0}
    event |= {"cutoff": None, "recorded": 0, "action": "pause", "reason": WHY}
    (named,) = Folding([{**event, "copied": "00003"}]).records()[0].decisions
    (unnamed,) = Folding([event]).records()[0].decisions
    assert (named.copied, unnamed.copied) == ("00003", None)
