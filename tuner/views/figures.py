"""Draws an experiment's record as Plotly figures. `curves_of` collects plain data, `draw_curves` makes Plotly's JSON.

A figure is a dictionary of Plotly's schema, made without importing plotly. `Plotly.react` and
`plotly.graph_objects.Figure` accept it unchanged. Texts from a trial's parameters are escaped, because Plotly reads
texts as HTML.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.views.history import draw_history, history_of
from tuner.views.labels import BEST_COLOR, GROUPS, escaped, label_of
from tuner.views.parallel import draw_parallel, parallel_of
from tuner.views.slices import draw_slices, slices_of, usage_of
from tuner.views.timeline import draw_timeline, timeline_of

Figure = dict[str, Any]
MAX_POINTS = 20_000  # of all curves together: a browser loads and draws them in well under a second
MAX_CURVES = 400  # more curves cannot be told apart


class Curve(NamedTuple):
    """One trial's learning curve: `values[i]` is the metric after `epochs[i]` epochs, None if it is not finite."""

    trial: str
    status: str
    label: str
    epochs: list[int]
    values: list[float | None]


class Stop(NamedTuple):
    """The epoch and value at which a trial was stopped, and the cutoff that the value was compared with.

    `cutoff` is None if the trial diverged or the rule used no cutoff.
    """

    trial: str
    label: str
    epoch: int
    value: float
    cutoff: float | None


class Curves(NamedTuple):
    """The learning curves to draw. `trials` counts all trials, drawn or not.

    `best` is the winner's id; `rungs` are epochs.
    """

    metric: str
    curves: list[Curve]
    stops: list[Stop]
    rungs: list[int]
    best: str
    trials: int


def curves_of(record: ExperimentRecord) -> Curves:
    """Returns the learning curves of the trials that `drawn` chooses, thinned to about MAX_POINTS points in all."""
    experiment, winner = record.experiment, record.best()
    trials = drawn(record)
    points = sum(len(trial.reports) for trial in trials)
    step = math.ceil(points / MAX_POINTS) if points else 1
    curves, stops = [], []
    for trial in trials:
        label = label_of(trial)
        last = len(trial.reports) - 1
        kept = [r for i, r in enumerate(trial.reports) if i % step == 0 or i == last]
        values = [finite(report.metrics.get(experiment.metric)) for report in kept]
        status = "running" if trial.status == "suggested" else trial.status
        curves.append(Curve(trial.id, status, label, [report.epoch for report in kept], values))
        stop = _stop_of(trial, experiment.metric, label)
        stops += [stop] if stop else []
    # Trials reach a rung between two epochs at the later epoch. At the last epoch, asha compares nothing.
    rungs = {math.ceil(at.rung) for at in record.standing.rungs}
    if experiment.scheduler == "asha":
        rungs |= {rung for rung in experiment.rungs() if rung < experiment.max_epochs}
    if experiment.scheduler == "median":
        rungs = set()  # the median rule compares at every epoch
    return Curves(experiment.metric, curves, stops, sorted(rungs), winner[0].id if winner else "", len(record.trials))


