"""Learning curves: the metric of each trial over its epochs, the rungs, and where trials were pruned."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.record.search_stats import RungSummary
from tuner.record.texts import counted
from tuner.rules.asha import percentile
from tuner.views.figures.scales import clipped, unclipped, value_axis
from tuner.views.labels import BEST_COLOR, GRAY, GROUPS, STOP_COLOR, escaped, label_of, tick

Figure = dict[str, Any]
MAX_POINTS = 20_000  # of all curves together: a browser loads and draws them in well under a second
MAX_CURVES = 400  # more curves cannot be told apart
FEW_CURVES = 60  # with more curves, lines are lighter and without dots
# MOST_SVG: points of all curves up to which they are drawn as SVG. A first drawing by WebGL takes 1 s without a GPU;
# lines of 4,400 points take 0.15 s as SVG, and with a dot at each point 0.5 s.
MOST_SVG = 10_000
MOST_STOPS = 40  # marks of single prunes; with more, each rung has one mark
MOST_RUNGS_IN_TEXT = 8
MOST_CUTOFFS = 200  # of rungs; the median rule has one at each epoch
MOST_IN_BAND, LEAST_IN_BAND = 2000, 10  # trials whose quantiles are drawn; fewer at an epoch have no quantiles


class Curve(NamedTuple):
    """One trial's learning curve: `values[i]` is the metric after `epochs[i]` epochs, None if it is not finite."""

    trial: str
    status: str
    label: str
    epochs: list[int]
    values: list[float | None]

    @property
    def is_line(self) -> bool:
        """Whether a line without dots shows every value: there are two or more, and no gap between them."""
        return len(self.values) > 1 and None not in self.values


class Stop(NamedTuple):
    """The epoch and value at which a trial was stopped, and the cutoff that the value was compared with.

    `cutoff` is None if the trial diverged or the rule used no cutoff.
    """

    trial: str
    label: str
    epoch: int
    value: float
    cutoff: float | None


class Cutoff(NamedTuple):
    """The last cutoff used at a rung, and what the rung did to the trials that reached it."""

    epoch: int
    value: float
    label: str


class Band(NamedTuple):
    """Quantiles of the metric over all trials that reached each of the epochs: 10 %, 50 % and 90 %."""

    epochs: list[int]
    low: list[float]
    median: list[float]
    high: list[float]


class Curves(NamedTuple):
    """The learning curves to draw. `trials` counts all trials, drawn or not.

    `best` is the winner's id; `rungs` are epochs. `cutoffs` are those of all rungs, `stops` those of the drawn trials.
    `band` is None if all trials are drawn.
    """

    metric: str
    curves: list[Curve]
    stops: list[Stop]
    rungs: list[int]
    best: str
    trials: int
    mode: str
    cutoffs: list[Cutoff]
    band: Band | None


def curves_of(record: ExperimentRecord) -> Curves:
    """Returns the learning curves of the trials that `drawn` chooses, thinned to about MAX_POINTS points in all."""
    experiment, winner = record.experiment, record.best()
    trials = drawn(record)
    points = sum(len(trial.reports) for trial in trials)
    step = math.ceil(points / MAX_POINTS) if points else 1
    curves, stops = [], []
    for trial in trials:
        label = label_of(trial)
        last = len(trial.reports) - 1
        kept = [r for i, r in enumerate(trial.reports) if i % step == 0 or i == last]
        values = [finite(report.metrics.get(experiment.metric)) for report in kept]
        status = "running" if trial.status == "suggested" else trial.status
        curves.append(Curve(trial.id, status, label, [report.epoch for report in kept], values))
        stop = _stop_of(trial, experiment.metric, label)
        stops += [stop] if stop else []
    # Trials reach a rung between two epochs at the later epoch. At the last epoch, asha compares nothing.
    rungs = {math.ceil(at.rung) for at in record.stats.rungs}
    if experiment.scheduler in ("asha", "asha-promotion"):
        rungs |= {rung for rung in record.rules.rungs() if rung < record.rules.max_epochs}
    if experiment.scheduler == "median":
        rungs = set()  # the median rule compares at every epoch
    best, band = winner[0].id if winner else "", _band(record) if len(trials) < len(record.trials) else None
    return Curves(
        experiment.metric,
        curves,
        stops,
        sorted(rungs),
        best,
        len(record.trials),
        experiment.mode,
        _cutoffs(record),
        band,
    )


