"""What-if figure: the learning curves, each split where other stopping rules would have ended its trial.

The part before the split has the epochs that would still be trained, the part after it those that would be skipped.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.labels import BEST_COLOR, GRAY, MAIN_COLOR, OPEN_COLOR, STOP_COLOR, escaped, label_of
from tuner.views.simulation import Fate
from tuner.views.whatif import WhatIf

MOST_TRIALS = 1000  # from twice as many trials on, an even sample is drawn
MOST_POINTS = 40_000  # of all curves together: each point repeats its trial's label


class Cut(NamedTuple):
    """One trial's curve, cut where the rules would have stopped it; both parts contain the epoch of the cut."""

    fate: Fate
    label: str
    kept: list[tuple[int, float | None]]
    saved: list[tuple[int, float | None]]


def cuts_of(record: ExperimentRecord, outcome: WhatIf) -> list[Cut]:
    """Returns the cut curves of all trials with reports; an even sample and the winner if there are many.

    The curves are thinned to about MOST_POINTS points in all.
    """
    step = max(1, len(record.trials) // MOST_TRIALS)
    pairs = list(zip(record.trials, outcome.fates, strict=True))
    kept = [pair for i, pair in enumerate(pairs) if i % step == 0 or pair[0].id == outcome.best]
    every = math.ceil(sum(len(trial.reports) for trial, _ in kept) / MOST_POINTS) or 1
    return [_cut(trial, fate, record.experiment.metric, every) for trial, fate in kept if trial.reports]


def _cut(trial: TrialRecord, fate: Fate, metric: str, every: int) -> Cut:
    ends = (fate.epochs, trial.reports[-1].epoch)
    drawn = [report for i, report in enumerate(trial.reports) if i % every == 0 or report.epoch in ends]
    points = [(report.epoch, finite(report.metrics.get(metric))) for report in drawn]
    label = f"{label_of(trial)}<br>{escaped(outcome_text(fate), 120)}"
    kept = [point for point in points if point[0] <= fate.epochs]
    return Cut(fate, label, kept, [point for point in points if point[0] >= fate.epochs])


def outcome_text(fate: Fate) -> str:
    """Describes the outcome of a trial in words."""
    if fate.outcome == "unknown":
        return f"would train beyond epoch {fate.epochs}, the end of its record"
    if fate.outcome == "ended":
        return f"trains {fate.epochs} epochs, as recorded"
    than = "" if fate.cutoff is None else f": {fate.value:.5g} is worse than the cutoff {fate.cutoff:.5g}"
    return f"pruned at epoch {fate.epochs}{than}"


def draw_whatif(cuts: list[Cut], outcome: WhatIf, metric: str) -> dict[str, Any]:
    """Draws the kept part of each curve as a solid line and the saved part as a dotted line.

    Each stop is marked. Trials with an unknown outcome have a colour of their own.
    """
    best = [cut for cut in cuts if cut.fate.trial == outcome.best]
    rest = [cut for cut in cuts if cut.fate.trial != outcome.best]
    stopped = [cut for cut in rest if cut.fate.outcome == "stopped"]
    traces = [
        _lines("saved epochs", GRAY, 0.5, [(cut, cut.saved) for cut in cuts if len(cut.saved) > 1], dash="dot"),
        _lines("pruned", GRAY, 0.8, [(cut, cut.kept) for cut in stopped]),
        _lines("as recorded", MAIN_COLOR, 0.85, [(c, c.kept) for c in rest if c.fate.outcome == "ended"]),
        _lines("unknown outcome", OPEN_COLOR, 0.9, [(c, c.kept) for c in rest if c.fate.outcome == "unknown"]),
        _lines(f"best: trial {escaped(outcome.best, 40)}", BEST_COLOR, 1, [(c, c.kept) for c in best], width=3),
        _marks("pruned here", "x", STOP_COLOR, [c for c in cuts if c.fate.outcome == "stopped"]),
        _marks("end of the record", "circle-open", OPEN_COLOR, [c for c in cuts if c.fate.outcome == "unknown"]),
    ]
    layout = {
        "xaxis": {"title": {"text": "epoch"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": escaped(metric, 40)}},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        "hovermode": "closest",
        "meta": {"text": _described(cuts, outcome)},
    }
    return {"data": [trace for trace in traces if trace["x"]], "layout": layout}


def _described(cuts: list[Cut], outcome: WhatIf) -> str:
    ends = Counter(cut.fate.outcome for cut in cuts)
    return (
        f"{counted(len(cuts), 'trial')} drawn, replayed with {outcome.scheduler}: {ends['stopped']} pruned, "
        f"{ends['ended']} as recorded, {ends['unknown']} with an unknown outcome."
    )


def _lines(
    name: str, color: str, opacity: float, cuts: list[tuple[Cut, Any]], dash: str = "solid", width: float = 1.5
) -> dict[str, Any]:
    gap = [(None, None)]
    points = [point for _, curve in cuts for point in [*curve, *gap]]
    text = [cut.label for cut, curve in cuts for _ in [*curve, *gap]]
    trials = [trial for cut, curve in cuts for trial in [*[escaped(cut.fate.trial)] * len(curve), None]]
    look = {"line": {"color": color, "width": width, "dash": dash}, "marker": {"color": color, "size": 4}}
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines" if dash == "dot" else "lines+markers",
        "name": name,
        "text": text,
        "customdata": trials,
    }
    trace |= {"x": [x for x, _ in points], "y": [y for _, y in points], "opacity": opacity}
    return trace | look | {"hovertemplate": "%{text}<br>epoch %{x}: %{y:.5g}<extra></extra>"}


def _marks(name: str, symbol: str, color: str, cuts: list[Cut]) -> dict[str, Any]:
    ends = [(cut, *cut.kept[-1]) for cut in cuts if cut.kept]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "text": [cut.label for cut, _, _ in ends],
        "customdata": [escaped(cut.fate.trial) for cut, _, _ in ends],
    }
    trace |= {"x": [x for _, x, _ in ends], "y": [y for _, _, y in ends], "hovertemplate": "%{text}<extra></extra>"}
    return trace | {"marker": {"symbol": symbol, "size": 9, "color": color}}
