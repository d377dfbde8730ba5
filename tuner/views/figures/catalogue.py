"""The figures that are quick to draw and that the reader need not specify; the service draws others on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tuner.record.results import ExperimentRecord
from tuner.views.figures.curves import draw_curves, draw_history
from tuner.views.figures.failing import draw_failing
from tuner.views.figures.parameters import draw_parallel, draw_slices, draw_usage
from tuner.views.figures.plot import Figure
from tuner.views.figures.rung_values import draw_rung_values
from tuner.views.figures.timeline import draw_lineage, draw_timeline

FigureName = Literal[
    "curves", "rung_values", "lineage", "history", "parallel", "slices", "failing", "timeline", "usage"
]
FIGURES: dict[FigureName, Callable[..., Figure | None]] = {
    "curves": draw_curves, "rung_values": draw_rung_values, "lineage": draw_lineage, "history": draw_history,
    "parallel": draw_parallel, "slices": draw_slices,
    "failing": draw_failing, "timeline": draw_timeline, "usage": draw_usage,
}  # fmt: skip
# The figures that compare one value of each trial; they take a choice of this value (`tuner.views.figures.values`).
COMPARING: frozenset[FigureName] = frozenset({"parallel", "slices", "usage"})


def all_figures(record: ExperimentRecord) -> dict[str, Figure]:
    """Draws all of FIGURES; leaves out figures without data."""
    return {name: figure for name, draw in FIGURES.items() if (figure := draw(record))}
