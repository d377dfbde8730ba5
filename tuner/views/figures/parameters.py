"""Figures of the trials' parameters: parallel coordinates, slices (also of resource usage and speed), and contours."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tuner.errors import RequestError, nearest
from tuner.record.records import TrialRecord, finite, kept
from tuner.record.report_keys import SPEED
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, flat_parameters, formatted
from tuner.views.figures import plot
from tuner.views.figures.values import chosen, default, title_of, values_of

MOST_LINES = 1000  # maximum trials that are drawn or used for importance: more lines cannot be told apart
MOST_PARAMETERS = 500  # maximum axes; a page shows about 20 legibly
MISSING = object()  # stands for the value of a parameter that a trial does not have
MISSING_TEXT, MISSING_SHARE = "(none)", 0.15  # a missing value: tick text, and distance below the axis in axis lengths
MOST_NAMED = 8  # maximum parameters in the text about the figure
MOST_TICKS = 12  # a choice among more numbers gets a numeric axis instead of named ticks
MOST_AXES, COLUMNS = 24, 3
MANY = 300  # with more trials than this, marks of full size cover each other
MOST_AT = 6  # maximum axes named in the text about the plots
MOST_WHOLE = 1e9  # a whole number below this is written with all its digits
USAGE_PREFIXES = ("cpu_", "rss_", "gpu_")
CELLS = 40  # cells of a contour's grid, along each axis
NEAR = 0.08  # standard deviation of the smoothing kernel, as a share of the axis
REACH = 0.2  # a share of the axis: cells farther than this from every trial stay empty


class Axis(NamedTuple):
    """An axis with a position per trial; None: the trial lacks the parameter. Without `ticks`, positions are values."""

    name: str
    values: list[float | None]
    ticks: list[float] = []
    texts: list[str] = []

    @property
    def known(self) -> list[float]:
        """The positions of the trials that have the parameter."""
        return [value for value in self.values if value is not None]

    def filled(self, share: float) -> list[float]:
        """Returns the positions; puts a missing position below all others, by `share` of the axis's length."""
        low, high = min(self.known), max(self.known)
        below = low - share * ((high - low) or 1.0)
        return [below if value is None else value for value in self.values]

    def layout(self, length: int) -> plot.Figure:
        """Returns the layout of the axis in a plot; a tick's text has at most `length` characters."""
        texts = [plot.tick(text, length) for text in self.texts]
        ticks = {"tickvals": self.ticks, "ticktext": texts} if self.ticks else {}
        return plot.titled(plot.escaped(self.name, 30), **ticks)


class Parallel(NamedTuple):
    """The parameters' axes, the trials, and the compared value of each trial; `title` names this value."""

    axes: list[Axis]
    values: list[float]
    trials: list[TrialRecord]
    title: str


@kept
def parallel_of(record: ExperimentRecord, choice: str = "") -> Parallel:
    """Returns the trials with a finite value (of many trials, every n-th and the winner), and the axes that vary."""
    choice, winner = chosen(record, choice), record.best()
    values = values_of(record, choice)
    pairs = [(trial, value) for trial, value in zip(record.trials, values, strict=True) if value is not None]
    every = math.ceil(len(pairs) / MOST_LINES) or 1
    pairs = [pair for i, pair in enumerate(pairs) if i % every == 0 or (winner and pair[0] is winner[0])]
    trials, title = [trial for trial, _ in pairs], title_of(record.experiment.wanted.metric, choice)
    return Parallel(axes_of(record, trials), [value for _, value in pairs], trials, title)


def axes_of(record: ExperimentRecord, trials: list[TrialRecord]) -> list[Axis]:
    """Returns an axis for each parameter that varies among the trials."""
    configs = [parameters_of(trial) for trial in trials]
    described = record.facts.get("space", {}).get("params", {})
    declared = {name: domain for name, domain in described.items() if isinstance(domain, dict)}
    names = islice(dict.fromkeys(name for config in configs for name in config), MOST_PARAMETERS)
    axes = [_axis(name, [config.get(name, MISSING) for config in configs], declared.get(name, {})) for name in names]
    return [axis for axis in axes if len(set(axis.values)) > 1]


