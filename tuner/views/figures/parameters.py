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
from tuner.views.figures.values import chosen, default, mode_of, offered, split, title_of, values_of

MAX_DRAWN = 1000  # maximum trials that are drawn or used for importance: more lines cannot be told apart
MAX_AXES = 500  # maximum axes; a page shows about 20 legibly
MISSING = object()  # stands for the value of a parameter that a trial does not have
MISSING_TEXT, MISSING_SHARE = "(none)", 0.15  # a missing value: tick text, and distance below the axis in axis lengths
MAX_NAMED = 8  # maximum parameters in the text about the figure
MOST_TICKS = 12  # a choice among more numbers gets a numeric axis instead of named ticks
MOST_AXES, COLUMNS = 24, 3
MAX_FULL_SIZE_MARKS = 300  # with more trials than this, marks of full size cover each other
MOST_AT = 6  # maximum axes named in the text about the plots
MOST_WHOLE = 1e9  # a whole number below this is written with all its digits
USAGE_PREFIXES = ("cpu_", "rss_", "gpu_")
NUM_CONTOURS = 20  # of a contour's surface
CELLS = 40  # cells of a contour's grid, along each axis
NEAR = 0.08  # standard deviation of the smoothing kernel, as a share of the axis
REACH = 0.2  # a share of the axis: cells farther than this from every trial stay empty


class Axis(NamedTuple):
    """An axis with a position per trial; None: the trial lacks the parameter. `scale` is that of `plot.figure`."""

    name: str
    values: list[float | None]
    ticks: list[float] = []
    texts: list[str] = []
    scale: str = ""

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
        return plot.axis_of(self.name, 30, **ticks)


class Parallel(NamedTuple):
    """The parameters' axes, the trials, and the compared value of each trial.

    `title` names this value, and `mode` is its direction, empty if unknown. `total` is the number of trials that have
    the value; of many, `trials` are a sample.
    """

    axes: list[Axis]
    values: list[float]
    trials: list[TrialRecord]
    title: str
    mode: str
    total: int

    @property
    def counted(self) -> str:
        """The number of trials in words: `30 trials`, or `1,000 of 2,000 trials (an even sample, with the best)`."""
        if len(self.trials) == self.total:
            return counted(self.total, "trial")
        return f"{len(self.trials):,} of {self.total:,} trials (an even sample, with the best)"

    @property
    def best(self) -> float:
        """The best value, or the greatest one if the direction is unknown."""
        return min(self.values) if self.mode == "min" else max(self.values)

    @property
    def extreme(self) -> str:
        return "best" if self.mode else "greatest"


def parallel_of(record: ExperimentRecord, choice: str = "") -> Parallel:
    """Returns the trials with a finite value, and the axes that vary.

    Of many trials, these are every n-th, the winner, and those with the least and the greatest value.
    """
    choice = chosen(record, choice)
    # A record keeps its results as long as it is served. Readers may ask for any epoch of any metric.
    return _kept_parallel(record, choice) if choice in offered(record) else _parallel(record, choice)


def _parallel(record: ExperimentRecord, choice: str) -> Parallel:
    winner, searched = record.best(), record.experiment.wanted.metric
    known = [(t, v) for t, v in zip(record.trials, values_of(record, choice), strict=True) if v is not None]
    every = math.ceil(len(known) / MAX_DRAWN) or 1
    always = {end(known, key=lambda pair: pair[1])[0].id for end in (min, max)} if known else set()
    always |= {winner[0].id} if winner else set()
    pairs = [pair for i, pair in enumerate(known) if i % every == 0 or pair[0].id in always]
    trials, values = [trial for trial, _ in pairs], [value for _, value in pairs]
    mode = mode_of(record, split(choice, searched)[1])
    return Parallel(axes_of(record, trials), values, trials, title_of(searched, choice), mode, len(known))


_kept_parallel = kept(_parallel)


def axes_of(record: ExperimentRecord, trials: list[TrialRecord]) -> list[Axis]:
    """Returns an axis for each parameter that varies among the trials."""
    configs = [parameters_of(trial) for trial in trials]
    described = record.facts.get("space", {}).get("params", {})
    declared = {name: domain for name, domain in described.items() if isinstance(domain, dict)}
    names = islice(dict.fromkeys(name for config in configs for name in config), MAX_AXES)
    axes = [_axis(name, [config.get(name, MISSING) for config in configs], declared.get(name, {})) for name in names]
    return [axis for axis in axes if len(set(axis.values)) > 1]


