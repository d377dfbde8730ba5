"""Rung plot: the values of the trials that reached each rung, pruned and continued apart, and the cutoffs over time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tuner.record.records import TrialRecord, finite, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.rules.asha import percentile
from tuner.views.figures.scales import VIRIDIS, clipped, unclipped, value_axis
from tuner.views.figures.timeline import unit_of
from tuner.views.labels import MAIN_COLOR, STOP_COLOR, escaped, label_of, tick

MOST_RUNGS = 12  # of more rungs, an even sample; the median rule has one at each epoch
MOST_DOTS = 30  # trials of a rung that are drawn one by one; more are summarised by a box
MOST_CUTOFFS = 200  # points of a rung's cutoff over time
MOST_CLIPPED = 5000  # values that decide where the axis ends: an even sample, the least and the greatest
MOST_NAMED = 4  # rungs in the text about the plot
WAITS = "waits"
GROUPS = {"continued": (MAIN_COLOR, -0.18), "pruned": (STOP_COLOR, 0.18)}  # name -> colour, offset from the rung


class Reached(NamedTuple):
    """A trial's arrival at a rung: when, with which value, the cutoff then, and what became of it: a group or WAITS."""

    rung: tuple[int, float]  # the bracket's number (0 without brackets) and the rung
    time: float
    value: float | None
    cutoff: float | None
    outcome: str


@dataclass
class Rung:
    """The trials at one rung of one bracket, as (value, index), and its cutoffs as (time, cutoff) in order of time.

    `num_waiting` trials are paused there and in no group yet.
    """

    bracket: int
    epoch: float
    groups: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: {name: [] for name in GROUPS})
    cutoffs: list[tuple[float, float]] = field(default_factory=list)
    num_waiting: int = 0

    @property
    def values(self) -> list[float]:
        """The values of all trials at the rung."""
        return [value for dots in self.groups.values() for value, _ in dots]


class RungValues(NamedTuple):
    """The rungs that trials reached, from the lowest bracket and rung on; `start` is when the first trial started."""

    rungs: list[Rung]
    trials: tuple[TrialRecord, ...]
    metric: str
    mode: str
    start: float


def rung_values_of(record: ExperimentRecord) -> RungValues:
    """Collects the values and cutoffs at each rung; a trial that waits at a rung counts as neither."""
    rungs: dict[tuple[int, float], Rung] = {}
    waiting: Counter[tuple[int, float]] = Counter()
    for i, trial in enumerate(record.trials):
        for place, time, value, cutoff, outcome in _reached(trial):
            if outcome == WAITS:
                waiting[place] += 1
                continue
            rung = rungs.get(place) or rungs.setdefault(place, Rung(*place))
            if value is not None:
                rung.groups[outcome].append((value, i))
            if cutoff is not None:
                rung.cutoffs.append((time, cutoff))
    places = sorted(rungs)
    shown = [rungs[place] for place in places[:: math.ceil(len(places) / MOST_RUNGS) or 1]]
    for rung in shown:
        rung.cutoffs, rung.num_waiting = _thinned(rung.cutoffs), waiting[rung.bracket, rung.epoch]
    spans, experiment = record.stats.worker_spans, record.experiment
    return RungValues(shown, record.trials, experiment.metric, experiment.mode, spans[0].start if spans else math.nan)


