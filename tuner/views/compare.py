"""Collects what a comparison of several experiments shows of each one, and draws the comparison."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Literal, NamedTuple, TypeVar

from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted, domain_text, flat_parameters, formatted
from tuner.record.trial_row import Number
from tuner.spec.experiment import values_of
from tuner.spec.metrics import sign_of
from tuner.views.figures import plot
from tuner.views.figures.timeline import unit_of
from tuner.views.figures.values import BEST, LAST, shared_epoch, title_of
from tuner.views.figures.values import values_of as trial_values

MAX_STEPS = 400  # maximum steps of one curve; a curve with more improvements is thinned
MOST_POINTS = 200  # maximum points of one distribution
EPOCHS = [2**n for n in range(12)]  # the epochs for which a comparison may offer distributions
MAX_NAMES, MOST_TEXT = 500, 300  # maximum parameters (or constants) of one experiment, and characters of each text
# Five colours that stand out from a white and a black page and differ most from each other (by 34 in CIELAB), both with
# normal sight and without the cones for red, green or blue (by the matrices of Machado et al., 2009).
COLORS = ("#9830f2", "#bfb200", "#bf4d7a", "#00c2f2", "#237317")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
MOST_COMPARED = len(COLORS) * len(DASHES)
MOST_DESCRIBED = 5  # maximum experiments in a figure's text; the page's table has all
Clock = Literal["epochs", "seconds", "trials"]
TITLES: dict[Clock, str] = {"epochs": "epochs trained by all trials", "trials": "trials started"}
Item = TypeVar("Item")


class Step(NamedTuple):
    """A new best value, its trial, and what the search had used: epochs of all trials, seconds, started trials."""

    epochs: int
    seconds: float
    trials: int
    value: float
    trial: str


class Distribution(NamedTuple):
    """The values of `size` trials; `rows` is a sample: a value, the share of trials this good or better, its trial."""

    size: int
    median: float
    rows: list[tuple[float, float, str]]


@dataclass(frozen=True)
class ComparedRow:
    """One requested experiment. If it cannot be compared, `error` says why, and the fields after `state` are not set.

    In the state `reading`, the next request continues to read it. `best_epochs`, `best_s` and `best_trials` say when
    the best value was found: after how many epochs of all trials, seconds, and started trials. `took_s` counts the
    seconds of all sessions; `worker_s` is the sum of all trials' seconds on workers.
    """

    name: str
    color: str = ""
    dash: str = ""
    error: str = ""
    state: str = ""
    group: int = -1
    space: str = ""
    searcher: str = ""
    scheduler: str = ""
    metric: str = ""
    mode: str = ""
    best: Number | None = None
    trial: str = ""
    best_epochs: int | None = None
    best_s: float | None = None
    best_trials: int | None = None
    trials: int = 0
    completed: int = 0
    pruned: int = 0
    failed: int = 0
    epochs: int = 0
    took_s: float = 0
    worker_s: float = 0


@dataclass(frozen=True)
class Compared:
    """What a comparison shows of one experiment; not its record, because MOST_COMPARED records may not fit into memory.

    The service sets `color`, `dash`, and the fields from `state` to `scheduler` in `row`. The last step repeats the
    best value at the search's end. `distributions` maps a choice of `tuner.views.figures.values` to its distribution;
    `options` and `parameters` map names to texts.
    """

    row: ComparedRow
    steps: list[Step]
    distributions: dict[str, Distribution]
    options: dict[str, str]
    parameters: dict[str, str]


@dataclass(frozen=True)
class DifferenceRow:
    """An option or a parameter: its value in each compared experiment, as text; empty if the experiment lacks it."""

    name: str
    values: list[str]
    differs: bool


def compared_of(record: ExperimentRecord) -> Compared:
    experiment, counts, winner, steps = record.experiment, record.stats.counts, record.best(), _steps(record)
    found = steps[-2] if steps else None
    row = ComparedRow(
        experiment.name,
        metric=experiment.wanted.metric,
        mode=experiment.wanted.mode,
        best=winner[1].metrics[experiment.wanted.metric] if winner else None,
        trial=winner[0].id if winner else "",
        best_epochs=found.epochs if found else None,
        best_s=found.seconds if found else None,
        best_trials=found.trials if found else None,
        trials=len(record.trials),
        completed=counts["completed"],
        pruned=counts["pruned"],
        failed=counts["failed"],
        epochs=record.stats.num_reports,
        took_s=round(record.took_s, 1),
        worker_s=round(sum(trial.seconds for trial in record.trials), 3),
    )
    return Compared(row, steps, _distributions(record), _options(record), _parameters(record.facts))


def differences(each: Sequence[dict[str, str]]) -> list[DifferenceRow]:
    """Returns one row per name that any of the dictionaries has, in the order in which the names first appear."""
    rows = {name: [one.get(name, "") for one in each] for one in each for name in one}
    missing = {name for name in rows if not all(name in one for one in each)}
    return [DifferenceRow(name, row, len(set(row)) > 1 or name in missing) for name, row in rows.items()]


def _steps(record: ExperimentRecord) -> list[Step]:
    starts = sorted(trial.spans[0][0] for trial in record.trials if trial.spans)
    steps: list[Step] = []
    for found in thinned(record.stats.improvements, MAX_STEPS - 1):
        since = 0.0 if record.sessions else min([found.time, *starts[:1]])
        passed = round(record.elapsed(found.time) - since, 3)
        if steps:  # if the clock was set back, the line must not run backwards
            passed = max(passed, steps[-1].seconds)
        trial = record.trials[found.trial_index].id
        steps.append(Step(found.epochs, passed, bisect_right(starts, found.time), found.value, trial))
    if steps:
        last = steps[-1]
        end = max(round(record.took_s, 3), last.seconds)
        steps.append(last._replace(epochs=record.stats.num_reports, seconds=end, trials=len(starts)))
    return steps


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Returns at most `most` items, evenly spaced, the first and the last item included."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def _distributions(record: ExperimentRecord) -> dict[str, Distribution]:
    """Collects the trials' best values, their last ones, and those at epochs 1, 2, 4, ... that nine of ten reached."""
    found, last, sign = {}, shared_epoch(record), sign_of(record.experiment.wanted.mode)
    for choice in [BEST, *(str(epoch) for epoch in EPOCHS if epoch <= last), LAST]:
        values = enumerate(trial_values(record, choice))
        ranked = sorted((sign * value, record.trials[index].id) for index, value in values if value is not None)
        if count := len(ranked):
            rows = thinned([(sign * loss, n / count, trial) for n, (loss, trial) in enumerate(ranked, 1)], MOST_POINTS)
            low, high = sign * ranked[(count - 1) // 2][0], sign * ranked[count // 2][0]
            found[choice] = Distribution(count, (low + high) / 2 if math.isfinite(low + high) else high, rows)
    return found


def _options(record: ExperimentRecord) -> dict[str, str]:
    """Returns, as texts, the search's options and its code's versions; for a Ray Tune folder, only metric and mode."""
    experiment, facts = record.experiment, record.facts
    if facts.get("foreign"):
        return {"metric": experiment.wanted.metric, "mode": experiment.wanted.mode}
    options = values_of(experiment)
    del options["name"], options["results"]
    versions, space = facts.get("versions"), facts.get("space", {})
    code = {"sha256 of the space's file": space.get("sha256", ""), "git commit": facts.get("git_commit", "")}
    known = versions.items() if isinstance(versions, dict) else ()
    code |= {f"version of {name}": version for name, version in islice(known, MAX_NAMES)}
    return {name[:MOST_TEXT]: _text(value) for name, value in (options | code).items()}


def _parameters(facts: dict[str, Any]) -> dict[str, str]:
    """Returns the space's parameters with their ranges, and its constants, as text."""
    space = facts.get("space", {})
    constants = islice(flat_parameters(space.get("constants", {})), MAX_NAMES)
    ranges = islice(space.get("params", {}).items(), MAX_NAMES)
    texts = {name: f"always {_text(value)}" for name, value in constants} | {name: _range(d) for name, d in ranges}
    return {name[:MOST_TEXT]: plot.cut(text, MOST_TEXT) for name, text in texts.items()}


def _range(described: Any) -> str:
    """Formats a parameter of experiment.json; a conditional one has a domain in each of its branches."""
    branches = described.get("branches") if isinstance(described, dict) else None
    each = branches[:MAX_NAMES] if isinstance(branches, list) else [described]
    return " or ".join(domain_text(one, MOST_TEXT) if isinstance(one, dict) else _text(one) for one in each)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = formatted(value) if isinstance(value, (int, float, str)) else json.dumps(value, default=str)
    return plot.cut(text, MOST_TEXT)


def look_of(number: int) -> tuple[str, str]:
    """Returns the colour and the dash of the experiment at this index among the requested experiments."""
    return COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]


