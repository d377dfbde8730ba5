"""Draws the timeline (when each trial ran, and what it cost) and the lineage of population-based training."""

from __future__ import annotations

from typing import NamedTuple

from tuner.core.events import Decision, Report
from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures import plot

MOST_SPANS = 1000  # maximum runs in the plot, the latest ones; with more, the bar of a run is thinner than a pixel
MOST_LANES = 60  # maximum rows of a lineage: the winner's path, then trials that copied or were copied, then others
MAX_REPORT_DOTS = 10_000  # maximum reports in all rows together


class Span(NamedTuple):
    """One uninterrupted run of a trial in a row of the plot, in seconds since the start of the first run shown."""

    trial: TrialRecord
    lane: str
    start: float
    end: float


def _spans_of(record: ExperimentRecord) -> tuple[list[Span], list[str]]:
    """Returns the MOST_SPANS runs that started last, and the names of the rows; each row is a slot of a node."""
    worker_spans = record.stats.worker_spans[-MOST_SPANS:]
    busy: dict[str, list[float]] = {}
    spans, lanes = [], {}
    for start, i, number in worker_spans:
        trial, end = record.trials[i], record.trials[i].spans[number][1]
        slots = busy.setdefault(trial.node, [])
        # A row counts as free 50 ms early, because a trial's end is journaled slightly after the next trial's start.
        slot = next((n for n, until in enumerate(slots) if until <= start + 0.05), len(slots))
        slots[slot : slot + 1] = [end]
        lane = lanes[trial.node, slot] = f"{plot.escaped(trial.node or 'node', 60)} / {slot + 1}"
        first = worker_spans[0][0]
        spans.append(Span(trial, lane, round(start - first, 3), round(end - first, 3)))
    return spans, [lanes[key] for key in sorted(lanes)]


@kept
def cost_of(trial: TrialRecord) -> str:
    """Returns the cost of a trial: `12 epochs in 30.1 s (2.51 s per epoch) on 0.5 GPU, 1 CPU: 15.1 GPU-seconds`.

    Epochs that were trained again and all attempts count.
    """
    epochs, seconds = len(trial.reports) + len(trial.repeated), trial.seconds
    again = f" in {trial.attempts} attempts" if trial.attempts > 1 else ""
    each = f" ({seconds / epochs:.3g} s per epoch)" if epochs > 1 else ""
    gpus, cpus = (float(finite(trial.resources.get(name)) or 0) for name in ("GPU", "CPU"))
    share = f"{gpus:g} GPU, {cpus:g} CPU" if gpus else f"{cpus:g} CPU"
    cost = f"{seconds * gpus:.3g} GPU-seconds" if gpus else f"{seconds * cpus:.3g} CPU-seconds"
    return f"{counted(epochs, 'epoch')}{again} in {seconds:.3g} s{each} on {share}: {cost}"


def unit_of(longest: float) -> tuple[str, float]:
    """Returns the unit in which an axis up to `longest` seconds reads well, and the unit's length in seconds."""
    units = (("hours", 3600.0), ("minutes", 60.0))
    return next(((name, length) for name, length in units if longest >= 2 * length), ("seconds", 1.0))


