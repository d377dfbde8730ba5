"""Lineage plot of population-based training: which trial copied which other trial, when, and with which changes."""

from __future__ import annotations

from typing import Any, NamedTuple

from tuner.record.records import Decision, Report, TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures.scales import color_axis
from tuner.views.figures.timeline import unit_of
from tuner.views.labels import BEST_COLOR, GRAY, MAIN_COLOR, escaped, label_of, tick

MOST_LANES = 60  # trials with a row each: the ancestors of the best one first, then those that copied
MOST_DOTS = 10_000  # reports of all rows together


class Copy(NamedTuple):
    """A copy: at `time`, `trial` took the state of `source`."""

    time: float
    trial: str
    source: str
    reason: str


class Dot(NamedTuple):
    """A report of a trial."""

    time: float
    trial: TrialRecord
    epoch: int
    value: float


class Lineage(NamedTuple):
    """The trials with a row, from bottom to top, their reports and copies, and how many there are in all.

    `path` has the best value's history, the latest part first: a trial, and from when to when it is part of it.
    """

    lanes: list[str]
    dots: list[Dot]
    copies: list[Copy]
    path: list[tuple[str, float, float]]
    start: float
    num_trials: int
    num_copies: int
    metric: str
    mode: str


def lineage_of(record: ExperimentRecord) -> Lineage:
    """Collects who copied whom, and traces the best value back through the copies that led to it."""
    experiment, winner = record.experiment, record.best()
    copies = sorted(copy for trial in record.trials for copy in copies_of(trial, experiment.metric))
    times = [report.time for trial in record.trials for report in trial.reports[:1]]
    start = min([*times, *(span.start for span in record.stats.worker_spans[:1])], default=0.0)
    path = _path(copies, winner[0].id, winner[1].time, start) if winner else []
    involved = [*(name for name, *_ in path), *(copy.trial for copy in copies), *(copy.source for copy in copies)]
    chosen = set(list(dict.fromkeys([*involved, *(trial.id for trial in record.trials)]))[:MOST_LANES])
    shown = [trial for trial in record.trials if trial.id in chosen]
    dots = [
        Dot(report.time, trial, report.epoch, value)
        for trial in shown
        for report in sorted((*trial.repeated, *trial.reports), key=lambda report: report.order)
        if (value := finite(report.metrics.get(experiment.metric))) is not None
    ]
    dots = dots[:: -(-len(dots) // MOST_DOTS) or 1]
    lanes = [trial.id for trial in shown]
    seen = [copy for copy in copies if copy.trial in chosen]
    return Lineage(
        lanes, dots, seen, path, start, len(record.trials), len(copies), experiment.metric, experiment.mode
    )  # fmt: skip


@kept
def copies_of(trial: TrialRecord, metric: str) -> list[Copy]:
    """Returns the trial's copies, in the order of its decisions."""
    copies = []
    for decision in trial.decisions:
        if decision.copied:
            report = _report_of(trial, decision, metric)
            if report:
                copies.append(Copy(report.time, trial.id, decision.copied, decision.reason))
    return copies


def _report_of(trial: TrialRecord, decision: Decision, metric: str) -> Report | None:
    """Returns the report that a decision is about: a trial that was set back reports an epoch more than once."""
    same = [report for report in (*trial.repeated, *trial.reports) if report.epoch == decision.epoch]
    equal = [report for report in same if report.metrics.get(metric) == decision.value]
    return next(iter(equal or same), None)


def _path(copies: list[Copy], trial: str, end: float, start: float) -> list[tuple[str, float, float]]:
    """Traces a value back: its trial's last copy before it, then that copy's source, and so on to the start."""
    path = []
    for copy in reversed(copies):
        if copy.trial == trial and copy.time < end:
            path.append((trial, copy.time, end))
            trial, end = copy.source, copy.time
    return [*path, (trial, start, end)]


def draw_lineage(data: Lineage) -> dict[str, Any]:
    """Draws one row per trial with a dot for each report, and an arrow from the copied trial to its copy.

    The ancestors of the best value are a thick line.
    """
    row = {trial: i for i, trial in enumerate(data.lanes)}
    last = max((dot.time for dot in data.dots), default=data.start)
    unit, per = unit_of(last - data.start)
    known = [copy for copy in data.copies if copy.source in row]
    arrows = {
        "type": "scatter", "mode": "lines", "name": "copied from", "meta": "copy", "hoverinfo": "skip",
        "x": [x for copy in known for x in (at(copy.time, data.start, per),) * 2 + (None,)],
        "y": [y for copy in known for y in (row[copy.source], row[copy.trial], None)],
        "customdata": [each for copy in known for each in (escaped(copy.source), escaped(copy.trial), None)],
        "line": {"color": GRAY, "width": 1.2},
    }  # fmt: skip
    heads = {
        "type": "scatter", "mode": "markers", "name": "copy with changed parameters", "meta": "copy",
        "x": [at(copy.time, data.start, per) for copy in data.copies], "y": [row[copy.trial] for copy in data.copies],
        "text": [_copy_label(copy) for copy in data.copies], "customdata": [escaped(c.trial) for c in data.copies],
        "marker": {"symbol": "diamond", "size": 10, "color": MAIN_COLOR, "line": {"width": 1, "color": "#ffffff"}},
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip
    parts = [(part, row[part[0]]) for part in data.path if part[0] in row]
    best = {
        "type": "scatter", "mode": "lines", "name": "history of the best value", "meta": "best", "hoverinfo": "skip",
        "x": [at(x, data.start, per) for (_, begin, end), _ in parts for x in (end, begin)],
        "y": [y for _, y in parts for y in (y, y)],
        "customdata": [escaped(trial) for (trial, *_), _ in parts for _ in range(2)],
        "line": {"color": BEST_COLOR, "width": 5}, "opacity": 0.8,
    }  # fmt: skip
    values = [dot.value for dot in data.dots]
    dots = {
        "type": "scatter", "mode": "markers", "name": "reports", "meta": "reports", "showlegend": False,
        "x": [at(dot.time, data.start, per) for dot in data.dots], "y": [row[dot.trial.id] for dot in data.dots],
        "text": [f"{label_of(dot.trial)}<br>epoch {dot.epoch}" for dot in data.dots],
        "customdata": [escaped(dot.trial.id) for dot in data.dots],
        "marker": {"color": values, "coloraxis": "coloraxis", "size": 6 if len(data.dots) < 1000 else 4},
        "hovertemplate": f"%{{text}}<br>{escaped(data.metric, 40)} %{{marker.color:.5g}}<extra></extra>",
    }  # fmt: skip
    height = max(8, min(22, 900 // max(1, len(data.lanes))))
    layout = {
        "xaxis": {"title": {"text": f"{unit} since the first trial started"}},
        "yaxis": {"tickvals": list(row.values()), "ticktext": [tick(trial, 16) for trial in row],
                  "title": {"text": "trial"}, "range": [-0.7, len(row) - 0.3]},
        "coloraxis": color_axis(values, data.mode, data.metric) if values else {},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        "hovermode": "closest",
        "height": 150 + height * max(6, len(data.lanes)),
        "meta": {"text": _described(data)},
    }  # fmt: skip
    return {"data": [trace for trace in (best, arrows, dots, heads) if trace["x"]], "layout": layout}


def at(time: float, start: float, per: float) -> float:
    """Returns a time on the axis."""
    return round((time - start) / per, 4)


def _copy_label(copy: Copy) -> str:
    return f"trial {escaped(copy.trial, 40)} copied trial {escaped(copy.source, 60)}<br>{escaped(copy.reason, 120)}"


def _described(data: Lineage) -> str:
    lines = [
        f"{data.num_copies} {'copy' if data.num_copies == 1 else 'copies'} among {counted(data.num_trials, 'trial')}."
    ]
    if len(data.lanes) < data.num_trials:
        lines.append(f"The plot has the first {len(data.lanes)} that copied or were copied.")
    if len(data.path) > 1:
        names = [tick(trial, 40) for trial, *_ in data.path]
        lines.append(f"The best value is of trial {names[0]}, which goes back to {', then '.join(names[1:])}.")
    elif data.path:
        lines.append(f"The best value is of trial {tick(data.path[0][0], 40)}, which has not copied any trial before.")
    return " ".join(lines)
