"""Rung plot: the values of pruned and of continued trials at each rung, and each rung's cutoff over time."""

from __future__ import annotations

import math
from typing import NamedTuple

from tuner.core.rules.asha import percentile
from tuner.record.records import TrialRecord, finite
from tuner.record.results import ExperimentRecord
from tuner.record.search_stats import AtRung, RungKey, RungSummary
from tuner.record.texts import counted
from tuner.views.figures import plot
from tuner.views.figures.timeline import unit_of
from tuner.views.prediction import MAX_NAMED_RUNGS, described

MAX_DRAWN_RUNGS = 12  # maximum rungs drawn; of more, an even sample is drawn (the median rule has a rung at each epoch)
MAX_RUNG_DOTS = 30  # maximum trials of a rung that are drawn one by one; more trials are summarised by a box
MAX_CUTOFF_POINTS = 200  # maximum points of a rung's cutoff over time
MOST_CLIPPED = 5000  # maximum values that decide where the axis ends: an even sample, with the least and the greatest
# OUTCOMES: name -> colour, offset from the rung
OUTCOMES = {"continued": (plot.MAIN_COLOR, -0.18), "pruned": (plot.STOP_COLOR, 0.18)}
MEANS = (
    "The values are running means, of which the cutoff is the median; a trial is pruned if its best value is worse "
    "than the cutoff. "
)
QUANTILES = {"lowerfence": 5, "q1": 25, "median": 50, "q3": 75, "upperfence": 95}


class Rung(NamedTuple):
    """The trials at one rung of one bracket: their numbers, and what is drawn of them."""

    summary: RungSummary
    trials: dict[str, list[tuple[float, TrialRecord]]]  # outcome -> (value, trial), for finite values
    cutoffs: list[tuple[float, float]]  # (time, cutoff), thinned

    @property
    def values(self) -> list[float]:
        return [value for some in self.trials.values() for value, _ in some]

    @property
    def bracket(self) -> tuple[int, int]:
        """Its band and its bracket; 0 without bands or brackets."""
        return self.summary.band or 0, self.summary.bracket or 0


def rungs_of(record: ExperimentRecord) -> tuple[list[Rung], int]:
    """Collects values and cutoffs at rungs where not all trials wait, by band, bracket and rung; returns their number.

    Of more than MAX_DRAWN_RUNGS rungs, it collects an even sample.
    """
    all_rungs = [rung for rung in record.stats.rungs if rung.waiting < rung.reached]
    drawn = all_rungs[:: math.ceil(len(all_rungs) / MAX_DRAWN_RUNGS) or 1]
    reached: dict[RungKey, list[tuple[TrialRecord, AtRung]]] = {(r.band, r.bracket, r.rung): [] for r in drawn}
    is_median = record.experiment.scheduler == "median"
    for trial, at_rungs in zip(record.trials, record.stats.at_rungs, strict=True):
        means = _running_means(record, trial) if is_median else {}
        for key in at_rungs.keys() & reached.keys():
            at = at_rungs[key]
            reached[key].append((trial, at._replace(value=means.get(at.epoch)) if is_median else at))
    return [_rung(*each) for each in zip(drawn, reached.values(), strict=True)], len(all_rungs)


def _running_means(record: ExperimentRecord, trial: TrialRecord) -> dict[int, float]:
    """Returns epoch -> mean of the values from the grace period on; the median rule's cutoff is a median of these."""
    first, metric = record.rules.grace_period, record.experiment.compared.metric
    means, mean = dict[int, float](), 0.0
    for report in trial.reports:
        if report.epoch >= first and (value := finite(report.metrics.get(metric))) is not None:
            number = len(means) + 1
            # Both are divided before they are added, because the sum of large values could overflow.
            mean = means[report.epoch] = mean * ((number - 1) / number) + value / number
    return means


def _rung(summary: RungSummary, reached: list[tuple[TrialRecord, AtRung]]) -> Rung:
    done = [each for each in reached if each[1].action != "pause"]
    trials: dict[str, list[tuple[float, TrialRecord]]] = {name: [] for name in OUTCOMES}
    for trial, at in done:
        if at.value is not None:
            trials["pruned" if at.action == "stop" else "continued"].append((at.value, trial))
    known = ((at.time, finite(at.cutoff)) for _, at in done)
    cutoffs = [(time, cutoff) for time, cutoff in known if time is not None and cutoff is not None]
    # An even sample, with the first and the last by time; sorting all of 10,000 cutoffs would take 40 ms.
    every = math.ceil(len(cutoffs) / MAX_CUTOFF_POINTS) or 1
    thinned = sorted({*cutoffs[::every], min(cutoffs), max(cutoffs)}) if cutoffs else []
    return Rung(summary, trials, thinned)