@kept
def parameters_of(trial: TrialRecord) -> dict[str, Any]:
    return dict(islice(flat_parameters(trial.config), MOST_PARAMETERS))


def _axis(name: str, given: list[Any], declared: dict[str, Any]) -> Axis:
    numbers = [None if value is MISSING else finite(value) for value in given]
    known = [number for number in numbers if number is not None]
    branches = declared.get("branches")  # each branch may declare the parameter in its own way
    each = branches if isinstance(branches, list) else [declared]
    kinds = [str(one["kind"]) for one in each if isinstance(one, dict) and "kind" in one]
    texts = any(number is None and value is not MISSING for number, value in zip(numbers, given, strict=True))
    is_few = len(set(known)) <= MOST_TICKS
    if texts or (kinds and is_few and all(kind in ("choice", "grid_search") for kind in kinds)):
        return _named(name, given)
    if any(kind.startswith("log") for kind in kinds) and min(known) > 0:
        logs = [None if number is None else math.log10(number) for number in numbers]
        low, high = math.log10(min(known)), math.log10(max(known))
        ticks = [float(power) for power in range(math.floor(low), math.ceil(high) + 1)]
        return Axis(name, logs, ticks, [f"1e{tick:.0f}" if abs(tick) > 300 else f"{10**tick:g}" for tick in ticks])
    return Axis(name, numbers)


def _named(name: str, given: list[Any]) -> Axis:
    """Returns an axis with one named tick per value: numbers in ascending order, then texts."""
    texts = {formatted(value): value for value in given if value is not MISSING}
    ordered = sorted(texts, key=lambda text: (finite(texts[text]) is None, finite(texts[text]) or 0, text))
    position = {text: float(i) for i, text in enumerate(ordered)}
    positions = [None if value is MISSING else position[formatted(value)] for value in given]
    return Axis(name, positions, list(position.values()), ordered)


def too_few(record: ExperimentRecord, choice: str) -> plot.Figure | None:
    """Returns a figure that says that no trials can be compared, if the reader's choice is the cause; else None."""
    if not choice or choice == default(record) or not parallel_of(record).axes:
        return None
    value = title_of(record.experiment.wanted.metric, choice)
    return plot.empty_figure(f"No two trials with different settings have a {value}.")


def draw_parallel(record: ExperimentRecord, choice: str = "") -> plot.Figure | None:
    """Draws Plotly's parallel coordinates, coloured by the metric. Outliers lie at the end of the metric's axis."""
    data, mode = parallel_of(record, choice), record.experiment.wanted.mode
    if not data.axes:
        return too_few(record, choice)
    within = plot.clipped(data.values, mode)
    shown = plot.within_range(data.values, within, mode)
    ticks, texts = plot.ticks_between(min(shown), max(shown))
    label = plot.escaped(data.title, 30) + (" (clipped)" if within else "")
    own = {"label": label, "values": shown, "range": _ends(shown), "tickvals": ticks, "ticktext": texts}
    trace = {
        "type": "parcoords",
        "meta": "trials",
        "customdata": [plot.escaped(trial.id) for trial in data.trials],
        "line": {"color": shown, "coloraxis": "coloraxis"},
        "dimensions": [*map(_dimension, data.axes), own],
    }
    best = min(data.values) if mode == "min" else max(data.values)
    names = ", ".join(plot.tick(axis.name, 24) for axis in data.axes[:MOST_NAMED])
    more = len(data.axes) - MOST_NAMED
    text = (
        f"{counted(len(data.trials), 'trial')} as lines through {names}{f' and {more} more' if more > 0 else ''} "
        f"and {plot.tick(data.title, 60)}. The best line is at {best:.5g}."
    )
    margin = {"t": 60, "b": 30, "l": 80, "r": 60}
    return plot.figure([trace], text, margin=margin, coloraxis=plot.color_axis(data.values, mode, data.title))


