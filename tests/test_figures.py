"""Figures and tables of records: what is shown, checked as data, and as Plotly's own schema."""

import json
import math
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from ray.tune.schedulers.async_hyperband import _Bracket

from tuner.errors import RequestError
from tuner.record.records import Decision, Report, TrialRecord
from tuner.record.results import ExperimentRecord
from tuner.spec.experiment import Experiment
from tuner.views.figures.catalogue import all_figures
from tuner.views.figures.contour import contour_of, draw_contour
from tuner.views.figures.curves import curves_of, draw_curves
from tuner.views.figures.history import history_of
from tuner.views.figures.importance import Importance, draw_importance
from tuner.views.figures.parallel import MOST_PARAMETERS, parallel_of, parameters_of
from tuner.views.figures.slices import usage_of
from tuner.views.figures.whatif import cuts_of, draw_whatif
from tuner.views.labels import MOST_NAME, escaped, flat
from tuner.views.one_trial import draw_metrics
from tuner.views.report import _contours
from tuner.views.tables import decision_rows, rung_rows, trial_rows
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


def test_curves_hold_every_trial_its_stop_and_the_rungs(searched):
    data = curves_of(searched)
    assert [(c.trial, c.status, c.values) for c in data.curves][3] == ("00003", "pruned", [2.5, None])
    assert [(s.epoch, s.value, s.cutoff) for s in data.stops] == [(1, 4.0, 3.9), (2, 3.0, 2.0), (1, 2.5, None)]
    assert data.rungs == [1, 2, 4] and data.best == "00000"


def test_rungs_of_other_schedulers_are_those_that_were_met(searched):
    assert curves_of(record(*searched.trials, scheduler="hyperband")).rungs == [1, 2]
    assert curves_of(record(*searched.trials, scheduler="median")).rungs == []


def test_a_rung_between_two_epochs_is_one_line_at_the_later_epoch():
    decisions = [decided(1, 3.0, None, "continue"), decided(2, 3.0, None, "continue", rung=1.5)]
    data = curves_of(record(trial(0, [3.0, 3.0], decisions=decisions), reduction_factor=1.5))
    assert data.rungs == [1, 2, 3, 4, 6]  # of 1, 1.5, 2.25, 3.375, 5.0625 and 7.59


def test_figures_are_plotlys_and_strict_json(searched):
    figures = all_figures(searched)
    assert set(figures) == {"curves", "rung_values", "history"}  # the one parameter is the same in all
    for figure in figures.values():
        go.Figure(figure)
        json.dumps(figure, allow_nan=False)


def test_pruned_trials_can_be_told_from_the_rest_and_the_winner_stays(searched):
    traces = draw_curves(curves_of(searched))["data"]
    assert [t.get("meta") for t in traces] == ["pruned", "best", "stop", "cutoff"]
    assert traces[1]["name"] == "best: trial 00000" and traces[1]["type"] == "scatter"


def test_every_point_and_bar_of_a_trial_has_the_trials_id():
    trials = [
        replace(trial(n, [3.0 + n, 2.0 + n], "pruned" if n > 3 else "completed", lr=n, b=n % 3), spans=((n, n + 2.0),))
        for n in range(5)
    ]
    trials.append(trial(5, [9.0], "pruned", [decided(1, 9.0, 8.0)], lr=7, b=1))
    whole, ids = record(*trials, max_epochs=2), {each.id for each in trials}
    outcome = what_if(whole, "asha", 1, 2)
    contour = draw_contour(contour_of(whole, "lr", "b"), "loss", "min")
    figures = {**all_figures(whole), "contour": contour, "what-if": draw_whatif(cuts_of(whole, outcome), outcome, "l")}
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
    data = history_of(searched)
    assert (data.epochs, data.values) == ([1, 2, 3, 8], [3.0, 2.0, 1.0, 1.0])
    turned = history_of(record(*searched.trials, mode="max"))
    assert (turned.epochs, turned.values) == ([1, 4, 8], [3.0, 4.0, 4.0])


def test_nothing_finite_is_no_figure():
    assert all_figures(record()) == {}
    assert all_figures(record(trial(0, [math.nan], "pruned"), trial(1, [], "failed"))) == {}


def test_one_trial_is_drawn():
    assert set(all_figures(record(trial(0, [1.0])))) == {"curves", "history"}


def test_many_points_are_thinned_and_keep_their_ends(monkeypatch):
    monkeypatch.setattr("tuner.views.figures.curves.MAX_POINTS", 20)
    data = curves_of(record(*(trial(n, [float(e) for e in range(10, 0, -1)]) for n in range(10))))
    assert {(c.epochs[0], c.epochs[-1]) for c in data.curves} == {(1, 10)}
    assert sum(len(c.epochs) for c in data.curves) <= 30


