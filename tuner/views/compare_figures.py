"""Draws a comparison of several experiments: best value so far by three clocks, and the distribution of the values.

An experiment has the same colour and dash in all figures. `meta` of a trace is the experiment's name, and `customdata`
has the trial of each point.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from tuner.record.records import sign_of
from tuner.record.texts import counted
from tuner.views.compare import Compared
from tuner.views.figures.scales import Range, clipped, empty_figure, unclipped, value_axis
from tuner.views.figures.timeline import unit_of
from tuner.views.figures.values import BEST, title_of
from tuner.views.labels import escaped, tick

# Of all colours that stand out from a white and a black page, five that differ most for readers with normal sight, and
# without the cones for red, green or blue: by 34 in CIELAB. A test computes it.
COLORS = ("#9830f2", "#bfb200", "#bf4d7a", "#00c2f2", "#237317")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MOST_COMPARED = len(COLORS) * len(DASHES)
MOST_DESCRIBED = 5  # experiments in a figure's text; the page's table has all
Clock = Literal["epochs", "seconds", "trials"]
TITLES: dict[Clock, str] = {"epochs": "epochs trained by all trials", "trials": "trials started"}


class Drawn(NamedTuple):
    """An experiment in the figures: its name, its place among the requested ones, and what is compared of it."""

    name: str
    place: int
    compared: Compared


def look_of(place: int) -> tuple[str, str]:
    """Returns the colour and the dash of the experiment at this place among the requested ones."""
    return COLORS[place % len(COLORS)], DASHES[place // len(COLORS) % len(DASHES)]


def draw_progress(experiments: Sequence[Drawn], clock: Clock) -> dict[str, Any]:
    """Draws the best value so far of each experiment as a step line with a dot at each improvement."""
    shown = [each for each in experiments if each.compared.steps]
    if not shown:
        return empty_figure("No trial of these experiments has reported a finite value yet.")
    metric, mode = shown[0].compared.metric, shown[0].compared.mode
    unit, per = unit_of(max(each.compared.steps[-1].seconds for each in shown))
    title_x, per = (f"{unit} of the search", per) if clock == "seconds" else (TITLES[clock], 1.0)
    traces = []
    for name, place, compared in shown:
        xs = [getattr(step, clock) / per if clock == "seconds" else getattr(step, clock) for step in compared.steps]
        trials = [step.trial for step in compared.steps]
        trace = _line(name, place, xs, [step.value for step in compared.steps], trials)
        trace["hovertemplate"] = f"{escaped(name)}<br>trial %{{customdata}}<br>%{{y:.5g}} at %{{x:.5g}}<extra></extra>"
        traces.append(trace)
    title = f"best {metric}"
    within = _within(shown, clock, mode)
    axis = {"title": {"text": title_x}, "rangemode": "tozero"}
    text = _progress_text(shown, clock, title_x, per)
    layout = {"xaxis": axis, "yaxis": value_axis(title, within), "hovermode": "closest", "showlegend": True}
    return {"data": traces, "layout": layout | {"meta": {"text": text, **unclipped(title, within)}}}


def draw_distributions(experiments: Sequence[Drawn], choice: str) -> dict[str, Any]:
    """Draws for each experiment the share of its trials that are at least as good as a value.

    Args:
        choice: which value of each trial is compared, of `tuner.views.figures.values`.
    """
    shown = [each for each in experiments if choice in each.compared.distributions]
    if not shown:
        return empty_figure("No trial of these experiments has a finite value to compare.")
    metric, mode = shown[0].compared.metric, shown[0].compared.mode
    traces, values, texts = [], [], []
    for name, place, compared in shown:
        spread = compared.distributions[choice]
        values += spread.values
        trace = _line(name, place, spread.values, spread.shares, spread.trials)
        lead = f"{escaped(name)}<br>trial %{{customdata}}: %{{x:.5g}}<br>"
        trace["hovertemplate"] = (
            f"{lead}%{{y:.1%}} of {counted(spread.size, 'trial')} are this good or better<extra></extra>"
        )
        if spread.size > 30:
            trace["mode"] = "lines"
        traces.append(trace)
        texts.append(
            f"{tick(name, 60)} median {spread.median:.5g}, best {spread.values[0]:.5g} of "
            f"{counted(spread.size, 'trial')}"
        )
    title = f"best {metric} of each trial" if choice == BEST else title_of(metric, choice)
    within = clipped(values, mode)
    layout = {
        "xaxis": value_axis(title, within),
        "yaxis": {"title": {"text": "share of trials this good or better"}, "tickformat": ".0%", "range": [0, 1.02]},
        "hovermode": "closest",
        "showlegend": True,
    }
    text = f"Distribution of the {tick(title, 60)}: {_some(texts)}."
    return {"data": traces, "layout": layout | {"meta": {"text": text, **unclipped(title, within, "xaxis")}}}


def choices_of(experiments: Sequence[Drawn]) -> list[str]:
    """Returns the choices of `values.py` that all experiments with a value offer; `best` comes first."""
    offered = [each.compared.distributions for each in experiments if each.compared.distributions]
    return [choice for choice in offered[0] if all(choice in one for one in offered)] if offered else []


def default_of(experiments: Sequence[Drawn]) -> str:
    """Returns the choice of a comparison that names none.

    If an experiment pruned trials, it is the last epoch that all experiments offer: best values would come from
    different numbers of epochs.
    """
    has_pruned = any(each.compared.has_pruned for each in experiments)
    return choices_of(experiments)[-1] if has_pruned and choices_of(experiments) else BEST


def _line(name: str, place: int, x: list[Any], y: list[float], trials: list[str]) -> dict[str, Any]:
    color, dash = look_of(place)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": escaped(name, 60),
        "meta": name,
        "x": x,
        "y": y,
        "customdata": [escaped(trial) for trial in trials],
        "line": {"color": color, "dash": dash, "width": 2, "shape": "hv"},
        "marker": {"color": color, "symbol": SYMBOLS[place % len(SYMBOLS)], "size": 6},
    }


def _within(shown: Sequence[Drawn], clock: Clock, mode: str) -> Range | None:
    """Returns the axis's range without outliers: a value counts as long as it was the best one of its experiment."""
    values, weights = [], []
    for each in shown:
        steps = each.compared.steps
        whole = getattr(steps[-1], clock) - getattr(steps[0], clock)
        for step, after in pairwise(steps):
            values.append(step.value)
            weights.append((getattr(after, clock) - getattr(step, clock)) / whole if whole > 0 else 0.0)
    return clipped(values, mode, weights) if sum(weights) else None


def _progress_text(shown: Sequence[Drawn], clock: Clock, unit: str, per: float) -> str:
    """Describes the lines in words, the best experiment first."""
    sign = sign_of(shown[0].compared.mode)
    texts = []
    for name, _, compared in sorted(shown, key=lambda each: sign * each.compared.steps[-1].value):
        found = compared.steps[-2]
        at, end = (f"{getattr(step, clock) / per:,.4g}" for step in (found, compared.steps[-1]))
        texts.append(f"{tick(name, 60)} {found.value:.5g} (trial {tick(found.trial, 40)}) after {at} of {end}")
    return f"Best {tick(shown[0].compared.metric, 40)} by {unit}: {_some(texts)}."


def _some(texts: list[str]) -> str:
    more = len(texts) - MOST_DESCRIBED
    return "; ".join(texts[:MOST_DESCRIBED]) + (f"; and {more} more, which the table below has" if more > 0 else "")
