"""TrialRow: the table of trials, one field a column. A new column is a new field here and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from tuner.record.columns import ALL, column
from tuner.record.records import TrialRecord, kept
from tuner.record.results import ExperimentRecord
from tuner.spec.metrics import is_number

Number = float | Literal["nan", "inf", "-inf"]


@kept
def numbers_of(trial: TrialRecord) -> tuple[str, ...]:
    """Returns the metrics that a trial has reported as numbers."""
    names: dict[str, None] = {}
    for report in trial.reports:
        if not report.metrics.keys() <= names.keys():  # most reports have the same metrics
            names |= dict.fromkeys(name for name, value in report.metrics.items() if is_number(value))
    return tuple(names)


def _number(value: Any) -> Any:
    return value if is_number(value) else None


def _best(record: ExperimentRecord, trial: TrialRecord, name: str = "") -> Any:
    best = trial.best(record.experiment.aim)
    return _number(best.metrics.get(name or record.experiment.wanted.metric)) if best else None


def _best_epoch(record: ExperimentRecord, trial: TrialRecord) -> int | None:
    best = trial.best(record.experiment.aim)
    return best.epoch if best else None


def _last(record: ExperimentRecord, trial: TrialRecord) -> Any:
    return _number(trial.last(record.experiment.wanted.metric))


def _metrics(record: ExperimentRecord, trial: TrialRecord) -> dict[str, list[Any]]:
    names = (name for name in numbers_of(trial) if name != record.experiment.wanted.metric)
    return {name: [_best(record, trial, name), _number(trial.last(name))] for name in names}


def _rung(_: ExperimentRecord, trial: TrialRecord) -> float | None:
    return next((decision.rung for decision in reversed(trial.decisions) if decision.action == "stop"), None)


def _saved(record: ExperimentRecord, trial: TrialRecord) -> int:
    return record.epochs_saved().get(trial.id, 0)


def _error(_: ExperimentRecord, trial: TrialRecord) -> str | None:
    return trial.errors[-1] if trial.errors else None


@dataclass(frozen=True)
class TrialRow:
    """One trial. `status` is one of `core.events.STATUSES`; `best` and `last` are values of the searched metric.

    `metrics` maps each other metric to its values in the best report and at last.
    """

    trial: str = column("", "", "trial", ALL, value=lambda _, trial: trial.id)
    status: str = column("", "", "status", ALL, value=lambda _, trial: trial.shown_status)
    best: Number | None = column("best_{metric}", shown="terminal report page", value=_best)
    best_epoch: int | None = column(shown="csv report page", value=_best_epoch)
    last: Number | None = column("last_{metric}", shown="terminal report page", value=_last)
    metrics: dict[str, list[Number | None]] = column("", "", "metrics", "page", value=_metrics)
    epochs: int = column(shown=ALL, value=ExperimentRecord.epochs_of)
    seconds: float = column("duration", "on workers; in seconds for a filter and a file", "duration", "csv report page")
    cpu_hours: float = column("CPU-hours", "CPUs times duration", shown="csv report page", rare=True)
    gpu_hours: float = column("GPU-hours", "GPUs times duration", shown="csv report page", rare=True)
    epochs_saved_estimate: int = column("epochs saved", "by pruning", shown="csv page", rare=True, value=_saved)
    attempts: int = column("", "1, and one more after each failure", shown="page", rare=True)
    rung: float | None = column("", "the rung at which the trial was pruned", shown="csv page", value=_rung)
    config: dict[str, Any] = column("parameters", "", "parameters")
    reason: str = column("", "why it ended or waits", "text", "csv report page")
    error: str | None = column("", "the last error, of any attempt", "text", "csv page", rare=True, value=_error)
    errors: list[str] = column(shown="", value=lambda _, trial: list(trial.errors))
    resources: dict[str, Any] = column(shown="")
    node: str = column(shown="")


def trial_row(record: ExperimentRecord, trial: TrialRecord) -> TrialRow:
    of = {each.name: each.metadata["value"] for each in fields(TrialRow)}
    return TrialRow(**{name: of[name](record, trial) if of[name] else getattr(trial, name) for name in of})