def drawn(record: ExperimentRecord) -> list[TrialRecord]:
    """Chooses at most MAX_CURVES trials (the winner may be one more) and returns them in order.

    All trials are returned if they are few enough. With more trials, an even sample of the pruned ones gets at least a
    quarter of MAX_CURVES, if there are that many. Trials that were not pruned take the other places: half of these for
    the best by value, half for an even sample of the rest. The winner is always included.
    """
    if len(record.trials) <= MAX_CURVES:
        return list(record.trials)
    pruned = [trial for trial in record.trials if trial.status == "pruned"]
    left = [trial for trial in record.trials if trial.status != "pruned"]
    room = MAX_CURVES - min(len(pruned), MAX_CURVES // 4)
    if len(left) > room:
        ranked = [trial for rank in record.standing.ranked if (trial := record.trials[rank.place]).status != "pruned"]
        half = room // 2
        better = {trial.id for trial in ranked[:half]}
        left = [*ranked[:half], *_evenly([trial for trial in left if trial.id not in better], room - half)]
    winner = record.best()
    chosen = {trial.id for trial in [*left, *_evenly(pruned, MAX_CURVES - len(left)), *(winner or ())[:1]]}
    return [trial for trial in record.trials if trial.id in chosen]


def _evenly(trials: list[TrialRecord], most: int) -> list[TrialRecord]:
    """Returns at most `most` trials at even distances, the first one among them."""
    return trials[:: max(1, math.ceil(len(trials) / max(1, most)))][:most]


def _stop_of(trial: TrialRecord, metric: str, label: str) -> Stop | None:
    """Returns where the trial was pruned; a trial that diverged is marked at its last finite value."""
    stops = [d for d in trial.decisions if d.action == "stop"]
    if trial.status != "pruned" or not stops:
        return None
    end = stops[-1]
    known = [(r.epoch, v) for r in trial.reports if (v := finite(r.metrics.get(metric))) is not None]
    value = finite(end.value)
    epoch, value = (end.epoch, value) if value is not None else known[-1] if known else (0, None)
    if value is None:
        return None
    return Stop(trial.id, f"{label}<br>{escaped(end.reason, 120)}", epoch, value, finite(end.cutoff))


def draw_curves(data: Curves) -> Figure:
    """Draws the learning curves by status, the winner on top.

    Rungs are vertical lines. Each stop is marked, together with the cutoff at the time of the stop.
    """
    traces = []
    for status, (name, color, opacity) in GROUPS.items():
        group = [curve for curve in data.curves if curve.status == status and curve.trial != data.best]
        if group:
            traces.append(_lines(group, name, status, color, opacity, width=1.3))
    winner = [curve for curve in data.curves if curve.trial == data.best]
    if winner:
        traces.append(_lines(winner, f"best: trial {escaped(data.best, 40)}", "best", BEST_COLOR, 1, width=3))
    traces += _stop_marks(data.stops)
    count = len(data.curves)
    few = (
        f"<br>{count} of {data.trials:,} trials drawn: the best ones and an even sample of the others"
        if count < data.trials
        else ""
    )
    layout = {
        "xaxis": {"title": {"text": f"epoch{few}"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": escaped(data.metric, 40)}},
        "hovermode": "closest",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.06, "x": 0},
        "shapes": [_rung_line(rung) for rung in data.rungs],
        "annotations": [_rung_name(rung, i == 0) for i, rung in enumerate(data.rungs)],
    }
    return {"data": traces, "layout": layout}


def _lines(curves: list[Curve], name: str, meta: str, color: str, opacity: float, width: float) -> Figure:
    """Draws all curves of one colour as a single trace, with gaps between them.

    One trace per trial would be slow with some hundreds of trials.
    """
    x: list[int | None] = []
    y: list[float | None] = []
    text: list[str] = []
    trials: list[str | None] = []
    for curve in curves:
        x += [*curve.epochs, None]
        y += [*curve.values, None]
        text += [curve.label] * len(curve.epochs) + [""]
        trials += [escaped(curve.trial)] * len(curve.epochs) + [None]
    look = {"line": {"color": color, "width": width}, "marker": {"color": color, "size": 4 + width}, "opacity": opacity}
    look |= {"hovertemplate": "%{text}<br>epoch %{x}: %{y:.5g}<extra></extra>"}
    points = {"x": x, "y": y, "text": text, "customdata": trials}
    return {"type": "scattergl", "mode": "lines+markers", "name": name, "meta": meta} | points | look


def _stop_marks(stops: list[Stop]) -> list[Figure]:
    cutoffs = [(stop, stop.cutoff) for stop in stops if stop.cutoff is not None]
    cross = {"symbol": "x", "size": 8, "color": "#d9534f"}
    dash = {"symbol": "line-ew-open", "size": 16, "color": "#d9534f", "line": {"width": 2}}
    marks: list[tuple[str, str, Figure, list[tuple[Stop, float]], str]] = [
        ("pruned here", "stop", cross, [(stop, stop.value) for stop in stops], "%{text}<extra></extra>"),
        ("cutoff at that time", "cutoff", dash, cutoffs, "cutoff %{y:.5g} for<br>%{text}<extra></extra>"),
    ]
    return [
        {"type": "scattergl", "mode": "markers", "name": name, "meta": meta, "marker": marker}
        | {"x": [stop.epoch for stop, _ in points], "y": [y for _, y in points]}
        | {"text": [stop.label for stop, _ in points], "hovertemplate": hover}
        | {"customdata": [escaped(stop.trial) for stop, _ in points]}
        for name, meta, marker, points, hover in marks
        if points
    ]


def _rung_line(rung: int) -> Figure:
    line = {"color": "#8b93a7", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": rung, "x1": rung, "y0": 0, "y1": 1, "yref": "paper", "layer": "below", "line": line}


def _rung_name(rung: int, first: bool) -> Figure:
    look = {"font": {"size": 10, "color": "#8b93a7"}, "showarrow": False}
    return {
        "text": f"rung {rung}" if first else str(rung),
        "x": rung,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
    } | look


def _curves(record: ExperimentRecord) -> Figure | None:
    return draw_curves(curves_of(record)) if record.standing.improvements else None


def _history(record: ExperimentRecord) -> Figure | None:
    return draw_history(history_of(record)) if record.standing.improvements else None


def _parallel(record: ExperimentRecord) -> Figure | None:
    parallel = parallel_of(record)
    return draw_parallel(parallel) if len(parallel.axes) > 1 else None


def _slices(record: ExperimentRecord) -> Figure | None:
    slices = slices_of(record)
    return draw_slices(slices, record.experiment.metric) if slices.axes else None


def _timeline(record: ExperimentRecord) -> Figure | None:
    timeline = timeline_of(record)
    return draw_timeline(timeline) if timeline.spans else None


def _usage(record: ExperimentRecord) -> Figure | None:
    usage = usage_of(record) if record.standing.improvements else None
    return draw_slices(usage, record.experiment.metric) if usage and usage.axes else None


# Contour, importance and what-if are not among them: they need a choice by the reader or take long, and the service
# draws them on request.
FigureName = Literal["curves", "history", "parallel", "slices", "timeline", "usage"]
FIGURES: dict[FigureName, Callable[[ExperimentRecord], Figure | None]] = {
    "curves": _curves, "history": _history, "parallel": _parallel, "slices": _slices, "timeline": _timeline,
    "usage": _usage,
}  # fmt: skip


def all_figures(record: ExperimentRecord) -> dict[str, Figure]:
    """Draws all of FIGURES; leaves out figures without data."""
    return {name: figure for name, draw in FIGURES.items() if (figure := draw(record))}
