"""Collects everything about one trial: parameters, reports, decisions, the end of its output, and a retrain command."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.record.checkpoints import SavedCheckpoints
from tuner.record.results import ExperimentRecord
from tuner.record.storage.files import open_in
from tuner.record.texts import command
from tuner.record.trial_row import TrialRow
from tuner.views.figures.metrics import MAX_SHOWN_REPORTS, draw_metrics
from tuner.views.figures.timeline import cost_of
from tuner.views.tables import DecisionRow, decision_row, trial_rows

OUTPUT_TAIL_BYTES = 16 << 10  # size of the shown end of stdout or stderr


@dataclass(frozen=True)
class Log:
    """The end of a trial's stdout or stderr; `size_bytes` is the size of the whole file."""

    name: str
    size_bytes: int
    tail: str


@dataclass(frozen=True)
class OneTrial:
    """Everything about one trial; `metrics` has its last MAX_SHOWN_REPORTS reports.

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
        metrics=[{"epoch": report.epoch, **report.metrics} for report in trial.reports[-MAX_SHOWN_REPORTS:]],
        figure=draw_metrics(trial, experiment.compared.metric, best.epoch if best else None, experiment.wanted.metric),
        cost=cost_of(trial),
        checkpoint=next((r.checkpoint for r in reversed(trial.reports) if r.checkpoint and r.checkpoint in saved), ""),
        retrain=retrain,
        logs=logs_of(experiment.folder, trial.id),
    )


def logs_of(folder: Path, trial_id: str) -> list[Log]:
    """Returns the last OUTPUT_TAIL_BYTES of a trial's stdout and stderr, from the beginning of a line if possible."""
    logs = []
    for name in ("stdout", "stderr"):
        try:
            with open_in(folder, f"ray/{trial_id}/{name}") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - OUTPUT_TAIL_BYTES))
                data = file.read(OUTPUT_TAIL_BYTES)
        except (OSError, ValueError):
            continue
        cut = data.find(b"\n") + 1 if size > OUTPUT_TAIL_BYTES else 0
        if tail := data[cut:].decode(errors="replace"):
            logs.append(Log(name, size, tail))
    return logs
