"""What-if figure: the learning curves, each split where other stopping rules would have ended its trial.

The part before the split has the epochs that would still be trained, the part after it those that would be skipped.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures import plot
from tuner.views.simulation import Fate
from tuner.views.whatif import WhatIf

MOST_TRIALS = 1000  # from twice as many trials on, an even sample is drawn
MOST_POINTS = 40_000  # of all curves together: each point repeats its trial's label


class Cut(NamedTuple):
    """One trial's curve, cut where the rules would have stopped it; both parts contain the epoch of the cut."""

    fate: Fate
    kept: list[plot.Point]
    saved: list[plot.Point]


def draw_whatif(record: ExperimentRecord, outcome: WhatIf) -> plot.Figure:
    """Draws the kept part of each curve as a solid line and the saved part as a dotted line.

    Each stop is marked. Trials with an unknown outcome have a colour of their own. If there are many trials, it draws
    an even sample and the winner; the curves are thinned to about MOST_POINTS points in all.
    """
    metric, step = record.experiment.metric, max(1, len(record.trials) // MOST_TRIALS)
    pairs = list(zip(record.trials, outcome.fates, strict=True))
    pairs = [pair for i, pair in enumerate(pairs) if i % step == 0 or pair[0].id == outcome.best]
    every = math.ceil(sum(len(trial.reports) for trial, _ in pairs) / MOST_POINTS) or 1
    cuts = [_cut(trial, fate, metric, every) for trial, fate in pairs if trial.reports]
    ends = {end: [cut for cut in cuts if cut.fate.outcome == end] for end in ("stopped", "ended", "unknown")}
    best = [cut for cut in cuts if cut.fate.trial == outcome.best]
    rest = {end: [cut for cut in some if cut.fate.trial != outcome.best] for end, some in ends.items()}
    winner = f"best: trial {plot.escaped(outcome.best, 40)}"
    curves = [
        ("lines", "saved epochs", plot.GRAY, 1.5, 0.5, [cut.saved for cut in cuts if len(cut.saved) > 1]),
        ("lines+markers", "pruned", plot.GRAY, 1.5, 0.8, [cut.kept for cut in rest["stopped"]]),
        ("lines+markers", "as recorded", plot.MAIN_COLOR, 1.5, 0.85, [cut.kept for cut in rest["ended"]]),
        ("lines+markers", "unknown outcome", plot.OPEN_COLOR, 1.5, 0.9, [cut.kept for cut in rest["unknown"]]),
        ("lines+markers", winner, plot.BEST_COLOR, 3, 1, [cut.kept for cut in best]),
    ]
    traces = [
        plot.lines(mode, some, color, width, 4, name=name, opacity=opacity)
        for mode, name, color, width, opacity, some in curves
    ]
    traces[0]["line"]["dash"] = "dot"
    marks = [
        ("pruned here", "x", plot.STOP_COLOR, "stopped"),
        ("end of the record", "circle-open", plot.OPEN_COLOR, "unknown"),
    ]
    for name, symbol, color, end in marks:
        marker = {"symbol": symbol, "size": 9, "color": color}
        last = [cut.kept[-1] for cut in ends[end] if cut.kept]
        traces.append(plot.points("markers", last, name=name, hovertemplate="%{text}<extra></extra>", marker=marker))
    text = (
        f"{counted(len(cuts), 'trial')} drawn, replayed with {outcome.scheduler}: {len(ends['stopped'])} pruned, "
        f"{len(ends['ended'])} as recorded, {len(ends['unknown'])} with an unknown outcome."
    )
    y_axis = plot.titled(plot.escaped(metric, 40))
    return plot.figure(traces, text, legend=plot.LEGEND, xaxis=plot.titled("epoch", rangemode="tozero"), yaxis=y_axis)


def _cut(trial: TrialRecord, fate: Fate, metric: str, every: int) -> Cut:
    ends = (fate.epochs, trial.reports[-1].epoch)
    drawn = [report for i, report in enumerate(trial.reports) if i % every == 0 or report.epoch in ends]
    label = f"{plot.label_of(trial)}<br>{plot.escaped(outcome_text(fate), 120)}"
    curve: list[plot.Point] = [(r.epoch, finite(r.metrics.get(metric)), trial.id, label) for r in drawn]
    return Cut(fate, [row for row in curve if row[0] <= fate.epochs], [row for row in curve if row[0] >= fate.epochs])


def outcome_text(fate: Fate) -> str:
    """Describes the outcome of a trial in words."""
    if fate.outcome == "unknown":
        return f"would train beyond epoch {fate.epochs}, the end of its record"
    if fate.outcome == "ended":
        return f"trains {fate.epochs} epochs, as recorded"
    than = "" if fate.cutoff is None else f": {fate.value:.5g} is worse than the cutoff {fate.cutoff:.5g}"
    return f"pruned at epoch {fate.epochs}{than}"