def draw_progress(experiments: Sequence[Compared], clock: Clock) -> plot.Figure:
    """Draws the best value so far of each experiment as a step line with a dot at each improvement."""
    shown = [each for each in experiments if each.steps]
    if not shown:
        return plot.empty_figure("No trial of these experiments has reported a finite value yet.")
    metric, mode = shown[0].row.metric, shown[0].row.mode
    unit, per = unit_of(max(each.steps[-1].seconds for each in shown))
    title, per = (f"{unit} of the search", per) if clock == "seconds" else (TITLES[clock], 1)
    traces, values, weights = [], [], []
    for each in shown:
        at = [getattr(step, clock) / per for step in each.steps]
        rows = [(x, step.value, step.trial) for x, step in zip(at, each.steps, strict=True)]
        hover = f"{plot.escaped(each.row.name)}<br>trial %{{customdata}}<br>%{{y:.5g}} at %{{x:.5g}}<extra></extra>"
        traces.append(_line(each, rows, hovertemplate=hover))
        # A value's weight is the share of the search in which it was the best, so that a bad first value is an outlier.
        values += [step.value for step in each.steps[:-1]]
        weights += [(after - before) / (at[-1] - at[0] or 1) for before, after in pairwise(at)]
    texts = []
    for each in sorted(shown, key=lambda one: sign_of(mode) * one.steps[-1].value):
        found, end = each.steps[-2:]
        when = " of ".join(f"{getattr(step, clock) / per:,.4g}" for step in (found, end))
        name, trial = plot.tick(each.row.name, 60), plot.tick(found.trial, 40)
        texts.append(f"{name} {found.value:.5g} (trial {trial}) after {when}")
    return plot.figure(
        traces,
        f"Best {plot.tick(metric, 40)} by {title}: {_some(texts)}.",
        clip=(f"best {metric}", plot.clipped(values, mode, weights) if sum(weights) else None),
        xaxis=plot.titled(title, rangemode="tozero"),
        showlegend=True,
    )