def _cutoffs(record: ExperimentRecord) -> list[Cutoff]:
    cutoffs = []
    for rung in record.stats.rungs:
        value = finite(rung.cutoff_then)
        if value is not None:
            passed = f"{counted(rung.reached, 'trial')} reached it, {rung.stopped} pruned"
            cutoffs.append(Cutoff(math.ceil(rung.rung), value, f"{rung_name(rung)}<br>{passed}"))
    return cutoffs[-MOST_CUTOFFS:]


def rung_name(rung: RungSummary) -> str:
    """Names a rung: `rung 4`, or `rung 4, bracket 1` if the scheduler has several brackets."""
    bracket = f", bracket {rung.bracket}" if rung.bracket else ""
    return f"rung {rung.rung:g}{bracket}" + (f", band {rung.band}" if rung.band else "")


def _band(record: ExperimentRecord) -> Band:
    """Computes the quantiles over an even sample of all trials, at an even sample of their epochs."""
    trials, metric = _evenly(list(record.trials), MOST_IN_BAND), record.experiment.metric
    step = math.ceil(sum(len(trial.reports) for trial in trials) / MAX_POINTS) or 1
    values: dict[int, list[float]] = {}
    for trial in trials:
        for report in trial.reports[::step]:
            if (value := finite(report.metrics.get(metric))) is not None:
                values.setdefault(report.epoch, []).append(value)
    epochs = sorted(epoch for epoch, known in values.items() if len(known) >= LEAST_IN_BAND)
    ordered = [sorted(values[epoch]) for epoch in epochs]
    low, median, high = ([percentile(known, percent) for known in ordered] for percent in (10, 50, 90))
    return Band(epochs, low, median, high)


