"""The best value so far against what has been trained for it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from tuner.kept import kept
from tuner.labels import BEST_COLOR, escaped, finite, label_of
from tuner.records import TrialRecord
from tuner.results import ExperimentRecord


class History(NamedTuple):
    """The best value of all trials against the epochs trained by all of them together, at each improvement."""

    metric: str
    epochs: list[int]
    values: list[float]
    labels: list[str]


def history_of(record: ExperimentRecord) -> History:
    """Every improvement in the order of the reports, and the last report with the best of all again."""
    metric, sign = record.experiment.metric, 1 if record.experiment.mode == "min" else -1
    trials = [trial for trial in record.trials if trial.reports]
    if not trials:
        return History(metric, [], [], [])
    # As arrays: 100,000 reports sorted one by one take 0.1 s at every update.
    columns = [_columns(trial, metric) for trial in trials]
    times, values = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(times, kind="stable")
    losses = sign * values[order]
    best = np.fmin.accumulate(losses)  # nan gives way to any other
    improved = np.flatnonzero(
        losses < np.nan_to_num(np.concatenate([[math.inf], best[:-1]]), nan=math.inf, posinf=math.inf)
    )
    if not len(improved):
        return History(metric, [], [], [])
    owners = np.repeat(np.arange(len(trials)), [len(trial.reports) for trial in trials])[order][improved]
    epochs, found = [int(i) + 1 for i in improved], [float(sign * losses[i]) for i in improved]
    labels = [label_of(trials[owner]) for owner in owners]
    return History(metric, [*epochs, len(order)], [*found, found[-1]], [*labels, labels[-1]])


@kept
def _columns(trial: TrialRecord, metric: str) -> tuple[Any, Any]:
    """When each report came, and its value; one that is not finite is worse than any, in either mode: nan."""
    known = [finite(report.metrics.get(metric)) for report in trial.reports]
    return (
        np.array([report.time for report in trial.reports]),
        np.array([math.nan if value is None else value for value in known]),
    )


def draw_history(data: History) -> dict[str, Any]:
    """A stair of the best value, a dot at each improvement."""
    look = {"line": {"color": BEST_COLOR, "width": 2, "shape": "hv"}, "marker": {"size": 7}}
    trace = {"type": "scatter", "mode": "lines+markers", "x": data.epochs, "y": data.values, "text": data.labels} | look
    trace |= {"hovertemplate": "%{text}<br>best from here on: %{y:.5g}<extra></extra>", "showlegend": False}
    title = {"text": f"best {escaped(data.metric, 40)}"}
    across = {"title": {"text": "epochs trained, all trials together"}, "rangemode": "tozero"}
    return {"data": [trace], "layout": {"xaxis": across, "yaxis": {"title": title}, "hovermode": "closest"}}
