"""The figures that are quick to draw and that the reader need not specify; the service draws others on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from tuner.errors.one_line import told
from tuner.record.results import ExperimentRecord
from tuner.views.figures.answer import draw_confirmed, draw_front
from tuner.views.figures.curves import chosen_curves, draw_curves, draw_history
from tuner.views.figures.failing import draw_failing
from tuner.views.figures.metrics import draw_best
from tuner.views.figures.parameters import draw_parallel, draw_slices, draw_usage
from tuner.views.figures.plot import Figure
from tuner.views.figures.rung_values import draw_rung_values
from tuner.views.figures.timeline import draw_lineage, draw_timeline
from tuner.views.figures.values import chosen

FigureName = Literal[
    "best",
    "front",
    "confirmed",
    "curves",
    "rung_values",
    "lineage",
    "history",
    "parallel",
    "slices",
    "failing",
    "timeline",
    "usage",
]
FIGURES: dict[FigureName, Callable[..., Figure | None]] = {
    "best": draw_best, "front": draw_front, "confirmed": draw_confirmed,
    "curves": draw_curves, "rung_values": draw_rung_values, "lineage": draw_lineage, "history": draw_history,
    "parallel": draw_parallel, "slices": draw_slices,
    "failing": draw_failing, "timeline": draw_timeline, "usage": draw_usage,
}  # fmt: skip
# The figures that take a choice of the reader, and what completes it: the curves take their axis and metric, the others
# which value of each trial they compare (`tuner.views.figures.values`).
CHOICES: dict[FigureName, Callable[[ExperimentRecord, str], str]] = {
    "curves": chosen_curves, "parallel": chosen, "slices": chosen, "usage": chosen,
}  # fmt: skip


def all_figures(record: ExperimentRecord) -> dict[str, Figure]:
    """Draws all of FIGURES; leaves out figures without data and, with a warning, one that cannot be drawn."""
    drawn: dict[str, Figure] = {}
    for name, draw in FIGURES.items():
        with told(f"the figure {name!r} is not drawn"):
            if figure := draw(record):
                drawn[name] = figure
    return drawn
