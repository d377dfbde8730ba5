"""Parallel coordinates: each trial is a line through the values of its parameters and its metric value."""

from __future__ import annotations

import math
from itertools import compress, islice
from typing import Any, NamedTuple

from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, flat_parameters, formatted
from tuner.views.figures.drawing import (
    Figure,
    clipped,
    color_axis,
    empty_figure,
    escaped,
    figure,
    tick,
    ticks_between,
    within_range,
)
from tuner.views.figures.values import chosen, default, title_of, values_of

MOST_LINES = 1000  # trials that are drawn and used for importance: more lines cannot be told apart
MOST_PARAMETERS = 500  # axes; a page shows about 20 legibly
MISSING = object()  # instead of the value of a parameter that a trial does not have
MISSING_TEXT, MISSING_SHARE = "(none)", 0.15  # the tick of a missing value, and how far below the axis it lies
MOST_NAMED = 8  # parameters in the text about the figure
MOST_TICKS = 12  # a choice among more numbers gets a numeric axis instead of named ticks


class Axis(NamedTuple):
    """One axis with one position per trial; None for a trial without the parameter (of another branch).

    `ticks` and `texts` label the axis if positions are not the values themselves; otherwise both are empty.
    """

    name: str
    values: list[float | None]
    ticks: list[float] = []
    texts: list[str] = []

    @property
    def known(self) -> list[float]:
        """The values on the axis, without the None of trials that lack the parameter."""
        return [value for value in self.values if value is not None]

    def filled(self, share: float) -> list[float]:
        """The positions; a missing one lies below all others, by `share` of the axis's length."""
        low, high = min(self.known), max(self.known)
        below = low - share * ((high - low) or 1.0)
        return [below if value is None else value for value in self.values]


class Parallel(NamedTuple):
    """The parameters' axes, and for each of `trials` the value that `choice` names (`tuner.views.figures.values`)."""

    axes: list[Axis]
    values: list[float]
    trials: list[TrialRecord]
    choice: str
    title: str


@kept
def parallel_of(record: ExperimentRecord, choice: str = "") -> Parallel:
    """Returns the axes of the parameters that differ between the `sampled` trials, and the trials' values.

    Only the first MOST_PARAMETERS parameters are used.

    Raises:
        RequestError: `choice` is none of `tuner.views.figures.values`.
    """
    choice = chosen(record, choice)
    compared = sampled(record, choice)
    configs = [parameters_of(trial) for trial, _ in compared]
    described = record.facts.get("space", {}).get("params", {})
    declared = {name: domain for name, domain in described.items() if isinstance(domain, dict)}
    names = islice(dict.fromkeys(name for config in configs for name in config), MOST_PARAMETERS)
    axes = [_axis(name, [config.get(name, MISSING) for config in configs], declared.get(name, {})) for name in names]
    varied = [axis for axis in axes if len(set(axis.values)) > 1]
    title = title_of(record.experiment.metric, choice)
    return Parallel(varied, [value for _, value in compared], [trial for trial, _ in compared], choice, title)


@kept
def sampled(record: ExperimentRecord, choice: str) -> list[tuple[TrialRecord, float]]:
    """Returns the trials that have a finite value for `choice`, with that value, in order.

    If there are more than MOST_LINES, it returns every n-th of them, and the winner.
    """
    values = values_of(record, choice)
    places = [place for place, value in enumerate(values) if value is not None]
    winner, every = record.best(), math.ceil(len(places) / MOST_LINES) or 1
    is_drawn = (i % every == 0 or (winner and record.trials[place] is winner[0]) for i, place in enumerate(places))
    return [
        (record.trials[place], value) for place in compress(places, is_drawn) if (value := values[place]) is not None
    ]


@kept
def parameters_of(trial: TrialRecord) -> dict[str, Any]:
    """Returns the first MOST_PARAMETERS parameters of a trial: flattened name -> value."""
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
    place = {text: float(i) for i, text in enumerate(ordered)}
    positions = [None if value is MISSING else place[formatted(value)] for value in given]
    return Axis(name, positions, list(place.values()), ordered)


def too_few(record: ExperimentRecord, choice: str) -> Figure | None:
    """Returns a figure that says that there is nothing to compare, if only the reader's choice is the reason."""
    if not choice or choice == default(record) or not parallel_of(record).axes:
        return None
    return empty_figure(f"No two trials with different settings have a {title_of(record.experiment.metric, choice)}.")


def draw_parallel(record: ExperimentRecord, choice: str = "") -> Figure | None:
    """Draws Plotly's parallel coordinates, coloured by the metric. Outliers lie at the end of the metric's axis."""
    data, mode = parallel_of(record, choice), record.experiment.mode
    if not data.axes:
        return too_few(record, choice)
    within = clipped(data.values, mode)
    shown = within_range(data.values, within, mode)
    ticks, texts = ticks_between(min(shown), max(shown))
    label = escaped(data.title, 30) + (" (clipped)" if within else "")
    own = {"label": label, "values": shown, "range": _ends(shown), "tickvals": ticks, "ticktext": texts}
    trace = {
        "type": "parcoords",
        "meta": "trials",
        "customdata": [escaped(trial.id) for trial in data.trials],
        "line": {"color": shown, "coloraxis": "coloraxis"},
        "dimensions": [*map(_dimension, data.axes), own],
    }
    best = min(data.values) if mode == "min" else max(data.values)
    names = ", ".join(tick(axis.name, 24) for axis in data.axes[:MOST_NAMED])
    more = len(data.axes) - MOST_NAMED
    text = (
        f"{counted(len(data.trials), 'trial')} as lines through {names}{f' and {more} more' if more > 0 else ''} "
        f"and {tick(data.title, 60)}. The best line is at {best:.5g}."
    )
    margin = {"t": 60, "b": 30, "l": 80, "r": 60}
    return figure([trace], text, margin=margin, coloraxis=color_axis(data.values, mode, data.title))


def _dimension(axis: Axis) -> Figure:
    positions, ticks, texts = axis.filled(MISSING_SHARE), axis.ticks, axis.texts
    if not ticks:
        ticks, texts = ticks_between(min(axis.known), max(axis.known))
    if None in axis.values:
        ticks, texts = [min(positions), *ticks], [MISSING_TEXT, *texts]
    named = {"label": escaped(axis.name, 24), "ticktext": [tick(text, 16) for text in texts]}
    return named | {"values": positions, "tickvals": ticks, "range": _ends([*positions, *ticks])}


def _ends(positions: list[float]) -> list[float]:
    low, high = min(positions), max(positions)
    # If all values are equal, Plotly still needs a range whose ends differ.
    return [low, high] if high > low else [low - 0.5, high + 0.5]
