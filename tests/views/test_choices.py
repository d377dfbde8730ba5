"""What a reader may choose: which value of which metric the figures compare, and the axis and metric of the curves."""

import json
import math
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from test_figures import decided, pruned_search, record

from tuner.core.events import Report
from tuner.errors import RequestError
from tuner.record.records import TrialRecord
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.curves import chosen_curves, draw_curves
from tuner.views.figures.importance import importance_of
from tuner.views.figures.parameters import draw_contour, draw_parallel, draw_slices, draw_usage
from tuner.views.figures.values import chosen, metrics_of, mode_of, numbers_of, title_of


def trial(number, losses, status="completed", decisions=(), spans=(), **metrics):
    """A trial that reports every 10 s; `metrics` has a list for each further metric, None where a report lacks it."""
    reports = tuple(
        Report(e, {"loss": v, **{n: each[e - 1] for n, each in metrics.items() if each[e - 1] is not None}}, None,
               10.0 * e, 100 * number + e)
        for e, v in enumerate(losses, 1)
    )  # fmt: skip
    seconds = sum(end - start for start, end in spans)
    return TrialRecord(
        f"{number:05}", {"x": number, "y": number % 3}, status, "r", reports, tuple(decisions), spans=spans,
        seconds=seconds,
    )  # fmt: skip


def searched(num=24):
    """The loss and the accuracy of trial n are best at epoch 2; `odd` has no direction, and one value far from others.

    Trial 0 has no accuracy at all, trial 1 lacks its last one.
    """
    trials = []
    for n in range(num):
        accuracy = [None] * 3 if n == 0 else [0.1 * n, 0.2 * n, None if n == 1 else 0.3 * n]
        trials.append(trial(n, [3.0 + n, 1.0 + n, 2.0 + n], accuracy=accuracy, odd=[float(n)] * 2 + [n or 1e9]))
    return record(*trials)


def shown(whole, choice):
    """The value of each trial in the figures that compare trials, and the value's name on their axes."""
    slices, own = draw_slices(whole, choice), draw_parallel(whole, choice)["data"][0]["dimensions"][-1]
    surface, dots = draw_contour(whole, "x", "y", choice)["data"]
    title, bar = slices["layout"]["yaxis"]["title"]["text"], surface["colorbar"]["title"]["text"]
    assert slices["data"][0]["y"] == own["values"] == dots["marker"]["color"]
    assert title == own["label"] and title.startswith(bar.removesuffix("..."))
    return dict(zip(map(int, slices["data"][0]["customdata"]), own["values"], strict=True)), title


def test_a_value_is_that_of_the_chosen_metric_in_the_best_report_at_last_or_at_an_epoch():
    whole = searched()
    of_all = range(1, 24)  # trial 0 has none
    assert shown(whole, "best:accuracy") == ({n: 0.2 * n for n in of_all}, "accuracy at the best epoch")
    assert shown(whole, "last:accuracy") == ({1: 0.2} | {n: 0.3 * n for n in range(2, 24)}, "last accuracy")
    assert shown(whole, "3:accuracy") == ({n: 0.3 * n for n in range(2, 24)}, "accuracy at epoch 3")
    assert shown(whole, "best:loss") == shown(whole, "") == ({n: 1.0 + n for n in range(24)}, "best loss")
    assert importance_of(whole, "last:accuracy").values == "last accuracy"
    assert "No two trials with different settings have a accuracy at epoch 4" in json.dumps(
        draw_slices(whole, "4:accuracy")
    )
    assert draw_usage(whole, "last:accuracy") is draw_usage(whole, "last") is None  # there are no usage metrics
    assert title_of("loss", "last") == "last loss" and draw_slices(replace(whole, refused=True), "last:odd") is None


