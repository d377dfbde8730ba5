"""Contour plot: the metric over two parameters, smoothed between the trials and left empty far from every trial."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tuner.errors import RequestError, nearest
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures.parallel import Axis, parallel_of
from tuner.views.figures.scales import clipped, color_axis, within_range
from tuner.views.figures.values import title_of
from tuner.views.labels import escaped, label_of, tick

CELLS = 40  # of the grid, along each axis
NEAR = 0.08  # the kernel's standard deviation, as a share of the axis
REACH = 0.2  # a share of the axis: cells farther than this from every trial stay empty


class Contour(NamedTuple):
    """The trials and the smoothed metric: `grid[row][column]` is its value at `xs[column]`, `ys[row]`.

    A cell is None if no trial is near it. `values` are the trials' metric values, which `choice` chose.
    """

    x: Axis
    y: Axis
    values: list[float]
    labels: list[str]
    trials: list[str]
    xs: list[float]
    ys: list[float]
    grid: list[list[float | None]]
    choice: str


def contour_of(record: ExperimentRecord, x: str, y: str, choice: str = "") -> Contour:
    """Smooths the metric over the parameters `x` and `y`, from the trials that have both.

    Raises:
        RequestError: a parameter does not exist or has the same value in all trials with a finite metric, or no trial
            has both, or `choice` is none of `tuner.views.figures.values`.
    """
    parallel = parallel_of(record, choice)
    axes = {axis.name: axis for axis in parallel.axes[:-1]}
    for name in (x, y):
        if name not in axes:
            raise RequestError(f"no parameter {name!r} that differs between trials{nearest(name, axes)}")
    both = shared(axes[x], axes[y])
    if not both:
        raise RequestError(f"no trial has both {x!r} and {y!r}; choose parameters of one branch")
    first, second = (axis._replace(values=[axis.values[i] for i in both]) for axis in (axes[x], axes[y]))
    values, trials = [parallel.values[i] for i in both], [parallel.trials[i] for i in both]
    labels, ids = [label_of(trial) for trial in trials], [trial.id for trial in trials]
    xs, ys = _ticks(first), _ticks(second)
    # An outlier would hide all differences around it.
    calm = within_range(values, clipped(values, record.experiment.mode), record.experiment.mode)
    grid = smoothed_grid(first.known, second.known, calm, xs, ys)
    return Contour(first, second, values, labels, ids, xs, ys, grid, parallel.choice)


def shared(x: Axis, y: Axis) -> list[int]:
    """Returns the indices of the trials that have both parameters."""
    return [i for i, pair in enumerate(zip(x.values, y.values, strict=True)) if None not in pair]


def varied(x: Axis, y: Axis) -> bool:
    """Returns whether both parameters differ among the trials that have both, so that the contour is a surface."""
    return all(len({axis.values[i] for i in shared(x, y)}) > 1 for axis in (x, y))


def _ticks(axis: Axis) -> list[float]:
    return [float(at) for at in np.linspace(min(axis.known), max(axis.known), CELLS)]


def smoothed_grid(
    x: list[float], y: list[float], values: list[float], xs: list[float], ys: list[float]
) -> list[list[float | None]]:
    """Returns for each cell the mean of the values, weighted by a Gaussian of their distance; None beyond REACH.

    This is the kernel regression of Nadaraya (1964) and Watson (1964).
    """
    wide, high = (max(ticks) - min(ticks) or 1.0 for ticks in (xs, ys))
    across = (np.array(xs)[None, :, None] - np.array(x)) / wide
    up = (np.array(ys)[:, None, None] - np.array(y)) / high
    squared = across**2 + up**2
    nearest_one = squared.min(axis=2)
    weights = np.exp(-(squared - nearest_one[..., None]) / (2 * NEAR**2))
    means = (weights * np.array(values)).sum(axis=2) / weights.sum(axis=2)
    return [
        [float(mean) if near <= REACH**2 else None for mean, near in zip(*row, strict=True)]
        for row in zip(means, nearest_one, strict=True)
    ]


def draw_contour(data: Contour, metric: str, mode: str) -> dict[str, Any]:
    """Draws the smoothed values, with the trials as dots on them."""
    title = title_of(metric, data.choice)
    surface: dict[str, Any] = {"type": "contour", "x": data.xs, "y": data.ys, "z": data.grid}
    surface |= {"hoverinfo": "skip", "line": {"width": 0}, "connectgaps": False, "ncontours": 20}
    # Plotly would let both traces share a `coloraxis`, but then warns without end that their scales do not fit.
    color = color_axis(data.values, mode, title)
    scale = {"colorscale": color["colorscale"], "reversescale": color["reversescale"]}
    surface |= scale | {"zmin": color["cmin"], "zmax": color["cmax"], "colorbar": color["colorbar"]}
    look: dict[str, Any] = {"size": 7, "color": data.values, "cmin": color["cmin"], "cmax": color["cmax"], **scale}
    look |= {"line": {"width": 1, "color": "rgba(0,0,0,0.5)"}}
    dots: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "x": data.x.values,
        "y": data.y.values,
        "text": data.labels,
    }
    dots |= {"meta": "trials", "customdata": [escaped(trial) for trial in data.trials]}
    hover = f"%{{text}}<br>{escaped(title, 60)} %{{marker.color:.5g}}<extra></extra>"
    best = min(data.values) if mode == "min" else max(data.values)
    empty = " Places far from every trial stay empty." if any(None in row for row in data.grid) else ""
    text = (
        f"{tick(title, 60)} of {counted(len(data.values), 'trial')} over {tick(data.x.name, 30)} and "
        f"{tick(data.y.name, 30)}, smoothed between the trials. The best value is {best:.5g}: trial "
        f"{tick(data.trials[data.values.index(best)], 40)}.{empty}"
    )
    layout = {"xaxis": _axis(data.x), "yaxis": _axis(data.y), "hovermode": "closest", "showlegend": False}
    layout |= {"meta": {"text": text}}
    return {"data": [surface, dots | {"marker": look, "hovertemplate": hover}], "layout": layout}


def _axis(axis: Axis) -> dict[str, Any]:
    ticks = {"tickvals": axis.ticks, "ticktext": [tick(text, 14) for text in axis.texts]} if axis.ticks else {}
    return {"title": {"text": escaped(axis.name, 30)}, **ticks}
