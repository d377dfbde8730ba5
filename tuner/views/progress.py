"""Says how far a search is: its pace, the time that is left, and what is spent and planned of its budgets."""

from __future__ import annotations

import math
from typing import NamedTuple

from tuner.core.events import ENDINGS
from tuner.core.timing import seconds_left
from tuner.record.results import ExperimentRecord
from tuner.record.texts import duration
from tuner.spec.methods import SCHEDULERS


class Progress(NamedTuple):
    """`ended` of `asked` trials have ended, with those of --confirm; `asked` is 0 if only a budget limits their number.

    `rate` is the number of trials that end in an hour; None if the search does not run, or no trial has ended. `left_s`
    estimates the seconds to the search's end (`seconds_left`); None if the search does not run, or nothing tells.
    """

    ended: int
    asked: int
    rate: float | None = None
    left_s: float | None = None


def progress_of(record: ExperimentRecord) -> Progress:
    ended = sum(record.stats.counts[status] for status in ENDINGS)
    e, num_repeats = record.experiment, len(record.trials) - len(record.searched)
    repeats = max(num_repeats, e.confirm * e.confirm_seeds) if record.state == "running" else num_repeats
    asked = max(e.num_samples, len(record.searched)) + repeats if e.num_samples else 0
    if record.state != "running":
        return Progress(ended, asked)
    lengths = zip(record.stats.by_trial(getattr, "shown_status"), map(record.epochs_of, record.trials), strict=True)
    num_open, num_reports = asked - ended if asked else math.inf, record.stats.num_reports
    scheduler = "asha" if record.changed else e.scheduler
    left_s = seconds_left(lengths, num_open, num_reports, record.took_s, _spent(record).values(), scheduler)
    return Progress(ended, asked, 3600 * ended / record.took_s if ended and record.took_s > 0 else None, left_s)


def _spent(record: ExperimentRecord) -> dict[str, tuple[float, float]]:
    """Returns what is used of each budget, and the budget, in its own unit."""
    return {name: (_used(record, name), limit) for name, limit in record.experiment.budgets.items()}


def _used(record: ExperimentRecord, budget: str) -> float:
    match budget:
        case "time_budget":
            return record.took_s
        case "epoch_budget":
            return float(record.stats.num_reports)
    return sum(trial.gpu_hours if budget == "gpu_hours" else trial.cpu_hours for trial in record.trials)


def budget_of(record: ExperimentRecord) -> str:
    """Returns what is spent and left of each budget, and, while the search runs, what the rest is for; else empty."""
    known = [_named(name, used, limit) for name, (used, limit) in _spent(record).items()]
    if not known or record.refused:
        return ""
    e, is_confirming = record.experiment, len(record.searched) < len(record.trials)
    pauses = SCHEDULERS[e.scheduler].pauses and not record.changed
    plans = {
        "new settings": not (is_confirming or len(record.searched) >= e.most_samples),
        "the best paused trials to their last epoch": pauses and not is_confirming,
        "the best settings again with other seeds": e.confirm > 0,
    }
    plan = ", then ".join(what for what, is_planned in plans.items() if is_planned and record.state == "running")
    return f"{'; '.join(known)}.{f' The rest trains {plan}.' if plan else ''}"


def _named(name: str, used: float, limit: float) -> str:
    left = max(0.0, limit - used)
    if name == "time_budget":
        return f"{duration(used)} of {duration(limit)} are spent, {duration(left)} are left"
    unit = {"gpu_hours": "GPU-hours", "cpu_hours": "CPU-hours", "epoch_budget": "epochs"}[name]
    number = "{:,.0f}".format if name == "epoch_budget" else "{:.3g}".format
    return f"{number(used)} of {number(limit)} {unit} are spent, {number(left)} are left"