def test_the_default_value_of_another_metric_is_at_the_default_epoch():
    whole = pruned_search()
    trials = [replace(t, reports=tuple(r._replace(metrics=r.metrics | {"acc": r.epoch}) for r in t.reports))
              for t in whole.trials]  # fmt: skip
    assert chosen(whole, "") == "1" and chosen(replace(whole, trials=tuple(trials)), ":acc") == "1:acc"


def test_a_metric_that_no_trial_reports_is_refused_and_the_nearest_one_named():
    whole = searched()
    assert metrics_of(whole) == ["loss", "odd", "accuracy"]
    for draw in (draw_slices, draw_parallel, chosen_curves, importance_of):
        with pytest.raises(RequestError, match=r"metric 'acuracy': .*trials report.*did you mean 'accuracy'"):
            draw(whole, "last:acuracy" if draw is not chosen_curves else "time:acuracy")
    with pytest.raises(RequestError, match="axis 'tme': must be epoch or time.*did you mean 'time'"):
        chosen_curves(whole, "tme")
    assert list(numbers_of(trial(0, [1.0] * 3, text=["a"] * 3, late=[None, None, 2], flag=[True] * 3))) == [
        "loss",
        "late",
    ]
    changing = trial(0, [1.0] * 3)
    reports = [r._replace(metrics={"loss": 1.0, "val": v}) for r, v in zip(changing.reports, ("", 0, 1), strict=True)]
    assert list(numbers_of(replace(changing, reports=tuple(reports)))) == ["loss", "val"]
    assert metrics_of(record(trial(0, [1.0], **{"n" * 201: [1]}, short=[2]))) == ["loss", "short"]


def test_a_direction_is_the_searchs_or_that_of_the_name_and_without_one_no_end_is_the_best_or_clipped():
    whole = searched()
    assert [mode_of(whole, name) for name in ("loss", "accuracy", "odd")] == ["min", "max", ""]
    other = record(*whole.trials, metric="odd", mode="max", prune_by="loss", prune_mode="max")
    assert [mode_of(other, name) for name in ("odd", "loss")] == ["max", "max"]
    parallel = draw_parallel(whole, "last:odd")
    bar = parallel["layout"]["coloraxis"]["colorbar"]
    assert "(best)" not in json.dumps(parallel) and bar["tickvals"][-1] == 1e9
    assert parallel["layout"]["meta"]["text"].endswith("The greatest line is at 1e+09.")
    assert (
        "The greatest value is 1e+09: trial 00000."
        in draw_contour(whole, "x", "y", "last:odd")["layout"]["meta"]["text"]
    )
    for figure in (parallel, draw_slices(whole, "last:odd"), draw_curves(whole, "epoch:odd")):
        go.Figure(figure)
        assert "clipped" not in json.dumps(figure)
    bad = trial(0, [1.0], accuracy=[-1e9])
    clipped = record(bad, *searched().trials[1:])
    assert "clipped at" in draw_slices(clipped, "last:accuracy")["layout"]["yaxis"]["title"]["text"]
    best = draw_parallel(clipped, "last:accuracy")["layout"]["coloraxis"]["colorbar"]["ticktext"]
    assert best[0].endswith("or worse") and best[-1].endswith("(best)")


def curves_of(figure):
    """Each trial's points in the curves."""
    found = {}
    for trace in figure["data"]:
        if trace["meta"] not in ("band", "cutoff", "stop"):
            for x, y, name in zip(trace["x"], trace["y"], trace["customdata"], strict=True):
                found.setdefault(name, []).append((x, y))
    return {name: points for name, points in found.items() if name}


def marks(figure, meta):
    return [(trace["x"], trace["y"]) for trace in figure["data"] if trace["meta"] == meta]


