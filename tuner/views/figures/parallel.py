"""Parallel coordinates: each trial is a line through the values of its parameters and its metric value."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, NamedTuple

from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, flat_parameters, formatted
from tuner.views.figures import values
from tuner.views.figures.scales import clipped, color_axis, ticks_between, within_range
from tuner.views.labels import escaped, tick

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
    ticks: list[float]
    texts: list[str]

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
    """The axes of the parameters, then the metric's axis; every axis has one position for each of `trials`.

    `choice` says which value of each trial the metric's axis shows (`tuner.views.figures.values`).
    """

    axes: list[Axis]
    mode: str
    trials: list[TrialRecord]
    choice: str

    @property
    def values(self) -> list[float]:
        """The metric value of each trial: the positions on the last axis."""
        return self.axes[-1].known  # each of the trials has one

    @property
    def title(self) -> str:
        """Says what the last axis shows: `loss at epoch 4`."""
        return values.title_of(self.axes[-1].name, self.choice)


@kept
def parallel_of(record: ExperimentRecord, choice: str = "") -> Parallel:
    """Returns the axes of the parameters that differ between the `sampled` trials, and the metric's axis.

    There are no axes if no trial has a finite metric. Only the first MOST_PARAMETERS parameters are used.

    Raises:
        RequestError: `choice` is none of `tuner.views.figures.values`.
    """
    metric, mode, choice = record.experiment.metric, record.experiment.mode, values.chosen(record, choice)
    compared = sampled(record, choice)
    trials = [trial for trial, _ in compared]
    pairs = [(parameters_of(trial), value) for trial, value in compared]
    if not pairs:
        return Parallel([], mode, [], choice)
    described = record.facts.get("space", {}).get("params", {})
    declared = {name: domain for name, domain in described.items() if isinstance(domain, dict)}
    names = list(islice(dict.fromkeys(name for config, _ in pairs for name in config), MOST_PARAMETERS))
    axes = [_axis(name, [config.get(name, MISSING) for config, _ in pairs], declared.get(name, {})) for name in names]
    varied = [axis for axis in axes if len(set(axis.values)) > 1]
    return Parallel([*varied, Axis(metric, [value for _, value in pairs], [], [])], mode, trials, choice)


@kept
def sampled(record: ExperimentRecord, choice: str) -> list[tuple[TrialRecord, float]]:
    """Returns the trials that have a finite value for `choice`, with that value, in order.

    If there are more than MOST_LINES, it returns every n-th of them, and the winner.
    """
    asked = record.experiment.metric, record.experiment.mode, choice
    ordered = [record.trials[place] for place in sorted(rank.place for rank in record.stats.ranked)]
    compared = [(trial, value) for trial in ordered if (value := values.value_of(trial, *asked)) is not None]
    winner, every = record.best(), math.ceil(len(compared) / MOST_LINES) or 1
    return [pair for i, pair in enumerate(compared) if i % every == 0 or (winner and pair[0] is winner[0])]


@kept
def parameters_of(trial: TrialRecord) -> dict[str, Any]:
    """Returns the first MOST_PARAMETERS parameters of a trial: flattened name -> value."""
    return dict(islice(flat_parameters(trial.config), MOST_PARAMETERS))


def _axis(name: str, given: list[Any], declared: dict[str, Any]) -> Axis:
    numbers = [None if value is MISSING else finite(value) for value in given]
    known = [number for number in numbers if number is not None]
    few, kinds = len(set(known)) <= MOST_TICKS, _kinds(declared)
    texts = any(number is None and value is not MISSING for number, value in zip(numbers, given, strict=True))
    if texts or (kinds and few and all(kind in ("choice", "grid_search") for kind in kinds)):
        return _named(name, given)
    if any(kind.startswith("log") for kind in kinds) and min(known) > 0:
        logs = [None if number is None else math.log10(number) for number in numbers]
        low, high = math.log10(min(known)), math.log10(max(known))
        ticks = [float(power) for power in range(math.floor(low), math.ceil(high) + 1)]
        return Axis(name, logs, ticks, [f"1e{tick:.0f}" if abs(tick) > 300 else f"{10**tick:g}" for tick in ticks])
    return Axis(name, numbers, [], [])


def _kinds(declared: dict[str, Any]) -> list[str]:
    """The kind of a declared parameter, or one kind for each branch that declares it in its own way."""
    branches = declared.get("branches")
    of = branches if isinstance(branches, list) else [declared]
    return [str(each["kind"]) for each in of if isinstance(each, dict) and "kind" in each]


def _named(name: str, given: list[Any]) -> Axis:
    """Returns an axis with one named tick per value: numbers in ascending order, then texts."""
    texts = {formatted(value): value for value in given if value is not MISSING}
    ordered = sorted(texts, key=lambda text: (finite(texts[text]) is None, finite(texts[text]) or 0, text))
    place = {text: float(i) for i, text in enumerate(ordered)}
    positions = [None if value is MISSING else place[formatted(value)] for value in given]
    return Axis(name, positions, list(place.values()), ordered)


def draw_parallel(data: Parallel) -> dict[str, Any]:
    """Draws Plotly's parallel coordinates, coloured by the metric. Outliers lie at the end of the metric's axis."""
    within = clipped(data.values, data.mode)
    shown = within_range(data.values, within, data.mode)
    ticks, texts = ticks_between(min(shown), max(shown))
    own: dict[str, Any] = {"label": escaped(data.title, 30), "values": shown, "range": _ends(shown)}
    own |= {"tickvals": ticks, "ticktext": texts}
    if within:
        own["label"] += " (clipped)"
    trace = {
        "type": "parcoords",
        "meta": "trials",
        "customdata": [escaped(trial.id) for trial in data.trials],
        "line": {"color": shown, "coloraxis": "coloraxis"},
        "dimensions": [*(_dimension(axis) for axis in data.axes[:-1]), own],
    }
    best = min(data.values) if data.mode == "min" else max(data.values)
    names = ", ".join(tick(axis.name, 24) for axis in data.axes[:-1][:MOST_NAMED])
    more = len(data.axes) - 1 - MOST_NAMED
    text = (
        f"{counted(len(data.trials), 'trial')} as lines through {names}{f' and {more} more' if more > 0 else ''} "
        f"and {tick(data.title, 60)}. The best line is at {best:.5g}."
    )
    coloring = color_axis(data.values, data.mode, data.title)
    layout = {"margin": {"t": 60, "b": 30, "l": 80, "r": 60}, "coloraxis": coloring, "meta": {"text": text}}
    return {"data": [trace], "layout": layout}


def _dimension(axis: Axis) -> dict[str, Any]:
    positions, ticks, texts = axis.filled(MISSING_SHARE), axis.ticks, axis.texts
    if not ticks:
        ticks, texts = ticks_between(min(axis.known), max(axis.known))
    if None in axis.values:
        ticks, texts = [min(positions), *ticks], [MISSING_TEXT, *texts]
    drawn: dict[str, Any] = {"label": escaped(axis.name, 24), "values": positions}
    drawn |= {"tickvals": ticks, "ticktext": [tick(text, 16) for text in texts]}
    return drawn | {"range": _ends([*positions, *ticks])}


def _ends(positions: list[float]) -> list[float]:
    low, high = min(positions), max(positions)
    # If all values are equal, Plotly still needs a range whose ends differ.
    return [low, high] if high > low else [low - 0.5, high + 0.5]
