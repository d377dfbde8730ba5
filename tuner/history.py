"""The best value so far against what has been trained for it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tuner.labels import BEST_COLOR, escaped, finite, label_of
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
    reports = [(r.time, i, r.metrics.get(metric)) for i, t in enumerate(record.trials) for r in t.reports]
    best, place, improved = math.inf, -1, []
    for epochs, (_, trial, value) in enumerate(sorted(reports, key=lambda report: report[:2]), 1):
        known = finite(value)
        if known is not None and sign * known < best:
            best, place = sign * known, trial
            improved.append((epochs, known, place))
    if improved:
        improved.append((len(reports), sign * best, place))
    labels = [label_of(record.trials[place]) for _, _, place in improved]
    return History(metric, [epochs for epochs, _, _ in improved], [value for _, value, _ in improved], labels)


def draw_history(data: History) -> dict[str, Any]:
    """A stair of the best value, a dot at each improvement."""
    look = {"line": {"color": BEST_COLOR, "width": 2, "shape": "hv"}, "marker": {"size": 7}}
    trace = {"type": "scatter", "mode": "lines+markers", "x": data.epochs, "y": data.values, "text": data.labels} | look
    trace |= {"hovertemplate": "%{text}<br>best from here on: %{y:.5g}<extra></extra>", "showlegend": False}
    title = {"text": f"best {escaped(data.metric, 40)}"}
    across = {"title": {"text": "epochs trained, all trials together"}, "rangemode": "tozero"}
    return {"data": [trace], "layout": {"xaxis": across, "yaxis": {"title": title}, "hovermode": "closest"}}