def timed():
    """Trial 0 pauses for 100 s after epoch 1; trial 1 is pruned; trial 2 failed and trains epoch 1 again, at last."""
    paused = trial(0, [3.0, 2.0], spans=((0.0, 10.0), (110.0, 130.0)), accuracy=[0.1, 0.2])
    paused = replace(paused, reports=(paused.reports[0], paused.reports[1]._replace(time=120.0)))
    cut = trial(1, [5.0], "pruned", [decided(1, 5.0, 4.0)], spans=((5.0, 10.0),), accuracy=[0.4])
    again = trial(2, [4.0, 3.5], "failed", spans=((0.0, 20.0), (30.0, 40.0)), accuracy=[None, 0.3])
    first, second = again.reports
    again = replace(again, reports=(first._replace(time=40.0, order=999), second), repeated=(first,))
    return record(paused, cut, again)


def test_curves_over_time_have_each_trials_seconds_on_workers_and_no_rungs_or_cutoffs():
    whole = timed()
    plain, figure = draw_curves(whole), draw_curves(whole, "time")
    assert curves_of(plain)["00000"] == [(1, 3.0), (2, 2.0)] and plain["layout"]["shapes"]
    assert marks(plain, "cutoff") == [([1], [4.0])] and marks(plain, "stop") == [([1], [5.0])]
    go.Figure(figure)
    assert curves_of(figure) == {
        "00000": [(10, 3.0), (20, 2.0)],  # the pause is no time on a worker
        "00001": [(5, 5.0)],
        "00002": [(20, 3.5), (30, 4.0)],  # in the order of time
    }
    assert figure["layout"]["xaxis"]["title"]["text"] == "seconds of the trial on workers"
    assert figure["layout"]["shapes"] == [] and marks(figure, "stop") == [([5], [5.0])]
    hovers = {t["hovertemplate"] for t in figure["data"] if t["meta"] not in ("stop", "cutoff")}
    assert len(hovers) == 1 and "seconds" in hovers.pop()
    assert figure["layout"]["meta"]["text"].startswith("Curves of loss over time on workers. 3 trials")
    slow = draw_curves(record(trial(0, [1.0], spans=((0.0, 10.0), (10.0, 7210.0)))), "time")
    assert slow["layout"]["xaxis"]["title"]["text"].startswith("hours") and slow["data"][0]["x"][0] == 0.0028


def test_curves_of_another_metric_have_rungs_but_no_cutoffs():
    figure = draw_curves(timed(), "epoch:accuracy")
    assert curves_of(figure) == {"00000": [(1, 0.1), (2, 0.2)], "00001": [(1, 0.4)], "00002": [(2, 0.3)]}
    assert figure["layout"]["yaxis"]["title"]["text"] == "accuracy" and figure["layout"]["shapes"]
    assert marks(figure, "cutoff") == [] and marks(figure, "stop") == [([1], [0.4])]
    assert figure["layout"]["meta"]["text"].startswith("Curves of accuracy over epochs. 3 trials")
    both = draw_curves(timed(), "time:accuracy")
    assert curves_of(both)["00000"] == [(10, 0.1), (20, 0.2)] and both["layout"]["shapes"] == []
    assert [chosen_curves(timed(), choice) for choice in ("", ":loss", "time:loss", ":accuracy")] == [
        "epoch", "epoch", "time", "epoch:accuracy"
    ]  # fmt: skip
    nan = record(trial(0, [math.nan], accuracy=[0.5]))
    assert draw_curves(nan) is None and draw_curves(nan, "epoch:accuracy") and "curves" not in all_figures(nan)


def test_the_axis_of_another_metric_is_clipped_by_its_own_direction():
    for mode, losses in (("min", 1e9), ("max", -1e9)):
        trials = [trial(n, [float(n)] * 3, accuracy=[0.1, n / 20, 0.9]) for n in range(20)]
        whole = record(*trials, trial(20, [losses], accuracy=[-1e9]), mode=mode)
        for figure in (draw_curves(whole), draw_curves(whole, "epoch:accuracy"), draw_curves(whole, "time")):
            assert "clipped" in figure["layout"]["yaxis"]["title"]["text"]