def _dimension(axis: Axis) -> plot.Figure:
    positions, ticks, texts = axis.filled(MISSING_SHARE), axis.ticks, axis.texts
    if not ticks:
        ticks, texts = plot.ticks_between(min(axis.known), max(axis.known))
    if None in axis.values:
        ticks, texts = [min(positions), *ticks], [MISSING_TEXT, *texts]
    named = {"label": plot.escaped(axis.name, 24), "ticktext": [plot.tick(text, 16) for text in texts]}
    return named | {"values": positions, "tickvals": ticks, "range": _ends([*positions, *ticks])}


def _ends(positions: list[float]) -> list[float]:
    low, high = min(positions), max(positions)
    # If all values are equal, Plotly still needs a range whose ends differ.
    return [low, high] if high > low else [low - 0.5, high + 0.5]


def draw_slices(record: ExperimentRecord, choice: str = "") -> plot.Figure | None:
    """Draws one plot for each of the first MOST_AXES parameters that differ between trials."""
    return _slices("parameters", parallel_of(record, choice), record, choice)


def draw_usage(record: ExperimentRecord, choice: str = "") -> plot.Figure | None:
    """Draws a plot of the trials' means for each usage or speed metric that all trials have and that varies."""
    data = parallel_of(record, choice)
    means = [means_of(trial) for trial in data.trials]
    names = islice(dict.fromkeys(name for each in means for name in each), MOST_PARAMETERS)
    axes = [Axis(name, [each.get(name, math.nan) for each in means]) for name in names]
    known = [axis for axis in axes if all(map(math.isfinite, axis.known)) and len(set(axis.known)) > 1]
    return _slices("usage", data._replace(axes=known), record, choice)


@kept
def means_of(trial: TrialRecord) -> dict[str, float]:
    """Returns metric -> mean over a trial's reports, for the usage and speed metrics that the last report has."""
    last = trial.reports[-1].metrics if trial.reports else {}
    names = islice((name for name in last if name in SPEED or name.startswith(USAGE_PREFIXES)), MOST_PARAMETERS)
    columns: dict[str, list[float]] = {name: [] for name in names}
    for report in trial.reports if columns else ():
        for name, each in report.metrics.items():
            if name in columns and (value := finite(each)) is not None:
                columns[name].append(value)
    # Each value is divided before it is added, because the sum of large values could overflow.
    return {name: math.fsum(value / len(values) for value in values) for name, values in columns.items() if values}