def _thinned(cutoffs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns an even sample in the order of time, with the first and the last; sorting all takes 40 ms of 10,000."""
    every = math.ceil(len(cutoffs) / MOST_CUTOFFS) or 1
    return sorted({*cutoffs[::every], min(cutoffs), max(cutoffs)}) if cutoffs else []


@kept
def _reached(trial: TrialRecord) -> list[Reached]:
    if not trial.decisions:
        return []
    times = {report.epoch: report.time for report in trial.reports}
    arrivals: dict[tuple[int, float], Reached] = {}  # after a restart or a pause, the last decision counts
    for decision in trial.decisions:
        if decision.rung is None or decision.epoch not in times:
            continue
        place = (decision.bracket or 0, decision.rung)
        arrivals[place] = Reached(
            place,
            times[decision.epoch],
            finite(decision.compared_value),
            finite(decision.cutoff),
            {"pause": WAITS, "stop": "pruned"}.get(decision.action, "continued"),
        )
    return list(arrivals.values())


def draw_rung_values(data: RungValues) -> dict[str, Any]:
    """Draws each rung's values as dots, or as boxes if they are many; beside them, each rung's cutoff over time."""
    values = [value for rung in data.rungs for value in rung.values]
    every = math.ceil(len(values) / MOST_CLIPPED) or 1
    within = clipped([*values[::every], min(values), max(values)], data.mode)
    many = len({rung.bracket for rung in data.rungs}) > 1
    names = [f"{rung.epoch:g} ({rung.bracket})" if many else f"{rung.epoch:g}" for rung in data.rungs]
    latest = max((time for rung in data.rungs for time, _ in rung.cutoffs), default=data.start)
    unit, per = unit_of(latest - data.start)
    traces = [trace for name in GROUPS for trace in (_boxes(data.rungs, name), _dots(data, name)) if trace["x"]]
    traces += _last_cutoffs(data.rungs)
    traces += [_over_time(rung, names[i], data.start, per, i / len(names)) for i, rung in enumerate(data.rungs)]
    metric = value_axis(data.metric, within)
    over = "rung (bracket)" if many else "rung"
    layout = {
        "xaxis": {"title": {"text": over}, "tickvals": list(range(len(names))), "ticktext": names, "domain": [0, 0.46],
                  "range": [-0.6, len(names) - 0.4]},
        "xaxis2": {"title": {"text": f"{unit} since the first trial started"}, "domain": [0.54, 1], "anchor": "y2"},
        "yaxis": metric,
        "yaxis2": {"matches": "y", "anchor": "x2", "title": {"text": "cutoff"}},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        "hovermode": "closest",
        "meta": {"text": _described(data), **unclipped(data.metric, within)},
    }  # fmt: skip
    return {"data": [trace for trace in traces if trace["x"]], "layout": layout}


def _dots(data: RungValues, name: str) -> dict[str, Any]:
    color, offset = GROUPS[name]
    places = [(i, dots) for i, rung in enumerate(data.rungs) if len(dots := rung.groups[name]) <= MOST_DOTS]
    every = [
        (i + offset + 0.24 * _spread(n), value, data.trials[place])
        for i, dots in places
        for n, (value, place) in enumerate(dots)
    ]
    return {
        "type": "scatter", "mode": "markers", "name": name, "meta": name, "legendgroup": name,
        "x": [round(x, 3) for x, _, _ in every], "y": [value for _, value, _ in every],
        "text": [label_of(trial) for _, _, trial in every], "customdata": [escaped(trial.id) for _, _, trial in every],
        "marker": {"color": color, "size": 6, "opacity": 0.7, "symbol": "x" if name == "pruned" else "circle"},
        "hovertemplate": "%{text}<br>%{y:.5g}<extra></extra>",
    }  # fmt: skip


def _spread(number: int) -> float:
    """Places dots beside each other: the multiples of the golden ratio, modulo 1, around 0."""
    return (number * 0.618034) % 1 - 0.5


def _boxes(rungs: list[Rung], name: str) -> dict[str, Any]:
    """Draws quartiles as a box and the 5 % and 95 % quantiles as whiskers."""
    color, offset = GROUPS[name]
    places = [(i, rung) for i, rung in enumerate(rungs) if len(rung.groups[name]) > MOST_DOTS]
    ordered = [sorted(value for value, _ in rung.groups[name]) for _, rung in places]
    at = {key: [percentile(each, percent) for each in ordered] for key, percent in QUANTILES.items()}
    return {
        "type": "box", "name": name, "meta": f"{name} box", "x": [i + offset for i, _ in places], **at,
        "width": 0.32, "marker": {"color": color}, "line": {"width": 1.5}, "legendgroup": name,
        "showlegend": not any(rung.groups[name] for rung in rungs if len(rung.groups[name]) <= MOST_DOTS),
        "hoverinfo": "y",
    }  # fmt: skip


QUANTILES = {"lowerfence": 5, "q1": 25, "median": 50, "q3": 75, "upperfence": 95}


def _last_cutoffs(rungs: list[Rung]) -> list[dict[str, Any]]:
    places = [(i, rung.cutoffs[-1][1]) for i, rung in enumerate(rungs) if rung.cutoffs]
    marker = {"symbol": "line-ew-open", "size": 44, "color": "#8b93a7", "line": {"width": 2}}
    points = {"x": [i for i, _ in places], "y": [cutoff for _, cutoff in places]}
    hover = {"hovertemplate": "last cutoff used: %{y:.5g}<extra></extra>"}
    name = {"type": "scatter", "mode": "markers", "name": "last cutoff used", "meta": "cutoff", "marker": marker}
    return [name | points | hover]


def _over_time(rung: Rung, name: str, start: float, per: float, share: float) -> dict[str, Any]:
    points = rung.cutoffs
    first = start if math.isfinite(start) else points[0][0] if points else 0.0
    color = VIRIDIS[math.floor(share * len(VIRIDIS))]
    return {
        "type": "scatter", "mode": "lines" if len(points) > 1 else "markers", "name": f"cutoff at rung {name}",
        "meta": "cutoff", "x": [(time - first) / per for time, _ in points], "y": [cutoff for _, cutoff in points],
        "line": {"color": color, "width": 2, "shape": "hv"}, "marker": {"color": color}, "xaxis": "x2", "yaxis": "y2",
        "hovertemplate": f"cutoff %{{y:.5g}} at rung {name}<extra></extra>",
    }  # fmt: skip


def _described(data: RungValues) -> str:
    lines = []
    for rung in data.rungs[:MOST_NAMED]:
        pruned, total = len(rung.groups["pruned"]), len(rung.values) + rung.num_waiting
        bracket = f" of bracket {rung.bracket}" if rung.bracket else ""
        waiting = f", {counted(rung.num_waiting, 'trial')} waiting" if rung.num_waiting else ""
        line = f"Rung {rung.epoch:g}{bracket}: {pruned} of {total} trials pruned{waiting}"
        if rung.cutoffs:
            line += f", {_cutoffs_text([cutoff for _, cutoff in rung.cutoffs])}"
        lines.append(line + ".")
    more = len(data.rungs) - MOST_NAMED
    lines += [f"{more} more {'rung' if more == 1 else 'rungs'}."] if more > 0 else []
    return f"Values of {tick(data.metric, 40)} at each rung. {' '.join(lines)}"


def _cutoffs_text(cutoffs: list[float]) -> str:
    first, last = f"{cutoffs[0]:.4g}", f"{cutoffs[-1]:.4g}"
    return f"cutoff {last}" if first == last else f"cutoff from {first} at first to {last} at last"
