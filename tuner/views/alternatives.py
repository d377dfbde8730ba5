"""Replays a search under several common stopping rules, for the what-if table of report.html.

The dashboard computes what-if on request, but a file cannot send requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from tuner.errors import RequestError
from tuner.record.results import ExperimentRecord
from tuner.views.simulation import epochs_beyond
from tuner.views.whatif import REPLAYED, Range, WhatIf, what_if

MOST_REPORTS = 30_000  # maximum number of reports in one replay; 10,000 take 0.25 s


@dataclass(frozen=True)
class AlternativeRow:
    """The effect of one set of rules: trials stopped, epochs trained, and whether the best trial is kept.

    `stopped` and `epochs` are ranges if the search pruned curves that these rules would have trained further.
    `saved` is the percentage (or range) of the recorded epochs that these rules save; negative if they train more.
    """

    scheduler: str
    grace_period: int | None
    reduction_factor: float | None
    stopped: str
    epochs: str
    saved: str
    best_trial: str


def alternative_rows(record: ExperimentRecord) -> list[AlternativeRow]:
    """Returns one row per set of stopping rules: a scheduler, its grace period and its reduction factor.

    The search's own rules come first if they are known and a replay supports them. The list is empty if no trial has a
    finite value, or if a replay of the search would have more than MOST_REPORTS reports.
    """
    beyond = sum(epochs_beyond(trial, record.rules) for trial in record.trials)
    if not record.stats.ranked or record.stats.num_reports + beyond > MOST_REPORTS:
        return []
    rows = []
    for scheduler, grace, factor in _choices(record):
        try:
            rows.append(_row(what_if(record, scheduler, grace, factor, _brackets(record, scheduler))))
        except RequestError:
            continue  # a search refuses these rules too, for example a grace period beyond the last epoch
    return rows


def _choices(record: ExperimentRecord) -> list[tuple[str, int, float]]:
    own = record.rules
    grace, factor = own.grace_period, own.reduction_factor
    first = [(own.scheduler, grace, factor)] if own.scheduler in REPLAYED and not record.facts.get("foreign") else []
    asha = [("asha", g, f) for f in (factor, *(f for f in (2.0, 3.0, 4.0) if f != factor)) for g in (grace, 2 * grace)]
    others = [
        ("asha-promotion", grace, factor),
        ("median", grace, factor),
        ("hyperband", grace, 3.0),
        ("fifo", grace, factor),
    ]
    return list(dict.fromkeys([*first, *asha, *others]))


def _brackets(record: ExperimentRecord, scheduler: str) -> int:
    return record.rules.brackets if scheduler == record.rules.scheduler else 1


def _row(outcome: WhatIf) -> AlternativeRow:
    asha = outcome.scheduler in ("asha", "asha-promotion")
    lost = {True: "lost", False: "kept", None: "unknown"}[outcome.best_lost]
    saved = [100 * (1 - epochs / outcome.epochs_recorded) for epochs in (outcome.epochs.most, outcome.epochs.least)]
    least, most = (f"{share:.0f}" for share in saved)
    return AlternativeRow(
        scheduler=outcome.scheduler + (" (the search's own)" if outcome.same else ""),
        grace_period=outcome.grace_period if asha or outcome.scheduler == "median" else None,
        reduction_factor=outcome.reduction_factor if asha or outcome.scheduler == "hyperband" else None,
        stopped=_range_text(outcome.stopped),
        epochs=_range_text(outcome.epochs),
        saved=f"{least} %" if least == most else f"{least} to {most} %",
        best_trial=lost,
    )


def _range_text(span: Range) -> str:
    return str(span.least) if span.least == span.most else f"{span.least} to {span.most}"
