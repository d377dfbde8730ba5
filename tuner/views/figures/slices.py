"""Slice plots: each trial's value against each parameter, and against its resource usage and speed."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, NamedTuple

from tuner.record.records import TrialRecord, finite, kept
from tuner.record.report_keys import SPEED
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures import values
from tuner.views.figures.parallel import MOST_PARAMETERS, Axis, parallel_of, sampled
from tuner.views.figures.scales import clipped, unclipped, value_axis
from tuner.views.labels import BEST_COLOR, GRAY, MAIN_COLOR, escaped, label_of, tick

MOST_AXES = 24
MANY = 300  # trials: from here on, marks of full size cover each other
MOST_NAMED = 6  # axes in the text about the plots
USAGE_PREFIXES = ("cpu_", "rss_", "gpu_")


class Slices(NamedTuple):
    """The data of slice plots: `axes[k].values[i]` is trial i's position on axis k, `values[i]` its metric value.

    A position is None for a trial that does not have the parameter. `best` is the winner's index, or -1 if it is not
    among the trials. `choice` says which value of each trial is compared (`tuner.views.figures.values`).
    """

    across: str
    axes: list[Axis]
    values: list[float]
    labels: list[str]
    trials: list[str]
    pruned: list[bool]
    best: int
    mode: str
    choice: str


def slices_of(record: ExperimentRecord, choice: str = "") -> Slices:
    """Returns the slices of the first MOST_AXES parameters that differ between trials, on the axes of `parallel_of`."""
    parallel = parallel_of(record, choice)
    return _slices("parameters", parallel.axes[:-1][:MOST_AXES], record, parallel.choice)


def usage_of(record: ExperimentRecord, choice: str = "") -> Slices:
    """Returns the slices of resource usage: per trial the mean of each column that all trials have and that varies."""
    choice = values.chosen(record, choice)
    means = [means_of(trial) for trial, _ in sampled(record, choice)]
    names = islice(dict.fromkeys(name for each in means for name in each), MOST_PARAMETERS)
    axes = [Axis(name, [each.get(name, math.nan) for each in means], [], []) for name in names]
    known = [axis for axis in axes if all(map(math.isfinite, axis.known)) and len(set(axis.known)) > 1]
    return _slices("usage", known[:MOST_AXES], record, choice)


@kept
def means_of(trial: TrialRecord) -> dict[str, float]:
    """Returns the mean over a trial's reports of each column of usage or speed in its last report.

    One pass over the reports serves all columns, because one pass per column would take minutes if both are many.
    """
    last = trial.reports[-1].metrics if trial.reports else {}
    names = islice((name for name in last if name in SPEED or name.startswith(USAGE_PREFIXES)), MOST_PARAMETERS)
    columns: dict[str, list[float]] = {name: [] for name in names}
    for report in trial.reports if columns else ():
        for name, each in report.metrics.items():
            if name in columns and (value := finite(each)) is not None:
                columns[name].append(value)
    # Each value is divided before it is added, because the sum of large values could overflow.
    return {name: math.fsum(value / len(values) for value in values) for name, values in columns.items() if values}


def _slices(across: str, axes: list[Axis], record: ExperimentRecord, choice: str) -> Slices:
    compared, winner = sampled(record, choice), record.best()
    trials = [trial for trial, _ in compared]
    return Slices(
        across,
        axes,
        [value for _, value in compared],
        [label_of(trial) for trial in trials],
        [trial.id for trial in trials],
        [trial.status == "pruned" for trial in trials],
        next((i for i, trial in enumerate(trials) if winner and trial.id == winner[0].id), -1),
        record.experiment.mode,
        choice,
    )


def draw_slices(data: Slices, metric: str, columns: int = 3) -> dict[str, Any]:
    """Draws a grid of scatter plots that share the metric's axis. Of many trials, the marks are small and lighter."""
    rows = math.ceil(len(data.axes) / columns)
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = {
        "grid": {"rows": rows, "columns": min(columns, len(data.axes)), "pattern": "independent", "ygap": 0.35},
        "hovermode": "closest",
        "showlegend": False,
        "height": 60 + 230 * rows,
    }
    title, within = values.title_of(metric, data.choice), clipped(data.values, data.mode)
    layout["meta"] = {"text": _described(data, title), **unclipped(title, within)}
    color = [GRAY if pruned else MAIN_COLOR for pruned in data.pruned]
    many = len(color) > MANY
    size, opacity = [4 if many else 6] * len(color), [0.4 if many else 0.75] * len(color)
    if data.best >= 0:
        color[data.best], size[data.best], opacity[data.best] = BEST_COLOR, 11, 1.0
    marker = {"color": color, "size": size, "opacity": opacity, "line": {"width": 0}}
    for i, axis in enumerate(data.axes):
        number = str(i + 1) if i else ""
        trace = {"type": "scattergl", "mode": "markers", "x": axis.values, "y": data.values, "text": data.labels}
        hover = f"%{{text}}<br>{escaped(metric, 40)} %{{y:.5g}}<extra></extra>"
        trace |= {"meta": data.across, "customdata": [escaped(each) for each in data.trials]}
        traces.append(trace | {"xaxis": f"x{number}", "yaxis": f"y{number}", "marker": marker, "hovertemplate": hover})
        across: dict[str, Any] = {"title": {"text": escaped(axis.name, 30)}}
        if axis.ticks:
            across |= {"tickvals": axis.ticks, "ticktext": [tick(text, 12) for text in axis.texts]}
        layout[f"xaxis{number}"] = across
        first = value_axis(title, within) if i % columns == 0 else {}
        # A row has one scale, so only its first plot has the texts, which could cover the plot beside it.
        layout[f"yaxis{number}"] = {**first, "showticklabels": i % columns == 0, **({"matches": "y"} if i else {})}
    return {"data": traces, "layout": layout}


def _described(data: Slices, title: str) -> str:
    """Describes the plots in a sentence or two: the axes, and where on them the best trial is."""
    names = ", ".join(tick(axis.name, 24) for axis in data.axes[:MOST_NAMED])
    more = f" and {len(data.axes) - MOST_NAMED} more" if len(data.axes) > MOST_NAMED else ""
    text = f"{counted(len(data.values), 'trial')}: {tick(title, 60)} against {names}{more}."
    if data.best < 0:
        return text
    at = [(axis, axis.values[data.best]) for axis in data.axes[:MOST_NAMED]]
    where = ", ".join(f"{tick(axis.name, 24)} {_label(axis, place)}" for axis, place in at if place is not None)
    return f"{text} The best trial, {tick(data.trials[data.best], 40)}, is at {where}."


def _label(axis: Axis, place: float) -> str:
    """The label of a position: the text of its tick, or its number; a logarithmic axis has positions of log10."""
    if place in axis.ticks:
        return tick(axis.texts[axis.ticks.index(place)], 16)
    return f"{10**place if axis.ticks else place:.4g}"