@kept
def parameters_of(trial: TrialRecord) -> dict[str, Any]:
    return dict(islice(flat_parameters(trial.config), MAX_AXES))


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
        powers = [f"1e{tick:.0f}" if abs(tick) > 300 else f"{10**tick:g}" for tick in ticks]
        return Axis(name, logs, ticks, powers, "log")
    return Axis(name, numbers)


def _named(name: str, given: list[Any]) -> Axis:
    """Returns an axis with one named tick per value: numbers in ascending order, then texts."""
    texts = {formatted(value): value for value in given if value is not MISSING}
    ordered = sorted(texts, key=lambda text: (finite(texts[text]) is None, finite(texts[text]) or 0, text))
    position = {text: float(i) for i, text in enumerate(ordered)}
    positions = [None if value is MISSING else position[formatted(value)] for value in given]
    return Axis(name, positions, list(position.values()), ordered, "names")


def too_few(record: ExperimentRecord, choice: str) -> plot.Figure | None:
    """Returns a figure that says that no trials can be compared, if the reader's choice is the cause; else None."""
    if chosen(record, choice) == default(record) or not parallel_of(record).axes:
        return None
    value = title_of(record.experiment.wanted.metric, chosen(record, choice))
    return plot.empty_figure(f"No two trials with different settings have a {value}.")


def draw_parallel(record: ExperimentRecord, choice: str = "") -> plot.Figure | None:
    """Draws Plotly's parallel coordinates, coloured by the metric. Outliers lie at the end of the metric's axis."""
    data = parallel_of(record, choice)
    mode = data.mode
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
    names = ", ".join(plot.tick(axis.name, 24) for axis in data.axes[:MAX_NAMED])
    more = len(data.axes) - MAX_NAMED
    text = (
        f"{data.counted} as lines through {names}{f' and {more} more' if more > 0 else ''} "
        f"and {plot.tick(data.title, 60)}. The {data.extreme} line is at {data.best:.5g}."
    )
    margin = {"t": 60, "b": 30, "l": 80, "r": 60}
    scales = {str(i): axis.scale for i, axis in enumerate(data.axes)}
    return plot.figure(
        [trace], text, scales=scales, margin=margin, coloraxis=plot.color_axis(data.values, mode, data.title)
    )


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
    data = parallel_of(record, choice)
    return _slices("parameters", data, record) if data.axes else too_few(record, choice)


def draw_usage(record: ExperimentRecord, choice: str = "") -> plot.Figure | None:
    """Draws a plot of the trials' means for each usage or speed metric that all trials have and that varies."""
    if (data := _usage_of(record, choice)).axes:
        return _slices("usage", data, record)
    return too_few(record, choice) if _usage_of(record).axes else None


def _usage_of(record: ExperimentRecord, choice: str = "") -> Parallel:
    data = parallel_of(record, choice)
    means = [means_of(trial) for trial in data.trials]
    names = islice(dict.fromkeys(name for each in means for name in each), MAX_AXES)
    axes = [Axis(name, [each.get(name, math.nan) for each in means]) for name in names]
    known = [axis for axis in axes if all(map(math.isfinite, axis.known)) and len(set(axis.known)) > 1]
    return data._replace(axes=known)


def is_usage(metric: str) -> bool:
    """Returns whether a metric is one of resource usage or of speed, which the service adds to each report."""
    return metric in SPEED or metric.startswith(USAGE_PREFIXES)


@kept
def means_of(trial: TrialRecord) -> dict[str, float]:
    """Returns metric -> mean over a trial's reports, for the usage and speed metrics that the last report has."""
    last = trial.reports[-1].metrics if trial.reports else {}
    names = islice((name for name in last if is_usage(name)), MAX_AXES)
    columns: dict[str, list[float]] = {name: [] for name in names}
    for report in trial.reports if columns else ():
        for name, each in report.metrics.items():
            if name in columns and (value := finite(each)) is not None:
                columns[name].append(value)
    # Each value is divided before it is added, because the sum of large values could overflow.
    return {name: math.fsum(value / len(values) for value in values) for name, values in columns.items() if values}


