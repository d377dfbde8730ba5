"""Timeline plot: when and for how long each trial ran, in parallel with which others, on which resources, and the cost.

The cost is in GPU-seconds or CPU-seconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.labels import BEST_COLOR, GROUPS, escaped, label_of, tick

MOST_SPANS = 1000  # the plot shows only the latest runs; with more, the bar of a run is thinner than a pixel


class Span(NamedTuple):
    """One uninterrupted run of a trial, in seconds since the start of the first run that is shown.

    `lane` is the row of the plot. A node has only as many rows as it needs for the trials that ran in parallel.
    """

    trial: str
    status: str
    label: str
    lane: str
    start: float
    end: float


class Timeline(NamedTuple):
    """The latest MOST_SPANS runs of trials in the order of their start; `best` is the winner's id."""

    spans: list[Span]
    lanes: list[str]
    best: str


def timeline_of(record: ExperimentRecord) -> Timeline:
    """Assigns each of the latest MOST_SPANS runs of trials to a row of the plot.

    A row is a slot on a node, not a process: the journal records a trial's node but not its worker, and a
    worker runs several trials one after the other.
    """
    winner = record.best()
    worker_spans = record.stats.worker_spans[-MOST_SPANS:]
    first = worker_spans[0].start if worker_spans else 0.0
    busy: dict[str, list[float]] = {}
    spans, lanes = [], {}
    labels = {
        i: f"{label_of(record.trials[i])}<br>{cost_of(record.trials[i])}" for i in {s.place for s in worker_spans}
    }
    for start, i, number in worker_spans:
        trial, end = record.trials[i], record.trials[i].spans[number][1]
        places = busy.setdefault(trial.node, [])
        # A row is free 50 ms early, because a trial's end is journaled slightly after the start of the next trial.
        place = next((n for n, until in enumerate(places) if until <= start + 0.05), len(places))
        places[place : place + 1] = [end]
        lane = f"{escaped(trial.node or 'node', 60)} / {place + 1}"
        lanes[trial.node, place] = lane
        spans.append(Span(trial.id, trial.status, labels[i], lane, round(start - first, 3), round(end - first, 3)))
    return Timeline(spans, [lanes[slot] for slot in sorted(lanes)], winner[0].id if winner else "")


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


def draw_timeline(data: Timeline) -> dict[str, Any]:
    """Draws one row per slot of a node and one bar per run of a trial, coloured by the trial's status."""
    traces = []
    width = max(4, min(18, 260 // max(1, len(data.lanes))))
    looks = {status: (name, color, opacity) for status, (name, color, opacity) in GROUPS.items()}
    looks["best"] = (f"best: trial {escaped(data.best, 40)}", BEST_COLOR, 1.0)
    longest = max((span.end for span in data.spans), default=0.0)
    unit, per = unit_of(longest)
    for status, (name, color, opacity) in looks.items():
        group = [s for s in data.spans if ("best" if s.trial == data.best else s.status) == status]
        if not group:
            continue
        bars: dict[str, Any] = {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "meta": status,
            "customdata": [escaped(s.trial) for s in group],
            "marker": {"color": color, "opacity": opacity},
        }
        bars |= {"y": [s.lane for s in group], "base": [s.start / per for s in group]}
        bars |= {"x": [max((s.end - s.start) / per, longest / per / 2000) for s in group]}
        traces.append(bars | {"text": [s.label for s in group], "textposition": "none", "width": 0.8})
        traces[-1]["hovertemplate"] = "%{text}<extra></extra>"
    layout = {
        "barmode": "overlay",
        "xaxis": {"title": {"text": f"{unit} since the first trial started"}},
        "yaxis": {"categoryorder": "array", "categoryarray": data.lanes[::-1]},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        "hovermode": "closest",
        "meta": {"text": _described(data, f"{longest / per:.3g} {unit}")},
        "height": 120 + (width + 10) * max(3, len(data.lanes)),
    }
    return {"data": traces, "layout": layout}


def _described(data: Timeline, took: str) -> str:
    """Describes the plot in words: runs, rows, and how much of the rows' time trials used."""
    used, whole = sum(span.end - span.start for span in data.spans), max(span.end for span in data.spans)
    share = f", busy {100 * used / (whole * len(data.lanes)):.0f} % of the time" if whole > 0 else ""
    runs, rows = len(data.spans), len(data.lanes)
    last = "the last " if runs == MOST_SPANS else ""
    best = f" The best trial is {tick(data.best, 40)}." if data.best else ""
    count = counted(len({span.trial for span in data.spans}), "trial")
    return f"{last.capitalize()}{counted(runs, 'run')} of {count} in {took} on {counted(rows, 'slot')}{share}.{best}"