def drawn(record: ExperimentRecord) -> list[TrialRecord]:
    """Chooses at most MAX_CURVES trials (the winner may be one more) and returns them in order.

    All trials are returned if they are few enough. With more trials, an even sample of the pruned ones gets at least a
    quarter of MAX_CURVES, if there are that many. Trials that were not pruned take the other places: half of these for
    the best by value, half for an even sample of the rest. The winner is always included.
    """
    if len(record.trials) <= MAX_CURVES:
        return list(record.trials)
    pruned = [trial for trial in record.trials if trial.status == "pruned"]
    left = [trial for trial in record.trials if trial.status != "pruned"]
    room = MAX_CURVES - min(len(pruned), MAX_CURVES // 4)
    if len(left) > room:
        ranked = [trial for rank in record.stats.ranked if (trial := record.trials[rank.place]).status != "pruned"]
        half = room // 2
        better = {trial.id for trial in ranked[:half]}
        left = [*ranked[:half], *_evenly([trial for trial in left if trial.id not in better], room - half)]
    winner = record.best()
    chosen = {trial.id for trial in [*left, *_evenly(pruned, MAX_CURVES - len(left)), *(winner or ())[:1]]}
    return [trial for trial in record.trials if trial.id in chosen]


def _evenly(trials: list[TrialRecord], most: int) -> list[TrialRecord]:
    """Returns at most `most` trials at even distances, the first one among them."""
    return trials[:: max(1, math.ceil(len(trials) / max(1, most)))][:most]


def _stop_of(trial: TrialRecord, metric: str, label: str) -> Stop | None:
    """Returns where the trial was pruned; a trial that diverged is marked at its last finite value."""
    stops = [d for d in trial.decisions if d.action == "stop"]
    if trial.status != "pruned" or not stops:
        return None
    end = stops[-1]
    known = [(r.epoch, v) for r in trial.reports if (v := finite(r.metrics.get(metric))) is not None]
    value = finite(end.value)
    epoch, value = (end.epoch, value) if value is not None else known[-1] if known else (0, None)
    if value is None:
        return None
    return Stop(trial.id, f"{label}<br>{escaped(end.reason, 120)}", epoch, value, finite(end.cutoff))


def draw_curves(data: Curves) -> Figure:
    """Draws the learning curves by status, the winner on top.

    Rungs are vertical lines. Each prune is marked, together with the cutoff at that time. If there are more than
    MOST_STOPS, only the last cutoff of each rung is marked. If not all trials are drawn, a band shows their quantiles.
    """
    count = len(data.curves)
    # Many lines on one another are readable if each is lighter.
    lighter, width = (0.7, 1.0) if count > FEW_CURVES else (1.0, 1.3)
    kind = "scatter" if sum(len(curve.epochs) for curve in data.curves) <= MOST_SVG else "scattergl"
    is_dotted = count <= FEW_CURVES or kind == "scattergl"
    traces = _band_traces(data.band) if data.band else []
    for status, (name, color, opacity) in GROUPS.items():
        group = [curve for curve in data.curves if curve.status == status and curve.trial != data.best]
        plain = [] if is_dotted else [curve for curve in group if curve.is_line]
        dotted = group if is_dotted else [curve for curve in group if not curve.is_line]
        for mode, part in (("lines", plain), ("lines+markers", dotted)):
            if part:
                traces.append(
                    _lines(part, name, status, color, opacity * lighter, width) | {"type": kind, "mode": mode}
                )
                traces[-1] |= {"legendgroup": status, "showlegend": part is plain or not plain}
    winner = [curve for curve in data.curves if curve.trial == data.best]
    if winner:
        traces.append(_lines(winner, f"best: trial {escaped(data.best, 40)}", "best", BEST_COLOR, 1, width=3))
        traces[-1]["type"] = kind
    traces += _stop_marks(data.stops) if len(data.stops) <= MOST_STOPS else _cutoff_marks(data.cutoffs)
    few = (
        f"<br>{count} of {data.trials:,} trials drawn: the best ones and an even sample of the others"
        if count < data.trials
        else ""
    )
    within = clipped([v for curve in data.curves for v in curve.values if v is not None], data.mode)
    layout = {
        "xaxis": {"title": {"text": f"epoch{few}"}, "rangemode": "tozero"},
        "yaxis": value_axis(data.metric, within),
        "hovermode": "closest",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.06, "x": 0},
        "shapes": [_rung_line(rung) for rung in data.rungs],
        "annotations": [_rung_name(rung, i == 0) for i, rung in enumerate(data.rungs)],
        "meta": unclipped(data.metric, within),
    }
    return {"data": traces, "layout": layout}


def curves_text(record: ExperimentRecord) -> str:
    """Describes the learning curves in words: how many trials ended how, the best value, and how many prunes where."""
    stats, winner = record.stats, record.best()
    ended = [(name, stats.counts.get(status, 0)) for status, (name, *_) in GROUPS.items()]
    totals = ", ".join(f"{count} {name}" for name, count in ended if count)
    lines = [f"{counted(len(record.trials), 'trial')}: {totals or 'none started'}."]
    if winner:
        trial, report = winner
        value = report.metrics[record.experiment.metric]
        metric = tick(record.experiment.metric, 40)
        lines.append(f"Best {metric}: {value:.5g}, of trial {tick(trial.id, 40)} at epoch {report.epoch}.")
    stopped = [rung for rung in stats.rungs if rung.stopped]
    if 0 < len(stopped) <= MOST_RUNGS_IN_TEXT:
        each = "; ".join(f"{rung.stopped} of {rung.reached} at {rung_name(rung)}" for rung in stopped)
        lines.append(f"Pruned: {each}.")
    return " ".join(lines)


