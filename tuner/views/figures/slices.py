"""Slice plots: each trial's value against each parameter, and against its resource usage and speed."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

from tuner.record.records import TrialRecord, finite, kept
from tuner.record.report_keys import SPEED
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures.drawing import (
    BEST_COLOR,
    GRAY,
    MAIN_COLOR,
    Figure,
    clipped,
    escaped,
    figure,
    label_of,
    points,
    tick,
    titled,
    value_axis,
)
from tuner.views.figures.parallel import MOST_PARAMETERS, Axis, parallel_of, sampled, too_few
from tuner.views.figures.values import chosen, title_of

MOST_AXES, COLUMNS = 24, 3
MANY = 300  # trials: from here on, marks of full size cover each other
MOST_NAMED = 6  # axes in the text about the plots
USAGE_PREFIXES = ("cpu_", "rss_", "gpu_")


def draw_slices(record: ExperimentRecord, choice: str = "") -> Figure | None:
    """Draws one plot for each of the first MOST_AXES parameters that differ between trials."""
    return _slices("parameters", parallel_of(record, choice).axes, record, choice)


def draw_usage(record: ExperimentRecord, choice: str = "") -> Figure | None:
    """Draws one plot for each column of resource usage that all trials have and that varies: its mean per trial."""
    means = [means_of(trial) for trial, _ in sampled(record, chosen(record, choice))]
    names = islice(dict.fromkeys(name for each in means for name in each), MOST_PARAMETERS)
    axes = [Axis(name, [each.get(name, math.nan) for each in means]) for name in names]
    known = [axis for axis in axes if all(map(math.isfinite, axis.known)) and len(set(axis.known)) > 1]
    return _slices("usage", known, record, choice)


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


def _slices(meta: str, axes: list[Axis], record: ExperimentRecord, choice: str) -> Figure | None:
    """Draws a grid of scatter plots that share the metric's axis. Of many trials, the marks are small and lighter."""
    if not axes:
        return too_few(record, choice)
    metric, choice, axes = record.experiment.metric, chosen(record, choice), axes[:MOST_AXES]
    trials, values = map(list, zip(*sampled(record, choice), strict=True))
    winner = record.best()
    best = next((i for i, trial in enumerate(trials) if winner and trial.id == winner[0].id), -1)
    many = len(trials) > MANY
    color = [GRAY if trial.status == "pruned" else MAIN_COLOR for trial in trials]
    size, opacity = [4 if many else 6] * len(trials), [0.4 if many else 0.75] * len(trials)
    if best >= 0:
        color[best], size[best], opacity[best] = BEST_COLOR, 11, 1.0
    title, within = title_of(metric, choice), clipped(values, record.experiment.mode)
    look = {
        "type": "scattergl", "text": [label_of(trial) for trial in trials], "meta": meta,
        "hovertemplate": f"%{{text}}<br>{escaped(metric, 40)} %{{y:.5g}}<extra></extra>",
        "marker": {"color": color, "size": size, "opacity": opacity, "line": {"width": 0}},
    }  # fmt: skip
    rows, traces = math.ceil(len(axes) / COLUMNS), []
    layout: dict[str, Any] = {}
    for i, axis in enumerate(axes):
        number, is_first = str(i + 1) if i else "", i % COLUMNS == 0
        plot = points("markers", axis.values, values, [trial.id for trial in trials], **look)
        traces.append(plot | {"xaxis": f"x{number}", "yaxis": f"y{number}"})
        ticks = {"tickvals": axis.ticks, "ticktext": [tick(text, 12) for text in axis.texts]} if axis.ticks else {}
        layout[f"xaxis{number}"] = titled(escaped(axis.name, 30), **ticks)
        # A row has one scale, so only its first plot has the texts, which could cover the plot beside it.
        own = value_axis(title, within) if is_first else {}
        layout[f"yaxis{number}"] = own | {"showticklabels": is_first, **({"matches": "y"} if i else {})}
    grid = {"rows": rows, "columns": min(COLUMNS, len(axes)), "pattern": "independent", "ygap": 0.35}
    text = _described(axes, trials, title, best)
    return figure(traces, text, clip=(title, within), grid=grid, showlegend=False, height=60 + 230 * rows, **layout)


def _described(axes: list[Axis], trials: list[TrialRecord], title: str, best: int) -> str:
    """Describes the plots in a sentence or two: the axes, and where on them the best trial is."""
    names = ", ".join(tick(axis.name, 24) for axis in axes[:MOST_NAMED])
    more = f" and {len(axes) - MOST_NAMED} more" if len(axes) > MOST_NAMED else ""
    text = f"{counted(len(trials), 'trial')}: {tick(title, 60)} against {names}{more}."
    if best < 0:
        return text
    at = [(axis, axis.values[best]) for axis in axes[:MOST_NAMED]]
    where = ", ".join(f"{tick(axis.name, 24)} {_label(axis, place)}" for axis, place in at if place is not None)
    return f"{text} The best trial, {tick(trials[best].id, 40)}, is at {where}."


def _label(axis: Axis, place: float) -> str:
    """Returns a position's label: its tick's text, else its number. On a logarithmic axis, `place` is a log10."""
    if place in axis.ticks:
        return tick(axis.texts[axis.ticks.index(place)], 16)
    return f"{10**place if axis.ticks else place:.4g}"