def draw_distributions(experiments: Sequence[Compared], choice: str) -> plot.Figure:
    """Draws each experiment's distribution of `choice`: for each value, the share of trials as good or better."""
    shown = [each for each in experiments if choice in each.distributions]
    if not shown:
        return plot.empty_figure("No trial of these experiments has a finite value to compare.")
    metric, mode = shown[0].row.metric, shown[0].row.mode
    traces, values, texts = [], [], []
    for each in shown:
        spread, name = each.distributions[choice], each.row.name
        rows, number = spread.rows, counted(spread.size, "trial")
        share = f"%{{y:.1%}} of {number} are this good or better"
        hover = f"{plot.escaped(name)}<br>trial %{{customdata}}: %{{x:.5g}}<br>{share}"
        look = {"hovertemplate": f"{hover}<extra></extra>"} | ({"mode": "lines"} if spread.size > 30 else {})
        traces.append(_line(each, rows, **look))
        texts.append(f"{plot.tick(name, 60)} median {spread.median:.5g}, best {rows[0][0]:.5g} of {number}")
        values += [value for value, *_ in rows]
    title = f"best {metric} of each trial" if choice == BEST else title_of(metric, choice)
    return plot.figure(
        traces,
        f"Distribution of the {plot.tick(title, 60)}: {_some(texts)}.",
        clip=(title, plot.clipped(values, mode)),
        axis="xaxis",
        yaxis=plot.titled("share of trials this good or better", tickformat=".0%", range=[0, 1.02]),
        showlegend=True,
    )


def choices_of(experiments: Sequence[Compared]) -> list[str]:
    """Returns the choices of `values.py` that all experiments with a value offer; `best` comes first."""
    offered = [each.distributions for each in experiments if each.distributions]
    return [choice for choice in offered[0] if all(choice in one for one in offered)] if offered else []


def default_of(experiments: Sequence[Compared]) -> str:
    """Returns the default choice: `best`, or, if trials were pruned, the last epoch that all experiments offer."""
    has_pruned = any(each.row.pruned for each in experiments)
    epochs = [choice for choice in choices_of(experiments) if choice.isdecimal()]
    return epochs[-1] if has_pruned and epochs else BEST


def _line(each: Compared, rows: Iterable[plot.Point], **more: Any) -> plot.Figure:
    row = each.row
    line = {"color": row.color, "dash": row.dash, "width": 2, "shape": "hv"}
    marker = {"color": row.color, "symbol": SYMBOLS[COLORS.index(row.color)], "size": 6}
    look = {"name": plot.escaped(row.name, 60), "meta": row.name, "line": line, "marker": marker}
    return plot.points("lines+markers", rows, **look) | more


def _some(texts: list[str]) -> str:
    more = len(texts) - MOST_DESCRIBED
    return "; ".join(texts[:MOST_DESCRIBED]) + (f"; and {more} more, which the table below has" if more > 0 else "")