def _lines(curves: list[Curve], name: str, meta: str, color: str, opacity: float, width: float) -> Figure:
    """Draws all curves of one colour as a single trace, with gaps between them.

    One trace per trial would be slow with some hundreds of trials.
    """
    x: list[int | None] = []
    y: list[float | None] = []
    text: list[str] = []
    trials: list[str | None] = []
    for curve in curves:
        x += [*curve.epochs, None]
        y += [*curve.values, None]
        text += [curve.label] * len(curve.epochs) + [""]
        trials += [escaped(curve.trial)] * len(curve.epochs) + [None]
    size = 2.5 if width <= 1 else 4 + width
    look = {"line": {"color": color, "width": width}, "marker": {"color": color, "size": size}, "opacity": opacity}
    look |= {"hovertemplate": "%{text}<br>epoch %{x}: %{y:.5g}<extra></extra>"}
    points = {"x": x, "y": y, "text": text, "customdata": trials}
    return {"type": "scatter", "mode": "lines+markers", "name": name, "meta": meta} | points | look


def _band_traces(band: Band) -> list[Figure]:
    """Draws the middle 80 % of all trials as an area, and their median as a line."""
    same: Figure = {"type": "scatter", "mode": "lines", "x": band.epochs, "meta": "band", "legendgroup": "band"}
    edge = same | {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    area = {"fill": "tonexty", "fillcolor": "rgba(139,147,167,0.25)", "showlegend": True}
    middle = {"line": {"color": GRAY, "width": 2, "dash": "dash"}, "name": "median of all trials"}
    return [
        edge | {"y": band.low, "name": "10 %"},
        edge | area | {"y": band.high, "name": "middle 80 % of all trials"},
        same | middle | {"y": band.median, "hovertemplate": "median at epoch %{x}: %{y:.5g}<extra></extra>"},
    ]


DASH = {"symbol": "line-ew-open", "size": 16, "color": STOP_COLOR, "line": {"width": 2}}


def _stop_marks(stops: list[Stop]) -> list[Figure]:
    cutoffs = [(stop, stop.cutoff) for stop in stops if stop.cutoff is not None]
    cross = {"symbol": "x", "size": 8, "color": STOP_COLOR}
    marks: list[tuple[str, str, Figure, list[tuple[Stop, float]], str]] = [
        ("pruned here", "stop", cross, [(stop, stop.value) for stop in stops], "%{text}<extra></extra>"),
        ("cutoff at that time", "cutoff", DASH, cutoffs, "cutoff %{y:.5g} for<br>%{text}<extra></extra>"),
    ]
    return [
        {"type": "scatter", "mode": "markers", "name": name, "meta": meta, "marker": marker}
        | {"x": [stop.epoch for stop, _ in points], "y": [y for _, y in points]}
        | {"text": [stop.label for stop, _ in points], "hovertemplate": hover}
        | {"customdata": [escaped(stop.trial) for stop, _ in points]}
        for name, meta, marker, points, hover in marks
        if points
    ]


def _cutoff_marks(cutoffs: list[Cutoff]) -> list[Figure]:
    points = {"x": [each.epoch for each in cutoffs], "y": [each.value for each in cutoffs]}
    points |= {"text": [each.label for each in cutoffs]}
    hover = {"hovertemplate": "last cutoff %{y:.5g} of %{text}<extra></extra>"}
    marks: Figure = {"type": "scatter", "mode": "markers", "name": "last cutoff used", "meta": "cutoff", "marker": DASH}
    return [marks | points | hover] if cutoffs else []


def _rung_line(rung: int) -> Figure:
    line = {"color": "#8b93a7", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": rung, "x1": rung, "y0": 0, "y1": 1, "yref": "paper", "layer": "below", "line": line}


def _rung_name(rung: int, first: bool) -> Figure:
    look = {"font": {"size": 10, "color": "#8b93a7"}, "showarrow": False}
    return {
        "text": f"rung {rung}" if first else str(rung),
        "x": rung,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
    } | look
