"""Contour plot: the metric over two parameters, smoothed between the trials and left empty far from every trial."""

from __future__ import annotations

import numpy as np

from tuner.errors import RequestError, nearest
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.views.figures import plot
from tuner.views.figures.parameters import Axis, parallel_of

CELLS = 40  # of the grid, along each axis
NEAR = 0.08  # the kernel's standard deviation, as a share of the axis
REACH = 0.2  # a share of the axis: cells farther than this from every trial stay empty


def draw_contour(record: ExperimentRecord, x: str, y: str, choice: str = "") -> plot.Figure:
    """Draws the metric, smoothed over the parameters `x` and `y`, and the trials that have both as dots.

    Raises:
        RequestError: a parameter does not exist or has the same value in all trials with a finite metric, or no trial
            has both, or `choice` is none of `tuner.views.figures.values`.
    """
    parallel, mode = parallel_of(record, choice), record.experiment.mode
    axes = {axis.name: axis for axis in parallel.axes}
    for name in (x, y):
        if name not in axes:
            raise RequestError(f"no parameter {name!r} that differs between trials{nearest(name, axes)}")
    both = shared(axes[x], axes[y])
    if not both:
        raise RequestError(f"no trial has both {x!r} and {y!r}; choose parameters of one branch")
    across, up = (axis._replace(values=[axis.values[i] for i in both]) for axis in (axes[x], axes[y]))
    values, trials = [parallel.values[i] for i in both], [parallel.trials[i] for i in both]
    xs, ys = ([float(at) for at in np.linspace(min(a.known), max(a.known), CELLS)] for a in (across, up))
    # An outlier would hide all differences around it.
    grid = smoothed_grid(across.known, up.known, plot.within_range(values, plot.clipped(values, mode), mode), xs, ys)
    # Plotly would let both traces share a `coloraxis`, but then warns without end that their scales do not fit.
    color = plot.color_axis(values, mode, parallel.title)
    bar, low, high = (color.pop(key) for key in ("colorbar", "cmin", "cmax"))
    surface = {
        "type": "contour", "x": xs, "y": ys, "z": grid, "hoverinfo": "skip", "line": {"width": 0},
        "connectgaps": False, "ncontours": 20, "zmin": low, "zmax": high, "colorbar": bar, **color,
    }  # fmt: skip
    ids, labels = [trial.id for trial in trials], map(plot.label_of, trials)
    dots = plot.points(
        "markers", zip(across.values, up.values, ids, labels, strict=True), meta="trials",
        hovertemplate=f"%{{text}}<br>{plot.escaped(parallel.title, 60)} %{{marker.color:.5g}}<extra></extra>",
        marker={"size": 7, "color": values, "cmin": low, "cmax": high, **color,
                "line": {"width": 1, "color": "rgba(0,0,0,0.5)"}},
    )  # fmt: skip
    best = min(values) if mode == "min" else max(values)
    empty = " Places far from every trial stay empty." if any(None in row for row in grid) else ""
    title, winner = plot.tick(parallel.title, 60), plot.tick(trials[values.index(best)].id, 40)
    text = (
        f"{title} of {counted(len(values), 'trial')} over {plot.tick(x, 30)} and {plot.tick(y, 30)}, smoothed between "
        f"the trials. The best value is {best:.5g}: trial {winner}.{empty}"
    )
    return plot.figure([surface, dots], text, xaxis=across.layout(14), yaxis=up.layout(14), showlegend=False)


def shared(x: Axis, y: Axis) -> list[int]:
    """Returns the indices of the trials that have both parameters."""
    return [i for i, pair in enumerate(zip(x.values, y.values, strict=True)) if None not in pair]


def varied(x: Axis, y: Axis) -> bool:
    """Returns whether both parameters differ among the trials that have both, so that the contour is a surface."""
    return all(len({axis.values[i] for i in shared(x, y)}) > 1 for axis in (x, y))


def smoothed_grid(
    x: list[float], y: list[float], values: list[float], xs: list[float], ys: list[float]
) -> list[list[float | None]]:
    """Returns for each cell the mean of the values, weighted by a Gaussian of their distance; None beyond REACH.

    `grid[row][column]` is at `xs[column]`, `ys[row]`. This is the kernel regression of Nadaraya (1964) and Watson
    (1964).
    """
    wide, high = (max(ticks) - min(ticks) or 1.0 for ticks in (xs, ys))
    across = (np.array(xs)[None, :, None] - np.array(x)) / wide
    up = (np.array(ys)[:, None, None] - np.array(y)) / high
    squared = across**2 + up**2
    nearest_one = squared.min(axis=2)
    weights = np.exp(-(squared - nearest_one[..., None]) / (2 * NEAR**2))
    means = (weights * np.array(values)).sum(axis=2) / weights.sum(axis=2)
    near: list[list[float | None]] = np.where(nearest_one <= REACH**2, means, np.array(None)).tolist()
    return near
