"""History plot: the best value so far against the epochs trained by all trials together."""

from __future__ import annotations

from itertools import pairwise

from tuner.record.results import ExperimentRecord
from tuner.views.figures.drawing import BEST_COLOR, Figure, clipped, figure, label_of, points, tick, titled


def draw_history(record: ExperimentRecord) -> Figure | None:
    """Draws the best value as a step line with a dot at each improvement, up to the last report.

    The epochs include those that were trained again. Without a finite value, there is no figure.
    """
    stats, metric = record.stats, record.experiment.metric
    if not stats.improvements:
        return None
    steps = [*stats.improvements, stats.improvements[-1]._replace(epochs=stats.num_reports)]
    trials = [record.trials[step.place] for step in steps]
    epochs, values = [step.epochs for step in steps], [step.value for step in steps]
    line = points(
        "lines+markers", epochs, values, [trial.id for trial in trials], meta="best", text=list(map(label_of, trials)),
        line={"color": BEST_COLOR, "width": 2, "shape": "hv"}, marker={"size": 7}, showlegend=False,
        hovertemplate="%{text}<br>best value: %{y:.5g}<extra></extra>",
    )  # fmt: skip
    # Each value counts as long as it was the best one: a bad first trial then stands out as an outlier.
    lasted = [float(after - before) for before, after in pairwise(epochs)]
    within = clipped(values[:-1], record.experiment.mode, lasted) if sum(lasted) else None
    again, which = (f"{stats.repeated:,} of {word}" if stats.repeated else "" for word in ("them again", "which"))
    text = (
        f"Best {tick(metric, 40)} so far: {values[-1]:.5g}, of trial {tick(trials[-1].id, 40)}, found after "
        f"{epochs[-2]:,} of {epochs[-1]:,} epochs{f', {which} were trained again' if which else ''}; the first value "
        f"was {values[0]:.5g}, and it improved {len(steps) - 2} times."
    )
    x_axis = titled(f"epochs trained by all trials{f', {again}' if again else ''}", rangemode="tozero")
    return figure([line], text, clip=(f"best {metric}", within), xaxis=x_axis)
