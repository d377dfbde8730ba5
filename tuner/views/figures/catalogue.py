"""Draws an experiment's record as Plotly figures: for each, one function collects plain data, another draws it.

A figure is a dictionary of Plotly's schema, made without importing plotly. `Plotly.react` and
`plotly.graph_objects.Figure` accept it unchanged. Texts from a trial's parameters are escaped, because Plotly reads
texts as HTML.

In a trace that shows trials, `customdata` has the trial's id for each point or bar (None in the gaps between lines),
and `meta` names what the trace shows. The layout's `meta` has `text`, a description in words for readers who do not see
the figure, and `clipped`, if an axis leaves out outliers: the axis and its title without the clipping.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tuner.record.results import ExperimentRecord
from tuner.views.figures.curves import Figure, curves_of, curves_text, draw_curves
from tuner.views.figures.history import draw_history, history_of
from tuner.views.figures.lineage import draw_lineage, lineage_of
from tuner.views.figures.parallel import draw_parallel, parallel_of
from tuner.views.figures.rung_values import draw_rung_values, rung_values_of
from tuner.views.figures.scales import empty_figure
from tuner.views.figures.slices import draw_slices, slices_of, usage_of
from tuner.views.figures.timeline import draw_timeline, timeline_of
from tuner.views.figures.values import default, title_of


def _curves(record: ExperimentRecord) -> Figure | None:
    curves = curves_of(record)
    if not any(value is not None for curve in curves.curves for value in curve.values):
        return None
    figure = draw_curves(curves)
    figure["layout"]["meta"]["text"] = curves_text(record)
    return figure


def _history(record: ExperimentRecord) -> Figure | None:
    return draw_history(history_of(record)) if record.stats.improvements else None


def _rung_values(record: ExperimentRecord) -> Figure | None:
    values = rung_values_of(record)
    return draw_rung_values(values) if any(rung.values for rung in values.rungs) else None


def _lineage(record: ExperimentRecord) -> Figure | None:
    return draw_lineage(lineage_of(record)) if record.experiment.scheduler == "pbt" and record.stats.ranked else None


def _parallel(record: ExperimentRecord, choice: str = "") -> Figure | None:
    parallel = parallel_of(record, choice)
    return draw_parallel(parallel) if len(parallel.axes) > 1 else _too_few(record, choice)


def _slices(record: ExperimentRecord, choice: str = "") -> Figure | None:
    slices = slices_of(record, choice)
    return draw_slices(slices, record.experiment.metric) if slices.axes else _too_few(record, choice)


def _timeline(record: ExperimentRecord) -> Figure | None:
    timeline = timeline_of(record)
    return draw_timeline(timeline) if timeline.spans else None


def _usage(record: ExperimentRecord, choice: str = "") -> Figure | None:
    usage = usage_of(record, choice) if record.stats.improvements else None
    return draw_slices(usage, record.experiment.metric) if usage and usage.axes else _too_few(record, choice)


def _too_few(record: ExperimentRecord, choice: str) -> Figure | None:
    """Returns a figure that says that there is nothing to compare, if only the reader's choice is the reason."""
    if not choice or choice == default(record) or len(parallel_of(record).axes) < 2:
        return None
    return empty_figure(f"No two trials with different settings have a {title_of(record.experiment.metric, choice)}.")


# Contour, importance and what-if are not among them: they need a choice by the reader or take long, and the service
# draws them on request.
FigureName = Literal["curves", "rung_values", "lineage", "history", "parallel", "slices", "timeline", "usage"]
FIGURES: dict[FigureName, Callable[..., Figure | None]] = {
    "curves": _curves, "rung_values": _rung_values, "lineage": _lineage, "history": _history, "parallel": _parallel,
    "slices": _slices, "timeline": _timeline, "usage": _usage,
}  # fmt: skip
# The figures that compare one value of each trial; they take the choice of that value (`tuner.views.figures.values`).
COMPARING: frozenset[FigureName] = frozenset({"parallel", "slices", "usage"})


def all_figures(record: ExperimentRecord) -> dict[str, Figure]:
    """Draws all of FIGURES; leaves out figures without data."""
    return {name: figure for name, draw in FIGURES.items() if (figure := draw(record))}
