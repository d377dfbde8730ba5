"""History plot: the best value so far against the epochs trained by all trials together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from tuner.record.results import ExperimentRecord
from tuner.views.figures.scales import clipped, unclipped, value_axis
from tuner.views.labels import BEST_COLOR, escaped, label_of, tick


class History(NamedTuple):
    """The best value of the search at each of its improvements, and at its last report.

    When all trials together had trained `epochs[i]` epochs, the best value was `values[i]`, from the trial `trials[i]`.
    The epochs include the `repeated` ones, which were trained again.
    """

    metric: str
    epochs: list[int]
    values: list[float]
    labels: list[str]
    trials: list[str]
    mode: str
    repeated: int


def history_of(record: ExperimentRecord) -> History:
    """Returns every improvement in the order of the reports; a last point repeats the best value at the last report.

    The repeated point draws the line up to the end of the search.
    """
    stats, metric = record.stats, record.experiment.metric
    if not stats.improvements:
        return History(metric, [], [], [], [], record.experiment.mode, 0)
    steps = [*stats.improvements, stats.improvements[-1]._replace(epochs=stats.num_reports)]
    trials = [record.trials[step.place] for step in steps]
    labels, ids = [label_of(trial) for trial in trials], [trial.id for trial in trials]
    epochs, values = [step.epochs for step in steps], [step.value for step in steps]
    return History(metric, epochs, values, labels, ids, record.experiment.mode, stats.repeated)


def draw_history(data: History) -> dict[str, Any]:
    """Draws the best value as a step line with a dot at each improvement."""
    look = {"line": {"color": BEST_COLOR, "width": 2, "shape": "hv"}, "marker": {"size": 7}}
    trace = {"type": "scatter", "mode": "lines+markers", "x": data.epochs, "y": data.values, "text": data.labels} | look
    trace |= {"meta": "best", "customdata": [escaped(trial) for trial in data.trials]}
    trace |= {"hovertemplate": "%{text}<br>best value: %{y:.5g}<extra></extra>", "showlegend": False}
    title, again = f"best {data.metric}", f", {data.repeated:,} of them again" if data.repeated else ""
    # Each value counts as long as it was the best one: a bad first trial then stands out as an outlier.
    lasted = [float(after - before) for before, after in pairwise(data.epochs)]
    within = clipped(data.values[:-1], data.mode, lasted) if sum(lasted) else None
    x_axis = {"title": {"text": f"epochs trained by all trials{again}"}, "rangemode": "tozero"}
    layout = {"xaxis": x_axis, "yaxis": value_axis(title, within), "hovermode": "closest"}
    return {"data": [trace], "layout": layout | {"meta": {"text": _described(data), **unclipped(title, within)}}}


def _described(data: History) -> str:
    steps, metric = len(data.epochs) - 1, tick(data.metric, 40)
    found = data.epochs[-2]
    again = f", {data.repeated:,} of which were trained again" if data.repeated else ""
    return (
        f"Best {metric} so far: {data.values[-1]:.5g}, of trial {tick(data.trials[-1], 40)}, found after {found:,} of "
        f"{data.epochs[-1]:,} epochs{again}; the first value was {data.values[0]:.5g}, and it "
        f"improved {steps - 1} times."
    )