def test_parallel_axes_follow_what_was_declared():
    params = {"lr": {"kind": "loguniform"}, "act": {"kind": "choice"}, "width": {"kind": "choice"}}
    trials = [
        trial(0, [1.0], lr=0.001, act="relu", width=8, drop=0.1, same=1),
        trial(1, [2.0], lr=0.1, act="gelu", width=16, drop=0.2, same=1),
        trial(2, [3.0], lr=0.01, act="<b>", width=128, same=1),
        trial(3, [math.nan], lr=0.5, act="none", width=4, drop=0.3, same=2),
    ]
    axes = {axis.name: axis for axis in parallel_of(record(*trials, params=params)).axes}
    assert list(axes) == ["lr", "act", "width", "drop", "loss"]
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

    def test_a_contour_has_the_trials_that_have_both_parameters(self):
        data = contour_of(branched(), "optimizer/beta", "optimizer/lr")
        assert data.values == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0] == [float(text.split()[1][:5]) for text in data.labels]
        with pytest.raises(RequestError, match="no trial has both 'optimizer/momentum' and 'optimizer/beta'"):
            contour_of(branched(), "optimizer/momentum", "optimizer/beta")

    def test_the_report_leaves_out_a_contour_without_trials(self):
        pairs = [key.replace("optimizer/", "") for key in _contours(branched())]
        assert "beta, warm" in pairs and not {"momentum, beta", "beta, momentum", "warm, momentum"} & {*pairs}
        assert "kind, lr" in pairs and "kind, momentum" not in pairs  # all trials with a momentum have one kind


def test_texts_are_escaped_cut_and_in_one_line():
    assert escaped("<img src=x>\n&", 40) == "&lt;img src=x&gt; &amp;"
    assert escaped("x" * 50, 10) == "xxxxxxx..."


def test_a_rung_counts_who_came_and_who_would_pass_now(searched):
    first, second = rung_rows(searched)
    assert (first.rung, first.came, first.went_on, first.stopped, first.best) == (1, 3, 2, 1, 3.0)
    assert (first.cutoff_now, first.would_pass_now) == (3.5, 2)
    assert (second.came, second.stopped, second.cutoff_then) == (1, 1, 2.0)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("factor", [2, 3, 4.5])
def test_the_cutoff_now_is_rays(mode, factor):
    values = [0.3, 1.7, 0.9, 1.1, 2.2]
    sign = 1 if mode == "max" else -1
    theirs = sign * _Bracket(1, 8, factor, 0).cutoff({n: sign * value for n, value in enumerate(values)})
    trials = [trial(n, [value], decisions=[decided(1, value, None)]) for n, value in enumerate(values)]
    (row,) = rung_rows(record(*trials, mode=mode, reduction_factor=factor))
    assert row.cutoff_now == pytest.approx(theirs)
    assert row.would_pass_now == sum(sign * value >= sign * theirs for value in values)
    (row,) = rung_rows(record(*trials, mode=mode, reduction_factor=factor, scheduler="median"))
    assert (row.cutoff_now, row.would_pass_now) == (None, None)


def test_a_trial_that_was_paused_went_on_if_it_was_promoted():
    paused = [decided(1, 2.0, None, "pause")]
    promoted = [*paused, decided(1, 2.0, None, "continue")]
    (row,) = rung_rows(record(trial(0, [2.0, 1.0], decisions=promoted), trial(1, [3.0], "running", paused)))
    assert (row.came, row.went_on, row.waiting) == (2, 1, 1)


def test_decisions_are_sorted_by_their_margin(searched):
    margins = [row.margin for row in decision_rows(searched)]
    assert margins[:3] == pytest.approx([0.1, 0.1, 1.0]) and margins[3:] == [None, None]


def test_a_stop_at_the_last_epoch_is_no_prune():
    end = Decision(3, None, None, 1.0, None, 0, "stop", "trained its 3 epochs")
    done = trial(0, [3.0, 2.0, 1.0], decisions=[decided(1, 3.0, 4.0, "continue"), decided(2, 2.0, None, "pause"), end])
    worse = trial(1, [4.0], "pruned", [decided(1, 4.0, 3.9)])
    failed = trial(2, [4.0], "failed", [Decision(1, None, None, None, None, 0, "stop", "reports no loss")])
    outcomes = {(row.trial, row.epoch): row.outcome for row in decision_rows(record(done, worse, failed))}
    assert outcomes == {
        ("00000", 1): "continued", ("00000", 2): "paused", ("00000", 3): "completed", ("00001", 1): "pruned",
        ("00002", 1): "failed",
    }  # fmt: skip


