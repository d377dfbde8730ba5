"""Figures and tables of records: what is shown, checked as data, and as Plotly's own schema."""

import json
import math
from dataclasses import replace

import plotly.graph_objects as go
import pytest

from tuner.record.records import Decision, Report, TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.record.texts import MOST_NAME, flat
from tuner.spec.experiment import Experiment
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.contour import draw_contour
from tuner.views.figures.curves import draw_curves, draw_history
from tuner.views.figures.importance import Importance, draw_importance
from tuner.views.figures.parameters import MOST_PARAMETERS, parallel_of, parameters_of
from tuner.views.figures.whatif import draw_whatif
from tuner.views.one_trial import draw_metrics
from tuner.views.whatif import what_if


def trial(number, values, status="completed", decisions=(), **config):
    reports = tuple(Report(e, {"loss": v}, None, 10 * number + e, 10 * number + e) for e, v in enumerate(values, 1))
    return TrialRecord(f"{number:05}", config or {"lr": 0.1}, status, "r", reports, tuple(decisions))


def decided(epoch, value, cutoff, action="stop", rung=None, bracket=0, recorded=1):
    return Decision(epoch, rung or epoch, bracket, value, cutoff, recorded, action, "why")


def record(*trials, params=None, **options):
    experiment = Experiment(**{"max_epochs": 8, "name": "e", "results": "/nowhere", **options})
    return ExperimentRecord(experiment, {"space": {"params": params or {}}}, trials, "finished")


@pytest.fixture
def searched():
    return record(
        trial(0, [3.0, 2.0, 1.0], decisions=[decided(1, 3.0, None, "continue", recorded=0)]),
        trial(1, [4.0], "pruned", [decided(1, 4.0, 3.9)]),
        trial(2, [3.5, 3.0], "pruned", [decided(1, 3.5, 3.6, "continue"), decided(2, 3.0, 2.0)]),
        trial(3, [2.5, math.nan], "pruned", [Decision(2, None, None, math.nan, None, 0, "stop", "diverged")]),
    )


def test_figures_are_plotlys_and_strict_json(searched):
    figures = all_figures(searched)
    assert set(figures) == {"curves", "rung_values", "history"}  # the one parameter is the same in all
    for figure in figures.values():
        go.Figure(figure)
        json.dumps(figure, allow_nan=False)


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
    assert {"curves", "history", "parallel", "slices", "timeline"} < set(figures)
    for name, figure in figures.items():
        shown = {each for trace in figure["data"] for each in trace.get("customdata", [])} - {None}
        assert shown <= ids and (shown == ids or name in ("history", "rung_values", "timeline"))
        for trace in figure["data"]:
            values = trace.get("y") or trace.get("dimensions", [{}])[0].get("values") or []
            if "customdata" not in trace:
                assert trace["type"] == "contour" or trace["meta"] == "cutoff"  # of a rung, not of one trial
            else:
                assert len(trace["customdata"]) == len(values), name
                gaps = zip(trace["customdata"], values, strict=True)
                assert all(value is None for each, value in gaps if each is None)


def test_history_goes_by_time_and_keeps_the_improvements(searched):
    (line,) = draw_history(searched)["data"]
    assert (line["x"], line["y"]) == ([1, 2, 3, 8], [3.0, 2.0, 1.0, 1.0])
    (turned,) = draw_history(record(*searched.trials, mode="max"))["data"]
    assert (turned["x"], turned["y"]) == ([1, 4, 8], [3.0, 4.0, 4.0])


def test_nothing_finite_is_no_figure():
    assert all_figures(record()) == {}
    assert all_figures(record(trial(0, [math.nan], "pruned"), trial(1, [], "failed"))) == {}


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


class TestConditionalParameters:
    def test_a_trial_without_a_parameter_is_empty_on_its_axis_and_log_axes_stay(self):
        axes = {axis.name: axis for axis in parallel_of(branched()).axes}
        beta, momentum = axes["optimizer/beta"], axes["optimizer/momentum"]
        assert beta.values[1::2] == [None] * 6 and momentum.values[::2] == [None] * 6
        assert beta.values[:5:2] == pytest.approx([-1, -3, -2]) and beta.texts == ["0.001", "0.01", "0.1"]
        assert momentum.texts == [] and momentum.values[1] == pytest.approx(1 / 12)
        assert axes["optimizer/lr"].texts == ["0.0001", "0.001", "0.01", "0.1"]
        assert axes["optimizer/warm"].texts == ["None", "on"] and axes["optimizer/warm"].values[1] is None

    def test_every_figure_is_drawn_and_a_missing_value_has_its_own_tick(self):
        whole = branched()
        for figure in all_figures(whole).values():
            go.Figure(figure)
            json.dumps(figure, allow_nan=False)
        dimensions = {each["label"]: each for each in all_figures(whole)["parallel"]["data"][0]["dimensions"]}
        for name in ("optimizer/beta", "optimizer/momentum", "optimizer/warm"):
            drawn = dimensions[name]
            assert drawn["ticktext"][0] == "(none)" and drawn["tickvals"][0] == drawn["range"][0] < drawn["tickvals"][1]
            assert drawn["values"].count(drawn["tickvals"][0]) == 6
        assert "(none)" not in dimensions["optimizer/kind"]["ticktext"]
        traces = all_figures(whole)["slices"]["data"]
        assert sum(None in each["x"] for each in traces) == 3


def trials_in(figure):
    return {trial for trace in figure["data"] for trial in trace.get("customdata", [])} - {None}


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
            (Decision(2, 2, 0, n + 0.5, 0.1, n, "stop", HOSTILE),), (HOSTILE,), {"CPU": 1}, f"{HOSTILE} node",
            1.0, n, n, ((float(n), n + 1.5),),
        )
        for n in range(12)
    ]  # fmt: skip
    whole = record(*trials, metric=metric)
    outcome = what_if(whole, "asha", 1, 2)
    figures = {
        **all_figures(whole),
        "contour": draw_contour(whole, f"{HOSTILE} lr", "b"),
        "importance": draw_importance(Importance([HOSTILE], [1.0], [0.1], 0.5, 12)),
        "what-if": draw_whatif(whole, outcome),
        "one trial": draw_metrics(trials[0], metric, 1),
    }
    assert set(figures) >= {"curves", "history", "parallel", "slices", "usage", "timeline"}
    for name, figure in figures.items():
        for text in strings(figure):
            plain = text.replace("<br>", "").replace("<extra></extra>", "")
            assert not {"<", "\x1b", "\x07", "\u202e", "\udcff"} & set(plain), (name, text)


def test_names_of_a_nested_setting_are_short_and_few():
    config = {"x" * 1000 + str(n): {f"{n}_{i}": i for i in range(100)} for n in range(20)}
    assert max(map(len, flat(config))) <= MOST_NAME <= 200
    wide = trial(0, [1.0], **{f"a{n}": {str(i): i for i in range(100)} for n in range(20)})
    assert len(parameters_of(wide)) == MOST_PARAMETERS < 2000
    deep = {"end": 1}
    for _ in range(300):
        deep = {"a": deep, "b": 2}
    assert len(flat(deep)) == 100 + 1 and all(len(name) <= MOST_NAME for name in flat(deep))
