"""Timeline plot: when and for how long each trial ran, in parallel with which others, on which resources, and the cost.

The cost is in GPU-seconds or CPU-seconds.
"""

from __future__ import annotations

from typing import NamedTuple

from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures.drawing import BEST_COLOR, GROUPS, LEGEND, Figure, escaped, figure, label_of, tick, titled

MOST_SPANS = 1000  # the plot shows only the latest runs; with more, the bar of a run is thinner than a pixel


class Span(NamedTuple):
    """One uninterrupted run of a trial in a row of the plot, in seconds since the start of the first run shown."""

    trial: TrialRecord
    lane: str
    start: float
    end: float


def _spans_of(record: ExperimentRecord) -> tuple[list[Span], list[str]]:
    """Returns the latest MOST_SPANS runs of trials in the order of their start, and the rows of the plot.

    A row is a slot on a node, not a process: the journal records a trial's node but not its worker, and a worker runs
    several trials one after the other. A node has only as many rows as it needs for trials that ran in parallel.
    """
    worker_spans = record.stats.worker_spans[-MOST_SPANS:]
    busy: dict[str, list[float]] = {}
    spans, lanes = [], {}
    for start, i, number in worker_spans:
        trial, end = record.trials[i], record.trials[i].spans[number][1]
        places = busy.setdefault(trial.node, [])
        # A row is free 50 ms early, because a trial's end is journaled slightly after the start of the next trial.
        place = next((n for n, until in enumerate(places) if until <= start + 0.05), len(places))
        places[place : place + 1] = [end]
        lane = lanes[trial.node, place] = f"{escaped(trial.node or 'node', 60)} / {place + 1}"
        first = worker_spans[0].start
        spans.append(Span(trial, lane, round(start - first, 3), round(end - first, 3)))
    return spans, [lanes[slot] for slot in sorted(lanes)]


@kept
def cost_of(trial: TrialRecord) -> str:
    """Returns the cost of a trial: `12 epochs in 30.1 s (2.5 s per epoch) on 0.5 GPU, 1 CPU: 15.1 GPU-seconds`."""
    epochs, seconds = len(trial.reports), trial.seconds
    each = f" ({seconds / epochs:.3g} s per epoch)" if epochs > 1 else ""
    gpus, cpus = (float(finite(trial.resources.get(name)) or 0) for name in ("GPU", "CPU"))
    share = f"{gpus:g} GPU, {cpus:g} CPU" if gpus else f"{cpus:g} CPU"
    cost = f"{seconds * gpus:.3g} GPU-seconds" if gpus else f"{seconds * cpus:.3g} CPU-seconds"
    return f"{counted(epochs, 'epoch')} in {seconds:.3g} s{each} on {share}: {cost}"


def unit_of(longest: float) -> tuple[str, float]:
    """Returns the unit in which an axis up to `longest` seconds reads well, and its length in seconds."""
    units = (("hours", 3600.0), ("minutes", 60.0))
    return next(((name, length) for name, length in units if longest >= 2 * length), ("seconds", 1.0))


def draw_timeline(record: ExperimentRecord) -> Figure | None:
    """Draws one row per slot of a node and one bar per run of a trial, coloured by the trial's status."""
    spans, lanes = _spans_of(record)
    if not spans:
        return None
    winner = record.best()
    best = winner[0].id if winner else ""
    looks = GROUPS | {"best": (f"best: trial {escaped(best, 40)}", BEST_COLOR, 1.0)}
    longest = max(span.end for span in spans)
    unit, per = unit_of(longest)
    traces = []
    for status, (name, color, opacity) in looks.items():
        group = [span for span in spans if ("best" if span.trial.id == best else span.trial.status) == status]
        traces.append({
            "type": "bar", "orientation": "h", "name": name, "meta": status, "width": 0.8,
            "customdata": [escaped(span.trial.id) for span in group], "marker": {"color": color, "opacity": opacity},
            "y": [span.lane for span in group], "base": [span.start / per for span in group],
            "x": [max((span.end - span.start) / per, longest / per / 2000) for span in group],
            "text": [f"{label_of(span.trial)}<br>{cost_of(span.trial)}" for span in group], "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
        })  # fmt: skip
    width = max(4, min(18, 260 // len(lanes)))
    return figure(
        traces, _described(spans, len(lanes), f"{longest / per:.3g} {unit}", best), barmode="overlay", legend=LEGEND,
        xaxis=titled(f"{unit} since the first trial started"), height=120 + (width + 10) * max(3, len(lanes)),
        yaxis={"categoryorder": "array", "categoryarray": lanes[::-1]},
    )  # fmt: skip


def _described(spans: list[Span], rows: int, took: str, best: str) -> str:
    """Describes the plot in words: runs, rows, and how much of the rows' time trials used."""
    used, whole = sum(span.end - span.start for span in spans), max(span.end for span in spans)
    share = f", busy {100 * used / (whole * rows):.0f} % of the time" if whole > 0 else ""
    last = "The last " if len(spans) == MOST_SPANS else ""
    number = counted(len({span.trial.id for span in spans}), "trial")
    winner = f" The best trial is {tick(best, 40)}." if best else ""
    return f"{last}{counted(len(spans), 'run')} of {number} in {took} on {counted(rows, 'slot')}{share}.{winner}"