def test_a_trials_row_has_its_best_last_and_rung(searched):
    rows = trial_rows(searched)
    assert (rows[0].best, rows[0].best_epoch, rows[0].last, rows[0].epochs) == (1.0, 3, 1.0, 3)
    assert rows[2].rung == 2 and math.isnan(rows[3].last)


def test_of_very_many_trials_the_survivors_the_best_and_a_sample_of_the_pruned_are_drawn(monkeypatch):
    monkeypatch.setattr("tuner.views.figures.curves.MAX_CURVES", 40)
    pruned = [trial(n, [100.0 + n], "pruned") for n in range(100)]
    left = [trial(100 + n, [float(n)]) for n in range(20)]
    data = curves_of(record(*pruned, *left))
    shown = {curve.trial for curve in data.curves}
    assert {t.id for t in left} <= shown and len(shown) <= 40 and data.best == "00100"
    assert len(shown & {t.id for t in pruned[:50]}) == len(shown & {t.id for t in pruned[50:]}) >= 8
    assert f"{len(shown)} of 120 trials drawn" in draw_curves(data)["layout"]["xaxis"]["title"]["text"]
    many = curves_of(record(*(trial(n, [float(n)]) for n in range(100, 0, -1))))
    shown = {curve.trial for curve in many.curves}
    assert {f"{n:05}" for n in range(1, 21)} <= shown and len(shown) <= 40 and many.trials == 100
    assert draw_curves(curves_of(record(*left)))["layout"]["xaxis"]["title"]["text"] == "epoch"


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
        "contour": draw_contour(contour_of(whole, f"{HOSTILE} lr", "b"), metric, "min"),
        "importance": draw_importance(Importance([HOSTILE], [1.0], [0.1], 0.5, 12)),
        "what-if": draw_whatif(cuts_of(whole, outcome), outcome, metric),
        "one trial": draw_metrics(trials[0], metric, 1),
    }
    assert set(figures) >= {"curves", "history", "parallel", "slices", "usage", "timeline"}
    for name, figure in figures.items():
        for text in strings(figure):
            plain = text.replace("<br>", "").replace("<extra></extra>", "")
            assert not {"<", "\x1b", "\x07", "\u202e", "\udcff"} & set(plain), (name, text)


class Counted(dict):
    """Metrics that count how many values they are asked for."""

    asked = 0

    def get(self, name, default=None):
        Counted.asked += 1
        return super().get(name, default)

    def __getitem__(self, name):
        Counted.asked += 1
        return super().__getitem__(name)

    def items(self):
        Counted.asked += len(self)
        return super().items()


def test_reports_are_looked_at_once_however_many_names_they_have():
    def reported(number, names_of):
        reports = (Report(e, Counted({"loss": 1 / e, **names_of(e)}), None, e, e) for e in range(1, 101))
        return TrialRecord(str(number), {"lr": number}, "completed", "r", tuple(reports))

    Counted.asked = 0
    distinct = reported(0, lambda epoch: {f"m{epoch}_{i}": 1.0 for i in range(20)})
    assert len(draw_metrics(distinct, "loss", 1)["data"]) == 1
    assert Counted.asked < 10_000  # of 2,100 values; a look for each of 2,001 names at each report would be 200,000
    last = [
        reported(n, lambda epoch, n=n: {f"cpu_{i}": n + i for i in range(400 if epoch == 100 else 1)}) for n in (0, 1)
    ]
    Counted.asked = 0
    used = usage_of(record(*last))
    assert len(used.axes) == 24 and used.axes[0].values == pytest.approx([0.0, 1.0])
    assert Counted.asked < 10_000


def test_a_metric_whose_name_begins_like_that_of_a_speed_is_no_usage():
    def reported(number):
        metrics = {"loss": 0.5, "train_s": 1.0 + number, "train_score": float(number), "cpu_percent": 50.0 + number}
        return TrialRecord(str(number), {"lr": number}, "completed", "r", (Report(1, metrics, None, 1.0, 1),))

    used = usage_of(record(reported(0), reported(1)))
    assert [axis.name for axis in used.axes] == ["train_s", "cpu_percent"]


def test_names_of_a_nested_setting_are_short_and_few():
    config = {"x" * 1000 + str(n): {f"{n}_{i}": i for i in range(100)} for n in range(20)}
    assert max(map(len, flat(config))) <= MOST_NAME <= 200
    wide = trial(0, [1.0], **{f"a{n}": {str(i): i for i in range(100)} for n in range(20)})
    assert len(parameters_of(wide)) == MOST_PARAMETERS < 2000
    deep = {"end": 1}
    for _ in range(300):
        deep = {"a": deep, "b": 2}
    assert len(flat(deep)) == 100 + 1 and all(len(name) <= MOST_NAME for name in flat(deep))
