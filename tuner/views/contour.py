"""Contour: the metric over two parameters, smoothed between the trials, empty where there is none near."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tuner.errors import RequestError, nearest
from tuner.record.results import ExperimentRecord
from tuner.views.labels import escaped, label_of, tick
from tuner.views.parallel import BEST_TO_WORST, Axis, parallel_of

CELLS = 40
NEAR = 0.08  # of an axis: the width of the kernel
REACH = 0.2  # of an axis: farther from every trial than this, nothing is drawn


class Contour(NamedTuple):
    """`grid[row][column]` is the smoothed value at `ys[row]`, `xs[column]`, None where no trial is near."""

    x: Axis
    y: Axis
    values: list[float]
    labels: list[str]
    xs: list[float]
    ys: list[float]
    grid: list[list[float | None]]


def contour_of(record: ExperimentRecord, x: str, y: str) -> Contour:
    """Two parameters by name, of those that differ between trials; RequestError for another one."""
    parallel = parallel_of(record)
    axes = {axis.name: axis for axis in parallel.axes[:-1]}
    for name in (x, y):
        if name not in axes:
            raise RequestError(f"no parameter {name!r} that differs between trials{nearest(name, axes)}")
    first, second, values = axes[x], axes[y], parallel.axes[-1].values
    xs, ys = _ticks(first), _ticks(second)
    grid = smoothed(first.values, second.values, values, xs, ys)
    return Contour(first, second, values, [label_of(trial) for trial in parallel.trials], xs, ys, grid)


def _ticks(axis: Axis) -> list[float]:
    return [float(at) for at in np.linspace(min(axis.values), max(axis.values), CELLS)]


def smoothed(
    x: list[float], y: list[float], values: list[float], xs: list[float], ys: list[float]
) -> list[list[float | None]]:
    """The mean of the values near each cell, weighted by a Gaussian of their distance (Nadaraya 1964, Watson 1964)."""
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
    """The smoothed values with the trials as dots on them."""
    scale = {"colorscale": BEST_TO_WORST, "reversescale": mode == "max"}
    low, high = min(data.values), max(data.values)
    surface = {"type": "contour", "x": data.xs, "y": data.ys, "z": data.grid, "zmin": low, "zmax": high} | scale
    surface |= {"hoverinfo": "skip", "line": {"width": 0}, "connectgaps": False}
    surface |= {"colorbar": {"title": {"text": escaped(metric, 20)}}, "ncontours": 20}
    look = {
        "size": 7,
        "color": data.values,
        "cmin": low,
        "cmax": high,
        "line": {"width": 1, "color": "rgba(0,0,0,0.5)"},
    } | scale
    dots = {"type": "scatter", "mode": "markers", "x": data.x.values, "y": data.y.values, "text": data.labels}
    hover = f"%{{text}}<br>{escaped(metric, 40)} %{{marker.color:.5g}}<extra></extra>"
    layout = {"xaxis": _axis(data.x), "yaxis": _axis(data.y), "hovermode": "closest", "showlegend": False}
    return {"data": [surface, dots | {"marker": look, "hovertemplate": hover}], "layout": layout}


def _axis(axis: Axis) -> dict[str, Any]:
    ticks = {"tickvals": axis.ticks, "ticktext": [tick(text, 14) for text in axis.texts]} if axis.ticks else {}
    return {"title": {"text": escaped(axis.name, 30)}, **ticks}