def draw_rung_values(record: ExperimentRecord) -> plot.Figure | None:
    """Draws each rung's values as dots, or as boxes if they are many; beside them, each rung's cutoff over time."""
    (rungs, number), goal, spans = rungs_of(record), record.experiment.compared, record.stats.worker_spans
    values = [value for rung in rungs for value in rung.values]
    if not values:
        return None
    every = math.ceil(len(values) / MOST_CLIPPED) or 1
    within = plot.clipped([*values[::every], min(values), max(values)], goal.mode)
    has_bands, has_brackets = len({r.bracket[0] for r in rungs}) > 1, len({r.bracket for r in rungs}) > 1
    kinds = "band.bracket" if has_bands else "bracket" if has_brackets else ""
    names = [f"{rung.summary.rung:g}{_parenthesised(rung, kinds)}" for rung in rungs]
    sample = f"The plot has {len(rungs)} of {number} rungs. " if number > len(rungs) else ""
    means = MEANS if record.experiment.scheduler == "median" else ""
    times = [time for rung in rungs for time, _ in rung.cutoffs]
    start = spans[0][0] if spans else min(times, default=0.0)
    unit, per = unit_of(max(times, default=start) - start)
    lasts = [finite(rung.summary.cutoff_then) for rung in rungs]
    marked = [(i, last) for i, last in enumerate(lasts) if last is not None]
    cutoffs = plot.points(
        "markers", marked, name="last cutoff used", meta="cutoff",
        marker={"symbol": "line-ew-open", "size": 44, "color": plot.GRAY, "line": {"width": 2}},
        hovertemplate="last cutoff used: %{y:.5g}<extra></extra>",
    )  # fmt: skip
    traces = [trace for name in OUTCOMES for trace in (_boxes(rungs, name), _dots(rungs, name))]
    colors = [plot.VIRIDIS[math.floor(i / len(rungs) * len(plot.VIRIDIS))] for i in range(len(rungs))]
    over_time = [_over_time(*each, start, per) for each in zip(rungs, names, colors, strict=True)]
    ticks = {"tickvals": list(range(len(names))), "ticktext": names, "range": [-0.6, len(names) - 0.4]}
    return plot.figure(
        [*traces, cutoffs, *over_time],
        f"{sample}{_described(rungs, goal.metric)} {means}{described(record)}".strip(),
        scales={"xaxis": "names"},
        clip=(f"running mean of {goal.metric}" if means else goal.metric, within),
        xaxis=plot.titled(f"rung ({kinds})" if kinds else "rung", domain=[0, 0.46], **ticks),
        xaxis2=plot.titled(f"{unit} since the first trial started", domain=[0.54, 1], anchor="y2"),
        yaxis2=plot.titled("cutoff", matches="y", anchor="x2"),
        legend=plot.LEGEND,
    )


def _parenthesised(rung: Rung, kinds: str) -> str:
    return f" ({'.'.join(map(str, rung.bracket if '.' in kinds else rung.bracket[1:]))})" if kinds else ""


def _dots(rungs: list[Rung], name: str) -> plot.Figure:
    color, offset = OUTCOMES[name]
    # Multiples of the golden ratio, modulo 1, spread the dots evenly beside each other.
    dots = [
        (round(i + offset + 0.24 * ((n * 0.618034) % 1 - 0.5), 3), value, trial.id, plot.label_of(trial))
        for i, rung in enumerate(rungs)
        if len(rung.trials[name]) <= MAX_RUNG_DOTS
        for n, (value, trial) in enumerate(rung.trials[name])
    ]
    return plot.points(
        "markers", dots, name=name, meta=name, legendgroup=name, hovertemplate="%{text}<br>%{y:.5g}<extra></extra>",
        marker={"color": color, "size": 6, "opacity": 0.7, "symbol": "x" if name == "pruned" else "circle"},
    )  # fmt: skip


def _boxes(rungs: list[Rung], name: str) -> plot.Figure:
    color, offset = OUTCOMES[name]
    places = [(i, rung.trials[name]) for i, rung in enumerate(rungs) if len(rung.trials[name]) > MAX_RUNG_DOTS]
    ordered = [sorted(value for value, _ in some) for _, some in places]
    at = {key: [percentile(each, percent) for each in ordered] for key, percent in QUANTILES.items()}
    return {
        "type": "box", "name": name, "meta": f"{name} box", "x": [i + offset for i, _ in places], **at,
        "width": 0.32, "marker": {"color": color}, "line": {"width": 1.5}, "legendgroup": name,
        "showlegend": not any(0 < len(rung.trials[name]) <= MAX_RUNG_DOTS for rung in rungs),
        "hoverinfo": "y",
    }  # fmt: skip


def _over_time(rung: Rung, name: str, color: str, start: float, per: float) -> plot.Figure:
    return plot.points(
        "lines" if len(rung.cutoffs) > 1 else "markers", [((time - start) / per, at) for time, at in rung.cutoffs],
        name=f"cutoff at rung {name}", meta="cutoff", xaxis="x2", yaxis="y2", marker={"color": color},
        line={"color": color, "width": 2, "shape": "hv"},
        hovertemplate=f"cutoff %{{y:.5g}} at rung {name}<extra></extra>",
    )  # fmt: skip


def _described(rungs: list[Rung], metric: str) -> str:
    lines = []
    for rung in rungs[:MAX_NAMED_RUNGS]:
        at, (band, bracket) = rung.summary, rung.bracket
        of = f" of bracket {bracket}{f' in band {band}' if band else ''}" if band or bracket else ""
        waiting = f", {counted(at.waiting, 'trial')} waiting" if at.waiting else ""
        cutoff = "" if at.cutoff_then is None else f", last cutoff used {at.cutoff_then:.4g}"
        lines.append(f"Rung {at.rung:g}{of}: {at.stopped} of {at.reached} trials pruned{waiting}{cutoff}.")
    more = len(rungs) - MAX_NAMED_RUNGS
    lines += [f"{counted(more, 'more rung')}."] if more > 0 else []
    return f"Values of {plot.tick(metric, 40)} at each rung. {' '.join(lines)}"
