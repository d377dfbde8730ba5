"""Draws learning curves, the curves as other rules would cut them (what-if), and the history of the best value."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import islice, pairwise

from tuner.core.events import Report
from tuner.core.rules.asha import percentile
from tuner.errors import RequestError, nearest
from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.record.search_stats import RungSummary
from tuner.record.texts import counted
from tuner.spec.methods import SCHEDULERS
from tuner.views.figures import plot
from tuner.views.figures.timeline import unit_of
from tuner.views.figures.values import mode_of, of_metric, split
from tuner.views.whatif import Fate, WhatIf

MAX_POINTS = 20_000  # maximum points of all curves together: a browser draws them in well under a second
MAX_CURVES = 400  # maximum curves; more cannot be told apart
FEW_CURVES = 60  # with more curves, lines are lighter and without dots
# MOST_SVG: maximum points of all curves that are drawn as SVG. A first drawing by WebGL takes 1 s without a GPU;
# lines of 4,400 points take 0.15 s as SVG, and with a dot at each point 0.5 s.
MOST_SVG = 10_000
MOST_STOPS = 40  # maximum marks of single prunes; with more prunes, each rung has one mark
MOST_RUNGS_IN_TEXT = 8
MAX_CUTOFF_MARKS = 200  # maximum rungs with a mark of the cutoff; the median rule has a rung at each epoch
MOST_CUT = 1000  # what-if: with at least twice as many trials, only an even sample of the trials is drawn
MOST_CUT_POINTS = 40_000  # what-if: maximum points of all curves together; each point repeats its trial's label
MOST_IN_BAND, LEAST_IN_BAND = 1000, 10  # maximum trials for quantiles, and minimum trials at an epoch with quantiles
EPOCH, TIME = "epoch", "time"
PATTERN = "^(epoch|time)?(:.{1,200})?$"  # what a choice for the curves must look like, for the service
ABOUT = "axis of the curves: epoch (default), or time on workers; `:METRIC` behind it chooses another metric"
DASH = {"symbol": "line-ew-open", "size": 16, "color": plot.STOP_COLOR, "line": {"width": 2}}


def chosen_curves(record: ExperimentRecord, choice: str) -> str:
    """Returns the choice of an axis and a metric, completed; raises RequestError for an unknown axis or metric."""
    clock, metric = split(choice, "")
    if clock not in ("", EPOCH, TIME):
        raise RequestError(f"axis {clock!r}: must be {EPOCH} or {TIME}{nearest(clock, (EPOCH, TIME))}")
    return (clock or EPOCH) + of_metric(record, metric, record.experiment.compared.metric)


def draw_curves(record: ExperimentRecord, choice: str = "") -> plot.Figure | None:
    """Draws the curves of the `drawn` trials with rungs and prunes, and, if not all are drawn, a band of quantiles.

    Rungs, cutoffs and the band are drawn only over epochs, and cutoffs only for the metric that the rungs compare.
    """
    experiment, winner, trials = record.experiment, record.best(), drawn(record)
    compared, best = experiment.compared, winner[0].id if winner else ""
    clock, metric = split(choice, compared.metric)
    is_compared, is_timed = metric == compared.metric, clock == TIME
    direction = compared.mode if is_compared else mode_of(record, metric)
    longest = max((trial.seconds for trial in trials), default=0.0)
    unit, per = unit_of(longest) if is_timed else ("epochs", 0.0)
    step = math.ceil(sum(len(trial.reports) for trial in trials) / MAX_POINTS) or 1
    curves = [(trial, _curve(trial, metric, step, per=per)) for trial in trials]
    values = [value for _, curve in curves for _, value, *_ in curve if value is not None]
    if not values:
        return None
    count, total = len(trials), len(record.trials)
    # Many lines on one another are readable if each is lighter.
    lighter, width, size = (0.7, 1.0, 2.5) if count > FEW_CURVES else (1.0, 1.3, 5.3)
    kind = "scatter" if sum(len(curve) for _, curve in curves) <= MOST_SVG else "scattergl"
    is_dotted = count <= FEW_CURVES or kind == "scattergl"
    hover = {"hovertemplate": f"%{{text}}<br>after %{{x:.4g}} {unit}: %{{y:.5g}}<extra></extra>"} if is_timed else {}
    traces = _band(record, metric) if count < total and not is_timed else []
    for status, (name, color, opacity) in plot.GROUPS.items():
        statuses = (status, "suggested") if status == "running" else (status,)
        same = [curve for trial, curve in curves if trial.id != best and trial.shown_status in statuses]
        plain = [] if is_dotted else [curve for curve in same if _is_line(curve)]
        dotted = [curve for curve in same if is_dotted or not _is_line(curve)]
        look = {"name": name, "meta": status, "opacity": opacity * lighter, "type": kind, "legendgroup": status} | hover
        for mode, part in (("lines", plain), ("lines+markers", dotted)):
            traces.append(plot.lines(mode, part, color, width, size, showlegend=part is plain or not plain, **look))
    won = [curve for trial, curve in curves if trial.id == best]
    look = {"name": f"best: trial {plot.escaped(best, 40)}", "meta": "best", "opacity": 1, "type": kind} | hover
    traces.append(plot.lines("lines+markers", won, plot.BEST_COLOR, 3, 7, **look))
    marks = _stop_marks(trials, metric, is_compared, per)
    if marks is None:
        marks = _cutoff_marks(record) if is_compared and not is_timed else []
    few = f"<br>{count} of {total:,} trials drawn: the best ones and an even sample of the others"
    rungs = [] if is_timed else _rungs(record)
    across = f"{unit} of the trial on workers" if is_timed else "epoch"
    of = f"{plot.tick(metric, 40)} over {'time on workers' if is_timed else 'epochs'}"
    own = "" if is_compared and not is_timed else f"Curves of {of}. "
    below = {"yref": "paper", "layer": "below", "line": {"color": plot.GRAY, "width": 1, "dash": "dot"}}
    above = {"yref": "paper", "yanchor": "bottom", "font": {"size": 10, "color": plot.GRAY}, "showarrow": False}
    return plot.figure(
        traces + marks,
        own + _described(record),
        clip=(metric, plot.clipped(values, direction)),
        xaxis=plot.titled(f"{across}{few if count < total else ''}", rangemode="tozero"),
        legend=plot.LEGEND | {"y": 1.06},
        shapes=[{"type": "line", "x0": rung, "x1": rung, "y0": 0, "y1": 1, **below} for rung in rungs],
        annotations=[{"text": f"{'' if i else 'rung '}{at}", "x": at, "y": 1, **above} for i, at in enumerate(rungs)],
    )


def _curve(
    trial: TrialRecord, metric: str, step: int, end: int = 0, text: str = "", per: float = 0.0
) -> list[plot.Point]:
    """Returns the points of every `step`-th report, of the report at epoch `end`, and of the last report.

    They are placed by epoch, or, if `per` is not 0, by the trial's time on workers in units of `per` seconds.
    """
    ends, label = (end, trial.last_epoch), plot.label_of(trial) + text
    reports = [report for i, report in enumerate(trial.reports) if i % step == 0 or report.epoch in ends]
    if per:  # an epoch that was trained again has its old place among the reports
        reports.sort(key=lambda report: report.time)
    return [(_at(trial, r, per), finite(r.metrics[metric]), trial.id, label) for r in reports if metric in r.metrics]


def _at(trial: TrialRecord, report: Report, per: float) -> float:
    return round(trial.trained_s(report.time) / per, 4) if per else report.epoch


def _is_line(curve: Sequence[plot.Point]) -> bool:
    """Whether a curve has several values and no gap: a line without dots then shows every value."""
    return len(curve) > 1 and all(value is not None for _, value, *_ in curve)


def _rungs(record: ExperimentRecord) -> list[int]:
    """Returns the epochs of the rungs, in ascending order; a rung between two epochs counts at the later epoch."""
    if record.experiment.scheduler == "median":
        return []  # the median rule compares at every epoch
    rungs = {math.ceil(at.rung) for at in record.stats.rungs}
    if SCHEDULERS[record.experiment.scheduler].has_rungs:  # at the last epoch, asha compares nothing
        rungs |= set(record.rules.rungs_before_end())
    return sorted(rungs)


def _rung_name(rung: RungSummary) -> str:
    bracket = f", bracket {rung.bracket}" if rung.bracket else ""
    return f"rung {rung.rung:g}{bracket}" + (f", band {rung.band}" if rung.band else "")


def drawn(record: ExperimentRecord) -> list[TrialRecord]:
    """Returns at most MAX_CURVES + 1 trials (the winner, the best, some pruned, some others), in the record's order."""
    if len(record.trials) <= MAX_CURVES:
        return list(record.trials)
    pruned = [trial for trial in record.trials if trial.status == "pruned"]
    left = [trial for trial in record.trials if trial.status != "pruned"]
    room = MAX_CURVES - min(len(pruned), MAX_CURVES // 4)
    if len(left) > room:
        ranked = (record.trials[rank.trial_index] for rank in record.stats.ranked)
        half = room // 2
        best = list(islice((trial for trial in ranked if trial.status != "pruned"), half))
        better = {trial.id for trial in best}
        left = [*best, *_evenly([trial for trial in left if trial.id not in better], room - half)]
    winner = record.best()
    chosen = {trial.id for trial in [*left, *_evenly(pruned, MAX_CURVES - len(left)), *(winner or ())[:1]]}
    return [trial for trial in record.trials if trial.id in chosen]


def _evenly(trials: list[TrialRecord], most: int) -> list[TrialRecord]:
    return trials[:: max(1, math.ceil(len(trials) / max(1, most)))][:most]


def _described(record: ExperimentRecord) -> str:
    stats, winner, metric = record.stats, record.best(), record.experiment.wanted.metric
    ended = [(name, stats.counts[status]) for status, (name, *_) in plot.GROUPS.items()]
    totals = ", ".join(f"{count} {name}" for name, count in ended if count)
    lines = [f"{counted(len(record.trials), 'trial')}: {totals or 'none started'}."]
    if winner:
        trial, report = winner
        value, name = f"{report.metrics[metric]:.5g}", plot.tick(trial.id, 40)
        whose = "The knee's" if record.experiment.aim.several else "Best"
        lines.append(f"{whose} {plot.tick(metric, 40)}: {value}, of trial {name} at epoch {report.epoch}.")
    stopped = [rung for rung in stats.rungs if rung.stopped]
    if 0 < len(stopped) <= MOST_RUNGS_IN_TEXT:
        each = "; ".join(f"{rung.stopped} of {rung.reached} at {_rung_name(rung)}" for rung in stopped)
        lines.append(f"Pruned: {each}.")
    return " ".join(lines)


def _band(record: ExperimentRecord, metric: str) -> list[plot.Figure]:
    """Draws the middle 80 % of an even sample of all trials as an area, and their median as a line."""
    trials = _evenly(list(record.trials), MOST_IN_BAND)
    step = math.ceil(sum(len(trial.reports) for trial in trials) / MAX_POINTS) or 1
    values: dict[int, list[float]] = {}
    for trial in trials:
        for report in trial.reports[::step]:
            if (value := finite(report.metrics.get(metric))) is not None:
                values.setdefault(report.epoch, []).append(value)
    epochs = sorted(epoch for epoch, known in values.items() if len(known) >= LEAST_IN_BAND)
    ordered = [sorted(values[epoch]) for epoch in epochs]
    low, median, high = (
        [(epoch, percentile(known, percent)) for epoch, known in zip(epochs, ordered, strict=True)]
        for percent in (10, 50, 90)
    )
    same = {"meta": "band", "legendgroup": "band"}
    edge = same | {"line": {"width": 0}, "hoverinfo": "skip"}
    whose = "all trials" if len(trials) == len(record.trials) else f"{len(trials):,} of {len(record.trials):,} trials"
    area = {"fill": "tonexty", "fillcolor": "rgba(139,147,167,0.25)", "name": f"middle 80 % of {whose}"}
    hover = {"hovertemplate": "median at epoch %{x}: %{y:.5g}<extra></extra>", "name": f"median of {whose}"}
    return [
        plot.points("lines", low, name="10 %", showlegend=False, **edge),
        plot.points("lines", high, showlegend=True, **edge, **area),
        plot.points("lines", median, line={"color": plot.GRAY, "width": 2, "dash": "dash"}, **same, **hover),
    ]


def _stop_marks(trials: list[TrialRecord], metric: str, is_compared: bool, per: float) -> list[plot.Figure] | None:
    """Marks each pruned trial's last value (or its last finite value) and its cutoff; None beyond MOST_STOPS marks.

    The cutoff is marked only for the metric that the rungs compare. `per` is that of `_curve`.
    """
    stops, cutoffs = [], []
    for trial in trials:
        end = next((decision for decision in reversed(trial.decisions) if decision.action == "stop"), None)
        if trial.status == "pruned" and end:
            value = finite(end.value) if is_compared and not per else None
            reports = sorted(trial.reports, key=lambda report: -report.order)
            known = ((r, v) for r in reports if (v := finite(r.metrics.get(metric))) is not None)
            last = [(_at(trial, report, per), at) for report, at in islice(known, 1)]
            for place, at in [(end.epoch, value)] if value is not None else last:
                label = f"{plot.label_of(trial)}<br>{plot.escaped(end.reason, 120)}"
                stops.append((place, at, trial.id, label))
                cutoffs.append((place, finite(end.cutoff) if is_compared else None, trial.id, label))
    if len(stops) > MOST_STOPS:
        return None
    cutoffs = [mark for mark in cutoffs if mark[1] is not None]
    cross, hover = {"symbol": "x", "size": 8, "color": plot.STOP_COLOR}, "%{text}<extra></extra>"
    of_cutoff = {"meta": "cutoff", "marker": DASH, "hovertemplate": f"cutoff %{{y:.5g}} for<br>{hover}"}
    return [
        plot.points("markers", stops, name="pruned here", meta="stop", marker=cross, hovertemplate=hover),
        plot.points("markers", cutoffs, name="cutoff at that time", **of_cutoff),
    ]


def _cutoff_marks(record: ExperimentRecord) -> list[plot.Figure]:
    rungs = [rung for rung in record.stats.rungs if finite(rung.cutoff_then) is not None][-MAX_CUTOFF_MARKS:]
    passed = [f"{counted(rung.reached, 'trial')} reached it, {rung.stopped} pruned" for rung in rungs]
    return [plot.points(
        "markers", [(math.ceil(rung.rung), rung.cutoff_then) for rung in rungs], marker=DASH, name="last cutoff used",
        meta="cutoff", text=[f"{_rung_name(rung)}<br>{text}" for rung, text in zip(rungs, passed, strict=True)],
        hovertemplate="last cutoff %{y:.5g} of %{text}<extra></extra>",
    )]  # fmt: skip


def draw_history(record: ExperimentRecord) -> plot.Figure | None:
    """Draws the best value so far as a step line over the epochs of all trials; epochs trained twice count twice."""
    stats, metric = record.stats, record.experiment.wanted.metric
    if not stats.improvements:
        return None
    steps = [*stats.improvements, stats.improvements[-1]._replace(epochs=stats.num_reports)]
    trials = [record.trials[step.trial_index] for step in steps]
    line = plot.points(
        "lines+markers",
        [(step.epochs, step.value, trial.id, plot.label_of(trial)) for step, trial in zip(steps, trials, strict=True)],
        meta="best", line={"color": plot.BEST_COLOR, "width": 2, "shape": "hv"}, marker={"size": 7}, showlegend=False,
        hovertemplate="%{text}<br>best value: %{y:.5g}<extra></extra>",
    )  # fmt: skip
    # A value's weight is the number of epochs for which it was the best, so that a bad first value is an outlier.
    lasted = [float(after.epochs - before.epochs) for before, after in pairwise(steps)]
    mode = record.experiment.wanted.mode
    within = plot.clipped([s.value for s in steps[:-1]], mode, lasted) if sum(lasted) else None
    again, which = (f"{stats.repeated:,} of {word}" if stats.repeated else "" for word in ("them again", "which"))
    best = f"{steps[-1].value:.5g}, of trial {plot.tick(trials[-1].id, 40)}"
    text = (
        f"Best {plot.tick(metric, 40)} so far: {best}, found after {steps[-2].epochs:,} of {steps[-1].epochs:,} epochs"
        f"{f', {which} were trained again' if which else ''}; the first value was {steps[0].value:.5g}, and it "
        f"improved {len(steps) - 2} times."
    )
    x_axis = plot.titled(f"epochs trained by all trials{f', {again}' if again else ''}", rangemode="tozero")
    traces = [line]
    if within:  # the first values lie beyond the axis: without marks at its end, the line would begin in mid-figure
        drawn = plot.within_range([s.value for s in steps], within, mode)
        beyond = [s for s, value in zip(steps, drawn, strict=True) if s.value != value]
        edge, symbol = (within.high, "triangle-up") if mode == "min" else (within.low, "triangle-down")
        shown = [(s.epochs, edge, record.trials[s.trial_index].id, f"{s.value:.5g}") for s in beyond]
        traces.append(plot.points(
            "markers", shown, name="beyond the axis", meta=plot.BEYOND, showlegend=False, cliponaxis=False,
            marker={"symbol": symbol, "size": 9, "color": plot.BEST_COLOR},
            hovertemplate="trial %{customdata}<br>best value %{text}, beyond the axis<extra></extra>",
        ))  # fmt: skip
    return plot.figure(traces, text, clip=(f"best {metric}", within), xaxis=x_axis)


def draw_whatif(record: ExperimentRecord, outcome: WhatIf) -> plot.Figure:
    """Draws each curve (or an even sample of many curves) solid up to where the rules end it, and dotted after that."""
    metric, step = record.experiment.compared.metric, max(1, len(record.trials) // MOST_CUT)
    pairs = list(zip(record.searched, outcome.fates, strict=True))
    pairs = [pair for i, pair in enumerate(pairs) if i % step == 0 or pair[0].id == outcome.best]
    every = math.ceil(sum(len(trial.reports) for trial, _ in pairs) / MOST_CUT_POINTS) or 1
    kept: dict[str, list[list[plot.Point]]] = {"stopped": [], "ended": [], "unknown": [], "best": []}
    ends: dict[str, list[plot.Point]] = {"stopped": [], "ended": [], "unknown": []}
    saved = []
    for trial, fate in pairs:
        outcome_text = f"<br>{plot.escaped(_outcome_text(fate), 120)}"
        if curve := _curve(trial, metric, every, fate.epochs, outcome_text):
            before = [row for row in curve if row[0] <= fate.epochs]
            after = [row for row in curve if row[0] >= fate.epochs]
            kept["best" if trial.id == outcome.best else fate.outcome].append(before)
            ends[fate.outcome] += before[-1:]
            saved += [after] if len(after) > 1 else []
    looks = [
        ("pruned", plot.GRAY, 1.5, 0.8), ("as recorded", plot.MAIN_COLOR, 1.5, 0.85),
        ("unknown outcome", plot.OPEN_COLOR, 1.5, 0.9),
        (f"best: trial {plot.escaped(outcome.best, 40)}", plot.BEST_COLOR, 3, 1.0),
    ]  # fmt: skip
    traces = [plot.lines("lines", saved, plot.GRAY, 1.5, 4, name="saved epochs", opacity=0.5)]
    traces[0]["line"]["dash"] = "dot"
    for curves, (name, color, width, opacity) in zip(kept.values(), looks, strict=True):
        traces.append(plot.lines("lines+markers", curves, color, width, 4, name=name, opacity=opacity))
    marks = [
        ("pruned here", "x", plot.STOP_COLOR, "stopped"),
        ("end of the record", "circle-open", plot.OPEN_COLOR, "unknown"),
    ]
    for name, symbol, color, end in marks:
        look = {"marker": {"symbol": symbol, "size": 9, "color": color}, "hovertemplate": "%{text}<extra></extra>"}
        traces.append(plot.points("markers", ends[end], name=name, **look))
    numbers = Counter(fate.outcome for trial, fate in pairs if trial.reports)
    text = (
        f"{counted(numbers.total(), 'trial')} drawn, replayed with {outcome.scheduler}: {numbers['stopped']} pruned, "
        f"{numbers['ended']} as recorded, {numbers['unknown']} with an unknown outcome."
    )
    y_axis = plot.titled(plot.escaped(metric, 40))
    return plot.figure(traces, text, legend=plot.LEGEND, xaxis=plot.titled("epoch", rangemode="tozero"), yaxis=y_axis)


def _outcome_text(fate: Fate) -> str:
    if fate.outcome == "unknown":
        return f"would train beyond epoch {fate.epochs}, the end of its record"
    if fate.outcome == "ended":
        return f"trains {fate.epochs} epochs, as recorded"
    than = "" if fate.cutoff is None else f": {fate.value:.5g} is worse than the cutoff {fate.cutoff:.5g}"
    return f"pruned at epoch {fate.epochs}{than}"
