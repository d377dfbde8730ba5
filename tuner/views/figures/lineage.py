"""Lineage plot of population-based training: which trial copied which other trial, when, and with which changes."""

from __future__ import annotations

from typing import NamedTuple

from tuner.record.records import Decision, Report, TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures.drawing import (
    BEST_COLOR,
    GRAY,
    LEGEND,
    MAIN_COLOR,
    Figure,
    color_axis,
    escaped,
    figure,
    label_of,
    points,
    tick,
    titled,
)
from tuner.views.figures.timeline import unit_of

MOST_LANES = 60  # trials with a row each: the ancestors of the best one first, then those that copied
MOST_DOTS = 10_000  # reports of all rows together


class Copy(NamedTuple):
    """A copy: at `time`, `trial` took the state of `source`."""

    time: float
    trial: str
    source: str
    reason: str


def draw_lineage(record: ExperimentRecord) -> Figure | None:
    """Draws one row per trial with a dot for each report, and an arrow from the copied trial to its copy.

    The ancestors of the best value are a thick line. Only population-based training has this figure.
    """
    metric, mode, winner = record.experiment.metric, record.experiment.mode, record.best()
    if record.experiment.scheduler != "pbt" or not record.stats.ranked:
        return None
    copies = sorted(copy for trial in record.trials for copy in copies_of(trial, metric))
    times = [report.time for trial in record.trials for report in trial.reports[:1]]
    start = min([*times, *(span.start for span in record.stats.worker_spans[:1])], default=0.0)
    path = _path(copies, winner[0].id, winner[1].time, start) if winner else []
    involved = [*(name for name, *_ in path), *(copy.trial for copy in copies), *(copy.source for copy in copies)]
    chosen = set(list(dict.fromkeys([*involved, *(trial.id for trial in record.trials)]))[:MOST_LANES])
    shown = [trial for trial in record.trials if trial.id in chosen]
    reports = [
        (trial, report, value)
        for trial in shown
        for report in sorted((*trial.repeated, *trial.reports), key=lambda report: report.order)
        if (value := finite(report.metrics.get(metric))) is not None
    ]
    reports = reports[:: -(-len(reports) // MOST_DOTS) or 1]
    row = {trial.id: i for i, trial in enumerate(shown)}
    unit, per = unit_of(max((report.time for _, report, _ in reports), default=start) - start)

    def at(time: float) -> float:
        return round((time - start) / per, 4)

    seen = [copy for copy in copies if copy.trial in row]
    known = [copy for copy in seen if copy.source in row]
    arrows = points(
        "lines", [x for copy in known for x in (at(copy.time),) * 2 + (None,)],
        [y for copy in known for y in (row[copy.source], row[copy.trial], None)],
        [each for copy in known for each in (copy.source, copy.trial, None)],
        name="copied from", meta="copy", hoverinfo="skip", line={"color": GRAY, "width": 1.2},
    )  # fmt: skip
    heads = points(
        "markers", [at(copy.time) for copy in seen], [row[copy.trial] for copy in seen], [copy.trial for copy in seen],
        name="copy with changed parameters", meta="copy", text=list(map(_copy_label, seen)),
        marker={"symbol": "diamond", "size": 10, "color": MAIN_COLOR, "line": {"width": 1, "color": "#ffffff"}},
        hovertemplate="%{text}<extra></extra>",
    )  # fmt: skip
    parts = [part for part in path if part[0] in row]
    best = points(
        "lines", [at(x) for _, begin, end in parts for x in (end, begin)],
        [row[trial] for trial, *_ in parts for _ in range(2)], [trial for trial, *_ in parts for _ in range(2)],
        name="history of the best value", meta="best", hoverinfo="skip", line={"color": BEST_COLOR, "width": 5},
        opacity=0.8,
    )  # fmt: skip
    values = [value for *_, value in reports]
    dots = points(
        "markers", [at(report.time) for _, report, _ in reports], [row[trial.id] for trial, *_ in reports],
        [trial.id for trial, *_ in reports], name="reports", meta="reports", showlegend=False,
        text=[f"{label_of(trial)}<br>epoch {report.epoch}" for trial, report, _ in reports],
        marker={"color": values, "coloraxis": "coloraxis", "size": 6 if len(reports) < 1000 else 4},
        hovertemplate=f"%{{text}}<br>{escaped(metric, 40)} %{{marker.color:.5g}}<extra></extra>",
    )  # fmt: skip
    rows = {"tickvals": list(row.values()), "ticktext": [tick(trial, 16) for trial in row]}
    return figure(
        [best, arrows, dots, heads],
        _described(len(copies), len(shown), len(record.trials), [trial for trial, *_ in path]),
        xaxis=titled(f"{unit} since the first trial started"),
        yaxis=titled("trial", range=[-0.7, len(row) - 0.3], **rows),
        coloraxis=color_axis(values, mode, metric) if values else {},
        legend=LEGEND,
        height=150 + max(8, min(22, 900 // max(1, len(shown)))) * max(6, len(shown)),
    )


@kept
def copies_of(trial: TrialRecord, metric: str) -> list[Copy]:
    """Returns the trial's copies, in the order of its decisions."""
    pairs = ((decision, _report_of(trial, decision, metric)) for decision in trial.decisions if decision.copied)
    return [Copy(report.time, trial.id, made.copied or "", made.reason) for made, report in pairs if report]


def _report_of(trial: TrialRecord, decision: Decision, metric: str) -> Report | None:
    """Returns the report that a decision is about: a trial that was set back reports an epoch more than once."""
    same = [report for report in (*trial.repeated, *trial.reports) if report.epoch == decision.epoch]
    equal = [report for report in same if report.metrics.get(metric) == decision.value]
    return next(iter(equal or same), None)


def _path(copies: list[Copy], trial: str, end: float, start: float) -> list[tuple[str, float, float]]:
    """Traces a trial's value at time `end` back through the copies that led to it.

    Returns (trial, start time, end time) for each part of the value's history, the latest first.
    """
    path = []
    for copy in reversed(copies):
        if copy.trial == trial and copy.time < end:
            path.append((trial, copy.time, end))
            trial, end = copy.source, copy.time
    return [*path, (trial, start, end)]


def _copy_label(copy: Copy) -> str:
    return f"trial {escaped(copy.trial, 40)} copied trial {escaped(copy.source, 60)}<br>{escaped(copy.reason, 120)}"


def _described(num_copies: int, num_shown: int, num_trials: int, path: list[str]) -> str:
    lines = [f"{num_copies} {'copy' if num_copies == 1 else 'copies'} among {counted(num_trials, 'trial')}."]
    if num_shown < num_trials:
        lines.append(f"The plot has the first {num_shown} that copied or were copied.")
    best, *earlier = [tick(trial, 40) for trial in path] or [""]
    if earlier:
        lines.append(f"The best value is of trial {best}, which goes back to {', then '.join(earlier)}.")
    elif best:
        lines.append(f"The best value is of trial {best}, which has not copied any trial before.")
    return " ".join(lines)