def _slices(meta: str, data: Parallel, record: ExperimentRecord, choice: str) -> plot.Figure | None:
    """Draws a grid of scatter plots that share the metric's axis; the marks of many trials are smaller and lighter."""
    if not data.axes:
        return too_few(record, choice)
    axes, values, trials, winner = data.axes[:MOST_AXES], data.values, data.trials, record.best()
    best = next((i for i, trial in enumerate(trials) if winner and trial.id == winner[0].id), -1)
    many = len(trials) > MANY
    color = [plot.GRAY if trial.status == "pruned" else plot.MAIN_COLOR for trial in trials]
    size, opacity = [4 if many else 6] * len(trials), [0.4 if many else 0.75] * len(trials)
    if best >= 0:
        color[best], size[best], opacity[best] = plot.BEST_COLOR, 11, 1.0
    within = plot.clipped(values, record.experiment.wanted.mode)
    look = {
        "type": "scattergl", "meta": meta,
        "hovertemplate": f"%{{text}}<br>{plot.escaped(record.experiment.wanted.metric, 40)} %{{y:.5g}}<extra></extra>",
        "marker": {"color": color, "size": size, "opacity": opacity, "line": {"width": 0}},
    }  # fmt: skip
    ids, labels = [trial.id for trial in trials], list(map(plot.label_of, trials))
    rows, traces = math.ceil(len(axes) / COLUMNS), []
    layout: dict[str, Any] = {}
    for i, axis in enumerate(axes):
        number, is_first = str(i + 1) if i else "", i % COLUMNS == 0
        dots = plot.points("markers", zip(axis.values, values, ids, labels, strict=True), **look)
        traces.append(dots | {"xaxis": f"x{number}", "yaxis": f"y{number}"})
        layout[f"xaxis{number}"] = axis.layout(12)
        # All plots share a scale. Only a row's first plot has tick texts, since others could cover their neighbours.
        own = plot.value_axis(data.title, within) if is_first else {}
        layout[f"yaxis{number}"] = own | {"showticklabels": is_first, **({"matches": "y"} if i else {})}
    grid = {"rows": rows, "columns": min(COLUMNS, len(axes)), "pattern": "independent", "ygap": 0.35}
    names = ", ".join(plot.tick(axis.name, 24) for axis in axes[:MOST_AT])
    more = f" and {len(axes) - MOST_AT} more" if len(axes) > MOST_AT else ""
    text = f"{counted(len(trials), 'trial')}: {plot.tick(data.title, 60)} against {names}{more}."
    if best >= 0:
        at = [(axis, axis.values[best]) for axis in axes[:MOST_AT]]
        places = [f"{plot.tick(axis.name, 24)} {label_at(axis, x)}" for axis, x in at if x is not None]
        text += f" The best trial, {plot.tick(trials[best].id, 40)}, is at {', '.join(places)}."
    layout |= {"grid": grid, "showlegend": False, "height": 60 + 230 * rows}
    return plot.figure(traces, text, clip=(data.title, within), **layout)


def label_at(axis: Axis, position: float) -> str:
    """Returns the tick's text at a position, else its value (on a logarithmic axis, positions are log10 of values)."""
    if position in axis.ticks:
        return plot.tick(axis.texts[axis.ticks.index(position)], 16)
    value = 10**position if axis.ticks else position
    is_whole = abs(value) < MOST_WHOLE and math.isclose(value, round(value), rel_tol=1e-9)
    return str(round(value)) if is_whole else f"{value:.4g}"


def draw_contour(record: ExperimentRecord, x: str, y: str, choice: str = "") -> plot.Figure:
    """Draws the metric, smoothed over the parameters `x` and `y`, and, as dots, the trials that have both."""
    parallel, mode = parallel_of(record, choice), record.experiment.wanted.mode
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
    return [i for i, pair in enumerate(zip(x.values, y.values, strict=True)) if None not in pair]


def varied(x: Axis, y: Axis) -> bool:
    """Whether both parameters differ among the trials that have both, so that the contour is a surface."""
    return all(len({axis.values[i] for i in shared(x, y)}) > 1 for axis in (x, y))


def smoothed_grid(
    x: list[float], y: list[float], values: list[float], xs: list[float], ys: list[float]
) -> list[list[float | None]]:
    """Returns for each cell the values' mean, weighted by a Gaussian of their distance; None if all are beyond REACH.

    `grid[row][column]` is at `xs[column]`, `ys[row]`. This is the regression of Nadaraya (1964) and Watson (1964).
    """
    wide, high = (max(ticks) - min(ticks) or 1.0 for ticks in (xs, ys))
    across = (np.array(xs)[None, :, None] - np.array(x)) / wide
    up = (np.array(ys)[:, None, None] - np.array(y)) / high
    squared = across**2 + up**2
    closest = squared.min(axis=2)
    weights = np.exp(-(squared - closest[..., None]) / (2 * NEAR**2))
    means = (weights * np.array(values)).sum(axis=2) / weights.sum(axis=2)
    near: list[list[float | None]] = np.where(closest <= REACH**2, means, np.array(None)).tolist()
    return near
