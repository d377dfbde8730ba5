"""Collects everything about one trial: parameters, reports, decisions, the end of its output, and a retrain command."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.record.checkpoints import SavedCheckpoints
from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.record.storage.files import open_in
from tuner.record.texts import command, counted
from tuner.views.figures import plot
from tuner.views.figures.parameters import USAGE_PREFIXES
from tuner.views.figures.timeline import cost_of
from tuner.views.tables import DecisionRow, TrialRow, decision_row, trial_rows

TAIL_BYTES = 16 << 10  # size of the shown end of stdout or stderr
MOST_NAMED = 4  # maximum number of metrics in the text about the figure
MOST_METRICS = 16  # maximum number of plots in the figure
MOST_REPORTS = 2000  # maximum number of reports shown: the table has the last ones, the figure an even sample


@dataclass(frozen=True)
class Log:
    """The end of a trial's stdout or stderr; `size_bytes` is the size of the whole file."""

    name: str
    size_bytes: int
    tail: str


@dataclass(frozen=True)
class OneTrial:
    """Everything about one trial; `metrics` has its last MOST_REPORTS reports.

    `checkpoint` is the path, in the experiment's folder, of the newest checkpoint on disk. `left_out` counts the rows
    of `decisions` and `metrics` that did not fit into the response.
    """

    row: TrialRow
    decisions: list[DecisionRow]
    metrics: list[dict[str, Any]]
    figure: dict[str, Any]
    cost: str
    checkpoint: str
    retrain: str
    logs: list[Log]
    left_out: int = 0


def one_trial(record: ExperimentRecord, trial_id: str) -> OneTrial | None:
    """Returns everything about the trial with this id; None if the record has no such trial."""
    trial = next((trial for trial in record.trials if trial.id == trial_id), None)
    if trial is None:
        return None
    experiment = record.experiment
    best, saved = trial.best(experiment.aim), SavedCheckpoints(experiment.folder)
    retrain = ""
    if record.retrainable and trial.reports:
        retrain = command("train", shlex.quote(str(experiment.folder)), f"--trial {shlex.quote(trial.id)}")
    return OneTrial(
        row=trial_rows(record, [trial])[0],
        decisions=[decision_row(trial, decision) for decision in trial.decisions],
        metrics=[{"epoch": report.epoch, **report.metrics} for report in trial.reports[-MOST_REPORTS:]],
        figure=draw_metrics(trial, experiment.compared.metric, best.epoch if best else None, experiment.wanted.metric),
        cost=cost_of(trial),
        checkpoint=next((r.checkpoint for r in reversed(trial.reports) if r.checkpoint and r.checkpoint in saved), ""),
        retrain=retrain,
        logs=logs_of(experiment.folder, trial.id),
    )


def logs_of(folder: Path, trial_id: str) -> list[Log]:
    """Returns the last TAIL_BYTES of a trial's stdout and stderr, from the beginning of a line if possible."""
    logs = []
    for name in ("stdout", "stderr"):
        try:
            with open_in(folder, f"ray/{trial_id}/{name}") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - TAIL_BYTES))
                data = file.read(TAIL_BYTES)
        except (OSError, ValueError):
            continue
        cut = data.find(b"\n") + 1 if size > TAIL_BYTES else 0
        if tail := data[cut:].decode(errors="replace"):
            logs.append(Log(name, size, tail))
    return logs


def draw_metrics(trial: TrialRecord, metric: str, best_epoch: int | None, wanted: str = "") -> plot.Figure:
    """Draws a plot per varying metric, at most MOST_METRICS: `metric` with cutoffs first, `wanted` next, usage last."""
    place = {wanted: 1, metric: 0}
    names = sorted(_varied(trial, *place), key=lambda name: (place.get(name, 2), name.startswith(USAGE_PREFIXES)))
    shown = names[:MOST_METRICS]
    reports = trial.reports[:: math.ceil(len(trial.reports) / MOST_REPORTS) or 1]
    axes: dict[str, Any] = {}
    traces, texts = [], []
    for i, name in enumerate(shown):
        number = str(i + 1) if i else ""
        values = [(r.epoch, finite(r.metrics[name])) for r in reports if name in r.metrics]
        colors = [plot.BEST_COLOR if epoch == best_epoch else plot.MAIN_COLOR for epoch, _ in values]
        marker = {"color": colors, "size": 5}
        look = {"marker": marker, "name": plot.escaped(name, 40), "xaxis": f"x{number}", "yaxis": f"y{number}"}
        line = {"color": plot.MAIN_COLOR, "width": 1.5}
        traces.append(plot.points("lines+markers", values, line=line, **look))
        axes[f"xaxis{number}"] = plot.titled("epoch" if i >= len(shown) - 2 else "")
        axes[f"yaxis{number}"] = plot.titled(plot.escaped(name, 24))
        known = [v for report in trial.reports if (v := finite(report.metrics.get(name))) is not None]
        texts += [f"{plot.tick(name, 40)} from {known[0]:.5g} to {known[-1]:.5g}"] if known and i < MOST_NAMED else []
    cut = [(d.epoch, d.cutoff) for d in trial.decisions if finite(d.cutoff) is not None]
    dash = {"symbol": "line-ew-open", "size": 14, "color": plot.STOP_COLOR, "line": {"width": 2}}
    look = {"name": "cutoff", "marker": dash, "xaxis": "x", "yaxis": "y"}
    traces.append(plot.points("markers", cut, **look))
    more = f" and {counted(len(shown) - MOST_NAMED, 'more metric')}" if len(shown) > MOST_NAMED else ""
    text = f"Over {counted(len(trial.reports), 'report')}: {', '.join(texts)}{more}." if texts else ""
    rows = math.ceil(len(shown) / 2)
    grid = {"rows": rows, "columns": min(2, len(shown)), "pattern": "independent", "ygap": 0.3}
    return plot.figure(traces, text, grid=grid, showlegend=False, height=60 + 190 * rows, **axes)


def _varied(trial: TrialRecord, *kept: str) -> list[str]:
    """Returns the `kept` metrics and those that differ between reports; with one report, all finite metrics."""
    first: dict[str, float] = {}
    varying: dict[str, bool] = {}  # metric name, in order of first report -> whether it is returned
    for report in trial.reports:
        for name, each in report.metrics.items():
            varies = varying.setdefault(name, name in kept)
            if not varies and (value := finite(each)) is not None:
                varying[name] = value != first.setdefault(name, value) or len(trial.reports) == 1
    return [name for name, varies in varying.items() if varies]
