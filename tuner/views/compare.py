"""Collects what a comparison of several experiments shows of each one: a few hundred numbers and texts.

`tuner.views.compare_figures` draws them. A result does not refer to the record, so that the service can keep it
after it dropped the record: twenty records of 10,000 trials do not fit into its memory together.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from tuner.record.records import finite, sign_of
from tuner.record.results import ExperimentRecord
from tuner.record.search_stats import Improvement
from tuner.record.texts import flat_parameters, formatted
from tuner.spec.experiment import values_of
from tuner.views.figures.values import BEST, shared_epoch, value_at

MOST_STEPS = 400  # of one curve; a curve with more improvements is thinned
MOST_POINTS = 200  # of one distribution
LAST_EPOCH = 2048  # the last epoch at which distributions are offered
MOST_NAMES, MOST_TEXT = 500, 300  # of one experiment: parameters or constants, and characters of each
Item = TypeVar("Item")


class Step(NamedTuple):
    """A new best value of a search: when it was found, by three clocks, the value, and the trial that reported it.

    `epochs` are those of all trials together, `seconds` leave out the time between two sessions, and `trials` have
    started by then.
    """

    epochs: int
    seconds: float
    trials: int
    value: float
    trial: str


class Distribution(NamedTuple):
    """The values of `size` trials, the best first: `shares[i]` of the trials are at least as good as `values[i]`."""

    size: int
    values: list[float]
    shares: list[float]
    trials: list[str]
    median: float


@dataclass(frozen=True)
class Compared:
    """What a comparison shows of one experiment.

    Attributes:
        steps: each new best value, thinned to MOST_STEPS; the last one repeats the best value at the end of the search.
        distributions: choice of `tuner.views.figures.values` -> the distribution of the trials' values, thinned.
        has_pruned: whether the scheduler pruned trials.
        seconds, worker_s: the search's duration without pauses, and the time of all trials on workers.
        options, parameters: name -> value as text; the space's parameters with their ranges.
    """

    metric: str
    mode: str
    steps: list[Step]
    distributions: dict[str, Distribution]
    has_pruned: bool
    best: float | None
    trial: str
    trials: int
    counts: dict[str, int]
    epochs: int
    seconds: float
    worker_s: float
    options: dict[str, str]
    parameters: dict[str, str]


@dataclass(frozen=True)
class DifferenceRow:
    """An option or a parameter: its value in each compared experiment as text, empty if it has none."""

    name: str
    values: list[str]
    differs: bool


def compared_of(record: ExperimentRecord, took_s: float) -> Compared:
    """Collects what a comparison shows of an experiment.

    Args:
        took_s: the search's duration in seconds, without the time between two sessions.
    """
    stats, experiment, winner = record.stats, record.experiment, record.best()
    return Compared(
        metric=experiment.metric,
        mode=experiment.mode,
        steps=_steps(record, took_s),
        distributions=_distributions(record),
        has_pruned=bool(stats.counts.get("pruned")),
        best=winner[1].metrics[experiment.metric] if winner else None,
        trial=winner[0].id if winner else "",
        trials=len(record.trials),
        counts=dict(stats.counts),
        epochs=stats.num_reports,
        seconds=took_s,
        worker_s=round(sum(trial.seconds for trial in record.trials), 3),
        options=_options(record),
        parameters=_parameters(record.facts),
    )


def differences(each: Sequence[dict[str, str]]) -> list[DifferenceRow]:
    """Returns one row for each name that one of the dictionaries has, in the order in which they have them."""
    rows = {name: [one.get(name, "") for one in each] for one in each for name in one}
    missing = {name for name in rows if not all(name in one for one in each)}
    return [DifferenceRow(name, row, len(set(row)) > 1 or name in missing) for name, row in rows.items()]


def _steps(record: ExperimentRecord, took_s: float) -> list[Step]:
    starts = sorted(trial.spans[0][0] for trial in record.trials if trial.spans)
    seconds = _clock(record, starts)
    steps: list[Step] = []
    for found in thinned(record.stats.improvements, MOST_STEPS - 1):
        step = _step(record, found, starts, seconds)
        if steps:  # a clock that was set back: the line must not run backwards
            step = step._replace(seconds=max(step.seconds, steps[-1].seconds))
        steps.append(step)
    if steps:
        last = steps[-1]
        end = last._replace(epochs=record.stats.num_reports, seconds=max(took_s, last.seconds), trials=len(starts))
        steps.append(end)
    return steps


def _step(record: ExperimentRecord, found: Improvement, starts: list[float], seconds: Callable[[float], float]) -> Step:
    passed, started = round(seconds(found.time), 3), bisect_right(starts, found.time)
    return Step(found.epochs, passed, started, found.value, record.trials[found.place].id)


def _clock(record: ExperimentRecord, starts: list[float]) -> Callable[[float], float]:
    """Returns the function that turns a unix time into seconds of the search, without the time between sessions."""
    sessions = record.sessions
    if not sessions:
        first = starts[0] if starts else 0.0
        return lambda time: max(0.0, time - first)
    begun = [session.begun for session in sessions]

    def passed(time: float) -> float:
        session = sessions[max(0, bisect_right(begun, time) - 1)]
        return max(0.0, session.before_s + time - session.begun)

    return passed


def thinned(items: Sequence[Item], most: int) -> list[Item]:
    """Returns at most `most` of the items at equal distances, the first and the last one among them."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def _distributions(record: ExperimentRecord) -> dict[str, Distribution]:
    """Returns the distribution of the best values, and those at epochs 1, 2, 4, ... that nine of ten trials reached."""
    metric, sign, trials = record.experiment.metric, sign_of(record.experiment.mode), record.trials
    epochs, last = [1], min(shared_epoch(record), LAST_EPOCH)
    while 2 * epochs[-1] <= last:
        epochs.append(2 * epochs[-1])
    pairs = {BEST: [(rank.loss, rank.place) for rank in record.stats.ranked]}
    for epoch in epochs if last else ():
        values = ((value_at(trial, metric, epoch), place) for place, trial in enumerate(trials))
        pairs[str(epoch)] = sorted((sign * value, place) for value, place in values if value is not None)
    return {
        choice: _distribution([sign * loss for loss, _ in ranked], [trials[place].id for _, place in ranked])
        for choice, ranked in pairs.items()
        if ranked
    }