def _slices(meta: str, data: Parallel, record: ExperimentRecord) -> plot.Figure:
    """Draws a grid of scatter plots that share the metric's axis; the marks of many trials are smaller and lighter."""
    axes, values, trials, winner = data.axes[:MOST_AXES], data.values, data.trials, record.best()
    best = next((i for i, trial in enumerate(trials) if winner and trial.id == winner[0].id), -1)
    many = len(trials) > MAX_FULL_SIZE_MARKS
    color = [plot.GRAY if trial.status == "pruned" else plot.MAIN_COLOR for trial in trials]
    size, opacity = [4 if many else 6] * len(trials), [0.4 if many else 0.75] * len(trials)
    if best >= 0:
        color[best], size[best], opacity[best] = plot.BEST_COLOR, 11, 1.0
    within = plot.clipped(values, data.mode)
    look = {
        "type": "scattergl", "meta": meta,
        "hovertemplate": f"%{{text}}<br>{plot.escaped(data.title, 40)} %{{y:.5g}}<extra></extra>",
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
    text = f"{data.counted}: {plot.tick(data.title, 60)} against {names}{more}."
    if best >= 0:
        at = [(axis, axis.values[best]) for axis in axes[:MOST_AT]]
        places = [f"{plot.tick(axis.name, 24)} {label_at(axis, x)}" for axis, x in at if x is not None]
        text += f" The best trial, {plot.tick(trials[best].id, 40)}, is at {', '.join(places)}."
    layout |= {"grid": grid, "showlegend": False, "height": 60 + 230 * rows}
    scales = {f"xaxis{i + 1 if i else ''}": axis.scale for i, axis in enumerate(axes)}
    return plot.figure(traces, text, clip=(data.title, within), scales=scales, **layout)


def label_at(axis: Axis, position: float) -> str:
    """Returns the tick's text at a position, else its value (on a logarithmic axis, positions are log10 of values)."""
    if position in axis.ticks:
        return plot.tick(axis.texts[axis.ticks.index(position)], 16)
    value = 10**position if axis.ticks else position
    if axis.name.endswith("_bytes"):
        return f"{value / 1e6:.3g} MB"
    is_whole = abs(value) < MOST_WHOLE and math.isclose(value, round(value), rel_tol=1e-9)
    return str(round(value)) if is_whole else f"{value:.4g}"


def draw_contour(record: ExperimentRecord, x: str, y: str, choice: str = "") -> plot.Figure:
    """Draws the metric, smoothed over the parameters `x` and `y`, and, as dots, the trials that have both."""
    parallel = parallel_of(record, choice)
    mode = parallel.mode
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
        "connectgaps": False, "zmin": low, "zmax": high, "colorbar": bar, **color,
        # With `ncontours`, Plotly works the levels out at the first drawing, and fails at the next one with equal data.
        "contours": {"start": low, "end": high, "size": (high - low) / NUM_CONTOURS},
    }  # fmt: skip
    ids, labels = [trial.id for trial in trials], map(plot.label_of, trials)
    dots = plot.points(
        "markers", zip(across.values, up.values, ids, labels, strict=True), meta="trials",
        hovertemplate=f"%{{text}}<br>{plot.escaped(parallel.title, 60)} %{{marker.color:.5g}}<extra></extra>",
        marker={"size": 7, "color": values, "cmin": low, "cmax": high, **color,
                "line": {"width": 1, "color": "rgba(0,0,0,0.5)"}},
    )  # fmt: skip
    best = min(values) if mode == "min" else max(values)
    number = len(parallel.trials)
    sample = "" if number == parallel.total else f" (of a sample of {number:,} of {parallel.total:,})"
    empty = " Places far from every trial stay empty." if any(None in row for row in grid) else ""
    title, winner = plot.tick(parallel.title, 60), plot.tick(trials[values.index(best)].id, 40)
    text = (
        f"{title} of {counted(len(values), 'trial')}{sample} over {plot.tick(x, 30)} and {plot.tick(y, 30)}, smoothed "
        f"between the trials. The {parallel.extreme} value is {best:.5g}: trial {winner}.{empty}"
    )
    scales = {"xaxis": across.scale, "yaxis": up.scale}
    return plot.figure(
        [surface, dots], text, scales=scales, xaxis=across.layout(14), yaxis=up.layout(14), showlegend=False
    )


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
