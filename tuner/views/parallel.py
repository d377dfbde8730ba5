"""Parallel coordinates: each trial is a line through the values of its parameters and its best metric value."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any, NamedTuple

from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.views.labels import BEST_COLOR, escaped, flat_parameters, formatted, tick

BEST_TO_WORST = [[0, BEST_COLOR], [0.35, "#4c8bf5"], [1, "#8b93a7"]]
MOST_LINES = 1000  # trials that are drawn and used for importance: more lines cannot be told apart
MOST_PARAMETERS = 500  # axes; a page shows about 20 legibly
MISSING = object()  # instead of the value of a parameter that a trial does not have
MISSING_TEXT, MISSING_SHARE = "(none)", 0.15  # the tick of a missing value, and how far below the axis it lies
NUM_TICKS = 5  # labels of a numeric axis that also has the tick of a missing value
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
    """The axes of the parameters, then the metric's axis; every axis has one position for each of `trials`."""

    axes: list[Axis]
    mode: str
    trials: list[TrialRecord]

    @property
    def best(self) -> list[float]:
        """The best metric value of each trial: the positions on the last axis."""
        return self.axes[-1].known  # each of the trials has one


@kept
def parallel_of(record: ExperimentRecord) -> Parallel:
    """Returns the axes of the parameters that differ between the `sampled` trials, and the metric's axis.

    There are no axes if no trial has a finite metric. Only the first MOST_PARAMETERS parameters are used.
    """
    metric, mode = record.experiment.metric, record.experiment.mode
    trials = sampled(record)
    pairs = [(parameters_of(t), b.metrics[metric]) for t in trials if (b := t.best(metric, mode))]
    if not pairs:
        return Parallel([], mode, [])
    described = record.facts.get("space", {}).get("params", {})
    declared = {name: domain for name, domain in described.items() if isinstance(domain, dict)}
    names = list(islice(dict.fromkeys(name for config, _ in pairs for name in config), MOST_PARAMETERS))
    axes = [_axis(name, [config.get(name, MISSING) for config, _ in pairs], declared.get(name, {})) for name in names]
    varied = [axis for axis in axes if len(set(axis.values)) > 1]
    return Parallel([*varied, Axis(metric, [value for _, value in pairs], [], [])], mode, trials)


@kept
def sampled(record: ExperimentRecord) -> list[TrialRecord]:
    """Returns the trials with a finite value, in order.

    If there are more than MOST_LINES, it returns every n-th of them, and the winner.
    """
    places, winner = sorted(rank.place for rank in record.standing.ranked), record.best()
    chosen = [record.trials[place] for place in places[:: math.ceil(len(places) / MOST_LINES) or 1]]
    if winner and winner[0] not in chosen:
        chosen = sorted([*chosen, winner[0]], key=lambda trial: trial.order)
    return chosen


@kept
def parameters_of(trial: TrialRecord) -> dict[str, Any]:
    """Returns the first MOST_PARAMETERS parameters of a trial: flattened name -> value."""
    return dict(islice(flat_parameters(trial.config), MOST_PARAMETERS))


def _axis(name: str, values: list[Any], declared: dict[str, Any]) -> Axis:
    numbers = [None if value is MISSING else finite(value) for value in values]
    known = [number for number in numbers if number is not None]
    few, kinds = len(set(known)) <= MOST_TICKS, _kinds(declared)
    texts = any(number is None and value is not MISSING for number, value in zip(numbers, values, strict=True))
    if texts or (kinds and few and all(kind in ("choice", "grid_search") for kind in kinds)):
        return _named(name, values)
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


def _named(name: str, values: list[Any]) -> Axis:
    """Returns an axis with one named tick per value: numbers in ascending order, then texts."""
    texts = {formatted(value): value for value in values if value is not MISSING}
    ordered = sorted(texts, key=lambda text: (finite(texts[text]) is None, finite(texts[text]) or 0, text))
    place = {text: float(i) for i, text in enumerate(ordered)}
    positions = [None if value is MISSING else place[formatted(value)] for value in values]
    return Axis(name, positions, list(place.values()), ordered)


def draw_parallel(data: Parallel) -> dict[str, Any]:
    """Draws Plotly's parallel coordinates, coloured by the metric."""
    scale = {"colorscale": BEST_TO_WORST, "reversescale": data.mode == "max", "showscale": True}
    trace = {
        "type": "parcoords",
        "meta": "trials",
        "customdata": [escaped(trial.id) for trial in data.trials],
        "line": {"color": data.best, **scale},
        "dimensions": [_dimension(axis) for axis in data.axes],
    }
    return {"data": [trace], "layout": {"margin": {"t": 60, "b": 30, "l": 80, "r": 60}}}


def _dimension(axis: Axis) -> dict[str, Any]:
    values, ticks, texts = axis.filled(MISSING_SHARE), axis.ticks, axis.texts
    if None in axis.values:
        if not ticks:
            low, high = min(axis.known), max(axis.known)
            ticks = sorted({low + (high - low) * i / (NUM_TICKS - 1) for i in range(NUM_TICKS)})
            texts = [f"{at:.4g}" for at in ticks]
        ticks, texts = [min(values), *ticks], [MISSING_TEXT, *texts]
    drawn: dict[str, Any] = {"label": escaped(axis.name, 24), "values": values}
    if ticks:
        drawn |= {"tickvals": ticks, "ticktext": [tick(text, 16) for text in texts]}
    low, high = min([*values, *ticks]), max([*values, *ticks])
    # If all values are equal, Plotly still needs a range whose ends differ.
    return drawn | {"range": [low, high] if high > low else [low - 0.5, high + 0.5]}
