"""The best value so far against what has been trained for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from tuner.record.results import ExperimentRecord
from tuner.views.labels import BEST_COLOR, escaped, label_of


class History(NamedTuple):
    """The best value of all trials against the epochs trained by all of them together, at each improvement."""

    metric: str
    epochs: list[int]
    values: list[float]
    labels: list[str]


def history_of(record: ExperimentRecord) -> History:
    """Every improvement in the order of the reports, and the last report with the best of all again."""
    standing, metric = record.standing, record.experiment.metric
    if not standing.improvements:
        return History(metric, [], [], [])
    steps = [*standing.improvements, standing.improvements[-1]._replace(epochs=standing.arrived)]
    labels = [label_of(record.trials[step.place]) for step in steps]
    return History(metric, [step.epochs for step in steps], [step.value for step in steps], labels)


def draw_history(data: History) -> dict[str, Any]:
    """A stair of the best value, a dot at each improvement."""
    look = {"line": {"color": BEST_COLOR, "width": 2, "shape": "hv"}, "marker": {"size": 7}}
    trace = {"type": "scatter", "mode": "lines+markers", "x": data.epochs, "y": data.values, "text": data.labels} | look
    trace |= {"hovertemplate": "%{text}<br>best from here on: %{y:.5g}<extra></extra>", "showlegend": False}
    title = {"text": f"best {escaped(data.metric, 40)}"}
    across = {"title": {"text": "epochs trained, all trials together"}, "rangemode": "tozero"}
    return {"data": [trace], "layout": {"xaxis": across, "yaxis": {"title": title}, "hovermode": "closest"}}
