"""Draws the metrics of one trial over its epochs, with the cutoffs that it was compared with."""

from __future__ import annotations

import math
from typing import Any

from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures import plot
from tuner.views.figures.parameters import USAGE_PREFIXES

MAX_LISTED = 4  # maximum number of metrics in the text about the figure
MOST_METRICS = 16  # maximum number of plots in the figure
MAX_SHOWN_REPORTS = 2000  # maximum number of reports shown: the table has the last ones, the figure an even sample


def draw_best(record: ExperimentRecord) -> plot.Figure | None:
    """Draws the best trial's searched metric, and the one that the rungs compare if it is another one."""
    if (best := record.best()) is None:
        return None
    trial, report = best
    compared, wanted = record.experiment.compared.metric, record.experiment.wanted.metric
    shown = {compared, wanted} & {name for each in trial.reports for name in each.metrics}
    return draw_metrics(trial, compared, report.epoch, wanted, most=len(shown))


def draw_metrics(
    trial: TrialRecord, metric: str, best_epoch: int | None, wanted: str = "", most: int = MOST_METRICS
) -> plot.Figure:
    """Draws a plot per varying metric, at most `most`: `metric` with cutoffs first, `wanted` next, usage last."""
    place = {wanted: 1, metric: 0}
    names = sorted(_varied(trial, *place), key=lambda name: (place.get(name, 2), name.startswith(USAGE_PREFIXES)))
    shown = names[:most]
    reports = trial.reports[:: math.ceil(len(trial.reports) / MAX_SHOWN_REPORTS) or 1]
    axes: dict[str, Any] = {}
    traces, texts = [], []
    for i, name in enumerate(shown):
        number = str(i + 1) if i else ""
        values = [(r.epoch, finite(r.metrics[name])) for r in reports if name in r.metrics]
        colors = [plot.BEST_COLOR if epoch == best_epoch else plot.MAIN_COLOR for epoch, _ in values]
        marker = {"color": colors, "size": 5}
        look = {"marker": marker, "name": plot.escaped(name, 40), "xaxis": f"x{number}", "yaxis": f"y{number}"}
        line = {"color": plot.MAIN_COLOR, "width": 1.5}
        traces.append(plot.points("lines+markers", values, line=line, **look))
        axes[f"xaxis{number}"] = plot.titled("epoch" if i >= len(shown) - 2 else "")
        axes[f"yaxis{number}"] = plot.axis_of(name, 24)
        known = [v for report in trial.reports if (v := finite(report.metrics.get(name))) is not None]
        texts += [f"{plot.tick(name, 40)} from {known[0]:.5g} to {known[-1]:.5g}"] if known and i < MAX_LISTED else []
    cut = [(d.epoch, d.cutoff) for d in trial.decisions if finite(d.cutoff) is not None]
    dash = {"symbol": "line-ew-open", "size": 14, "color": plot.STOP_COLOR, "line": {"width": 2}}
    look = {"name": "cutoff", "marker": dash, "xaxis": "x", "yaxis": "y"}
    traces.append(plot.points("markers", cut, **look))
    more = f" and {counted(len(shown) - MAX_LISTED, 'more metric')}" if len(shown) > MAX_LISTED else ""
    text = f"Over {counted(len(trial.reports), 'report')}: {', '.join(texts)}{more}." if texts else ""
    rows = math.ceil(len(shown) / 2)
    grid = {"rows": rows, "columns": min(2, len(shown)), "pattern": "independent", "ygap": 0.3}
    return plot.figure(traces, text, grid=grid, showlegend=False, height=60 + 190 * rows, **axes)


def _varied(trial: TrialRecord, *kept: str) -> list[str]:
    """Returns the `kept` metrics and those that differ between reports; with one report, all finite metrics."""
    first: dict[str, float] = {}
    varying: dict[str, bool] = {}  # metric name, in order of first report -> whether it is returned
    for report in trial.reports:
        for name, each in report.metrics.items():
            varies = varying.setdefault(name, name in kept)
            if not varies and (value := finite(each)) is not None:
                varying[name] = value != first.setdefault(name, value) or len(trial.reports) == 1
    return [name for name, varies in varying.items() if varies]
