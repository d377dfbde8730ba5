"""History plot: the best value so far against the epochs trained by all trials together."""

from __future__ import annotations

from typing import Any, NamedTuple

from tuner.record.results import ExperimentRecord
from tuner.views.labels import BEST_COLOR, escaped, label_of


class History(NamedTuple):
    """The best value of the search at each of its improvements.

    When all trials together had trained `epochs[i]` epochs, the best value was `values[i]`, from the trial `trials[i]`.
    """

    metric: str
    epochs: list[int]
    values: list[float]
    labels: list[str]
    trials: list[str]


def history_of(record: ExperimentRecord) -> History:
    """Returns every improvement in the order of the reports; the last point repeats the best value at the last report.

    The repeated point draws the line up to the end of the search.
    """
    standing, metric = record.standing, record.experiment.metric
    if not standing.improvements:
        return History(metric, [], [], [], [])
    steps = [*standing.improvements, standing.improvements[-1]._replace(epochs=standing.arrived)]
    trials = [record.trials[step.place] for step in steps]
    labels, ids = [label_of(trial) for trial in trials], [trial.id for trial in trials]
    return History(metric, [step.epochs for step in steps], [step.value for step in steps], labels, ids)


def draw_history(data: History) -> dict[str, Any]:
    """Draws the best value as a step line with a dot at each improvement."""
    look = {"line": {"color": BEST_COLOR, "width": 2, "shape": "hv"}, "marker": {"size": 7}}
    trace = {"type": "scatter", "mode": "lines+markers", "x": data.epochs, "y": data.values, "text": data.labels} | look
    trace |= {"meta": "best", "customdata": [escaped(trial) for trial in data.trials]}
    trace |= {"hovertemplate": "%{text}<br>best value: %{y:.5g}<extra></extra>", "showlegend": False}
    title = {"text": f"best {escaped(data.metric, 40)}"}
    x_axis = {"title": {"text": "epochs trained by all trials"}, "rangemode": "tozero"}
    return {"data": [trace], "layout": {"xaxis": x_axis, "yaxis": {"title": title}, "hovermode": "closest"}}