def _distribution(values: list[float], trials: list[str]) -> Distribution:
    """Returns the distribution of values that are sorted, the best first."""
    count = len(values)
    places = thinned(range(count), MOST_POINTS)
    median = (values[(count - 1) // 2] + values[count // 2]) / 2
    return Distribution(
        count,
        [values[i] for i in places],
        [(i + 1) / count for i in places],
        [trials[i] for i in places],
        median if finite(median) is not None else values[count // 2],
    )


def _options(record: ExperimentRecord) -> dict[str, str]:
    """Returns the search's options, and the versions of its code, as text."""
    experiment, facts = record.experiment, record.facts
    if facts.get("foreign"):
        return {"metric": experiment.metric, "mode": experiment.mode}
    options = values_of(experiment)
    del options["name"], options["results"]
    versions, space = facts.get("versions"), facts.get("space", {})
    code = {"sha256 of the space's file": space.get("sha256", ""), "git commit": facts.get("git_commit", "")}
    known = versions.items() if isinstance(versions, dict) else ()
    code |= {f"version of {name}": version for name, version in islice(known, MOST_NAMES)}
    return {name[:MOST_TEXT]: _text(value) for name, value in (options | code).items()}


def _parameters(facts: dict[str, Any]) -> dict[str, str]:
    """Returns the space's parameters with their ranges, and its constants, as text."""
    space = facts.get("space", {})
    ranges = {name: _range(domain) for name, domain in islice(space.get("params", {}).items(), MOST_NAMES)}
    constants = {
        name: f"always {_text(v)}" for name, v in islice(flat_parameters(space.get("constants", {})), MOST_NAMES)
    }
    return {name[:MOST_TEXT]: text[:MOST_TEXT] for name, text in (constants | ranges).items()}


def _range(domain: Any) -> str:
    """Describes a domain of experiment.json: `loguniform 0.0001 to 0.1`, `choice of 8, 16, 32`."""
    if not isinstance(domain, dict):
        return _text(domain)
    branches = domain.get("branches")
    if isinstance(branches, list):
        return " or ".join(_plain(each) if isinstance(each, dict) else _text(each) for each in branches[:MOST_NAMES])
    return _plain(domain)


def _plain(domain: dict[str, Any]) -> str:
    kind, values = _text(domain.get("kind", "")), domain.get("values")
    if isinstance(values, list):
        return f"{kind} of {_listed(values)}"
    ends = [_text(domain[end]) for end in ("lower", "upper") if end in domain]
    step = f", in steps of {_text(domain['q'])}" if "q" in domain else ""
    return f"{kind} {' to '.join(ends)}{step}".strip()


def _listed(values: Iterable[Any]) -> str:
    texts, length = [], 0
    for value in values:
        texts.append(_text(value))
        length += len(texts[-1])
        if length > MOST_TEXT:
            return ", ".join(texts)[: MOST_TEXT - 40] + " ..."
    return ", ".join(texts)


def _text(value: Any) -> str:
    """Formats an option's value; a text beyond MOST_TEXT characters is cut and ends in `...`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float, str)):
        text = formatted(value)
    else:
        text = json.dumps(value, default=str)
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."