def draw_timeline(record: ExperimentRecord) -> plot.Figure | None:
    """Draws a row per slot of a node and a bar per run, coloured by the status of its trial (or as the winner)."""
    spans, lanes = _spans_of(record)
    if not spans:
        return None
    winner = record.best()
    best = winner[0].id if winner else ""
    looks = plot.GROUPS | {"best": (f"best: trial {plot.escaped(best, 40)}", plot.BEST_COLOR, 1.0)}
    longest, first = max(span.end for span in spans), record.stats.worker_spans[-MOST_SPANS:][0][0]
    ran_s = record.elapsed(first + longest) - record.elapsed(first)
    unit, per = unit_of(longest)
    traces = []
    for status, (name, color, opacity) in looks.items():
        group = [span for span in spans if ("best" if span.trial.id == best else span.trial.shown_status) == status]
        traces.append({
            "type": "bar", "orientation": "h", "name": name, "meta": status, "width": 0.8,
            "customdata": [plot.escaped(span.trial.id) for span in group], "y": [span.lane for span in group],
            "marker": {"color": color, "opacity": opacity}, "base": [span.start / per for span in group],
            "x": [max((span.end - span.start) / per, longest / per / 2000) for span in group],
            "text": [f"{plot.label_of(span.trial)}<br>{cost_of(span.trial)}" for span in group], "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
        })  # fmt: skip
    width = max(4, min(18, 260 // len(lanes)))
    return plot.figure(
        traces, _described(spans, len(lanes), f"{longest / per:.3g} {unit}", ran_s, best),
        barmode="overlay", legend=plot.LEGEND,
        xaxis=plot.titled(f"{unit} since the first run shown started"), height=120 + (width + 10) * max(3, len(lanes)),
        yaxis={"categoryorder": "array", "categoryarray": lanes[::-1]},
    )  # fmt: skip


def _described(spans: list[Span], rows: int, took: str, ran_s: float, best: str) -> str:
    used = sum(span.end - span.start for span in spans)
    of = "time" if round(ran_s) == round(max(span.end for span in spans)) else "sessions' time"
    share = f", busy {100 * used / (ran_s * rows):.0f} % of the {of}" if ran_s > 0 else ""
    last = "The last " if len(spans) == MOST_SPANS else ""
    number = counted(len({span.trial.id for span in spans}), "trial")
    winner = f" The best trial is {plot.tick(best, 40)}." if best else ""
    return f"{last}{counted(len(spans), 'run')} of {number} in {took} on {counted(rows, 'slot')}{share}.{winner}"


class Copy(NamedTuple):
    """A copy in population-based training: at unix time `time`, `trial` took the state of `source`."""

    time: float
    trial: str
    source: str
    reason: str


def draw_lineage(record: ExperimentRecord) -> plot.Figure | None:
    """Draws pbt's trials as rows, reports as dots, copies as lines, and the best value's history as a thick line."""
    metric, mode, winner = record.experiment.wanted.metric, record.experiment.wanted.mode, record.best()
    if record.experiment.scheduler != "pbt" or winner is None:
        return None
    copied_by = record.experiment.compared.metric
    copies = sorted(copy for trial in record.trials for copy in copies_of(trial, copied_by))
    times = [report.time for trial in record.trials for report in trial.reports[:1]]
    start = min([*times, *(start for start, *_ in record.stats.worker_spans[:1])])
    path = _path(copies, winner[0].id, winner[1].time, start)
    involved = [*(name for name, *_ in path), *(copy.trial for copy in copies), *(copy.source for copy in copies)]
    chosen = set(list(dict.fromkeys([*involved, *(trial.id for trial in record.trials)]))[:MOST_LANES])
    shown = [trial for trial in record.trials if trial.id in chosen]
    reports = [
        (trial, report, value)
        for trial in shown
        for report in sorted((*trial.repeated, *trial.reports), key=lambda report: report.order)
        if (value := finite(report.metrics.get(metric))) is not None
    ]
    reports = reports[:: -(-len(reports) // MAX_REPORT_DOTS) or 1]
    row = {trial.id: i for i, trial in enumerate(shown)}
    unit, per = unit_of(max(report.time for _, report, _ in reports) - start)

    def at(time: float) -> float:
        return round((time - start) / per, 4)

    lines: list[plot.Point] = []
    ends: list[plot.Point] = []
    for copy in (copy for copy in copies if copy.trial in row):
        end = (at(copy.time), row[copy.trial], copy.trial)
        text = f"trial {plot.escaped(copy.trial, 40)} copied trial {plot.escaped(copy.source, 60)}"
        ends.append((*end, f"{text}<br>{plot.escaped(copy.reason, 120)}"))
        if copy.source in row:
            lines += [(at(copy.time), row[copy.source], copy.source), end, plot.GAP]
    look = {"hoverinfo": "skip", "line": {"color": plot.GRAY, "width": 1.2}}
    arrows = plot.points("lines", lines, name="copied from", meta="copy", **look)
    heads = plot.points(
        "markers", ends, name="copy with changed parameters", meta="copy", hovertemplate="%{text}<extra></extra>",
        marker={"symbol": "diamond", "size": 10, "color": plot.MAIN_COLOR, "line": {"width": 1, "color": "#ffffff"}},
    )  # fmt: skip
    best = plot.points(
        "lines", [(at(x), row[name], name) for name, begin, end in path if name in row for x in (end, begin)],
        name="history of the best value", meta="best", hoverinfo="skip", line={"color": plot.BEST_COLOR, "width": 5},
        opacity=0.8,
    )  # fmt: skip
    values = [value for *_, value in reports]
    dots = plot.points(
        "markers",
        [(at(r.time), row[t.id], t.id, f"{plot.label_of(t)}<br>epoch {r.epoch}") for t, r, _ in reports],
        name="reports", meta="reports", showlegend=False,
        marker={"color": values, "coloraxis": "coloraxis", "size": 6 if len(reports) < 1000 else 4},
        hovertemplate=f"%{{text}}<br>{plot.escaped(metric, 40)} %{{marker.color:.5g}}<extra></extra>",
    )  # fmt: skip
    rows = {"tickvals": list(row.values()), "ticktext": [plot.tick(trial, 16) for trial in row]}
    return plot.figure(
        [best, arrows, dots, heads],
        _described_lineage(len(copies), len(shown), len(record.trials), [trial for trial, *_ in path]),
        xaxis=plot.titled(f"{unit} since the first trial started"),
        yaxis=plot.titled("trial", range=[-0.7, len(row) - 0.3], **rows),
        coloraxis=plot.color_axis(values, mode, metric),
        legend=plot.LEGEND,
        height=150 + max(8, min(22, 900 // len(shown))) * max(6, len(shown)),
    )


@kept
def copies_of(trial: TrialRecord, metric: str) -> list[Copy]:
    pairs = ((decision, _report_of(trial, decision, metric)) for decision in trial.decisions if decision.copied)
    return [Copy(report.time, trial.id, made.copied or "", made.reason) for made, report in pairs if report]


def _report_of(trial: TrialRecord, decision: Decision, metric: str) -> Report | None:
    """Returns the report that a decision is about; for a repeated epoch, the report with the decision's value."""
    same = [report for report in (*trial.repeated, *trial.reports) if report.epoch == decision.epoch]
    equal = [report for report in same if report.metrics.get(metric) == decision.value]
    return next(iter(equal or same), None)


def _path(copies: list[Copy], trial: str, end: float, start: float) -> list[tuple[str, float, float]]:
    """Traces a trial's value at `end` back through copies: (trial, start time, end time), the latest first."""
    path = []
    for copy in reversed(copies):
        if copy.trial == trial and copy.time < end:
            path.append((trial, copy.time, end))
            trial, end = copy.source, copy.time
    return [*path, (trial, start, end)]


def _described_lineage(num_copies: int, num_shown: int, num_trials: int, path: list[str]) -> str:
    lines = [f"{num_copies} {'copy' if num_copies == 1 else 'copies'} among {counted(num_trials, 'trial')}."]
    if num_shown < num_trials:
        lines.append(f"The plot has {num_shown} trials, first those that copied or were copied.")
    best, *earlier = [plot.tick(trial, 40) for trial in path]
    history = f"goes back to {', then '.join(earlier)}" if earlier else "has not copied any trial before"
    return " ".join([*lines, f"The best value is of trial {best}, which {history}."])
