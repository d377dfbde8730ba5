"""Constraints on reported metrics, and Aim: all that decides which report, trial or setting is the better one.

Constraints are compared by the rules of Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II"
(2002): what breaks none is better than what breaks one, and of two that break one, the smaller violation is better.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from tuner.errors import RequestError
from tuner.spec.metrics import Goal, check_modes, finite
from tuner.spec.option_values import option, rows_of

WRITTEN = re.compile(r"\s*(.+?)\s*(<=|>=)\s*(\S+)(?:\s+at\s+(start|end))?\s*", re.ASCII)


BREAKS = "breaks a constraint"  # begins the reason of a trial that was stopped for it


class Constraint(NamedTuple):
    """A limit on a reported metric; with `at` "start", the first report that breaks it ends the trial."""

    metric: str
    bound: Literal["<=", ">="]
    limit: float
    at: Literal["start", "end"] = "end"

    def __str__(self) -> str:
        return f"{self.metric} {self.bound} {self.limit:.10g}{' at start' * (self.at == 'start')}"

    def excess(self, metrics: Mapping[str, Any]) -> float | None:
        """Returns by how much a report breaks the limit, relative to the limit; at most 0 if it does not.

        None if the report lacks the metric; infinity if the metric is NaN or infinite.
        """
        if (given := metrics.get(self.metric)) is None:
            return None
        if (value := finite(given)) is None:
            return math.inf
        return (value - self.limit) * (1 if self.bound == "<=" else -1) / (abs(self.limit) or 1)

    def broken_by(self, metrics: Mapping[str, Any]) -> str:
        """Says how a report breaks the limit: `size_mb is 12.5, not <= 10`; empty if it does not."""
        if (self.excess(metrics) or 0) <= 0:
            return ""
        value = metrics[self.metric]
        shown = f"{value:.10g}" if finite(value) is not None else value
        return f"{self.metric} is {shown}, not {self.bound} {self.limit:.10g}"


def constraint_of(text: str) -> Constraint:
    """Reads `size_mb <= 10` or `size_mb <= 10 at start`; raises a RequestError if the text is something else."""
    if matched := WRITTEN.fullmatch(text):
        name, bound, number, at = matched.groups()
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if math.isfinite(limit):
            return Constraint(name, bound, limit, at or "end")  # type: ignore[arg-type]
    raise RequestError(
        f"--constraint {text[:50]!r}: write it as 'size_mb <= 10' or 'accuracy >= 0.9', with <= or >= and a "
        f"number; add 'at start' to end a trial at its first report that breaks it"
    )


class Point(NamedTuple):
    """What counts of a report: by how much it breaks the constraints (0 = not at all), and its metrics as losses."""

    violation: float
    losses: tuple[float, ...]

    def covers(self, other: Point) -> bool:
        """Whether this point is at least as good as the other one in everything."""
        if self.violation != other.violation:
            return self.violation < other.violation
        return all(own <= loss for own, loss in zip(self.losses, other.losses, strict=True))


class Aim(NamedTuple):
    """The metrics to optimize and the constraints to keep. The first metric is the one that figures show."""

    goals: tuple[Goal, ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def simple(self) -> bool:
        """Whether there is one metric and no constraint."""
        return len(self.goals) == 1 and not self.constraints

    @property
    def several(self) -> bool:
        return len(self.goals) > 1

    @property
    def named(self) -> str:
        """The metrics in words."""
        return " and ".join(goal.metric for goal in self.goals)

    def values(self, metrics: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Returns a report's value of each goal, finite or not; None if it lacks one."""
        values = tuple(goal.value(metrics) for goal in self.goals)
        return None if None in values else values

    def first_not(self, fits: Callable[[Any], Any], compared: Goal, metrics: Mapping[str, Any]) -> tuple[str, Any]:
        """Returns the first metric that the rules compare whose value does not fit, and the value."""
        goals = self.goals if self.several else (compared,)
        unfit = next((goal for goal in goals if fits(goal.value(metrics)) in (None, False)), goals[0])
        return unfit.metric, unfit.value(metrics)

    def losses(self, metrics: Mapping[str, Any]) -> tuple[float, ...] | None:
        """Returns a report's metrics with such signs that smaller is better; None if one is missing or not finite."""
        values = [finite(goal.value(metrics)) for goal in self.goals]
        found = tuple(goal.sign * each for goal, each in zip(self.goals, values, strict=True) if each is not None)
        return found if len(found) == len(values) else None

    def violation(self, metrics: Mapping[str, Any], unknown: float = 0.0) -> float:
        """Returns the sum of what a report exceeds the limits by; `unknown` counts for a metric that it lacks."""
        excesses = (constraint.excess(metrics) for constraint in self.constraints)
        return sum(unknown if each is None else max(0.0, each) for each in excesses)

    def point(self, metrics: Mapping[str, Any]) -> Point | None:
        losses = self.losses(metrics)
        return None if losses is None else Point(self.violation(metrics), losses)

    def improved(self, best: Any, metrics: Mapping[str, Any]) -> tuple[bool, Any]:
        """Whether no earlier report of a trial is at least as good as this one; returns also the `best` with this one.

        `best` is what was returned for the report before, and math.inf at first: the least loss, or if the aim is not
        simple, the points that no other one covers. The last report that improved stands for its trial.
        """
        if self.simple:
            value = finite(self.goals[0].value(metrics))
            loss = math.inf if value is None else self.goals[0].sign * value
            return loss < best, min(loss, best)
        point = self.point(metrics)
        front = [Point(*each) for each in (best if isinstance(best, list) else ())]
        if point is None or any(each.covers(point) for each in front):
            return False, best
        # Checkpoints keep it, and `torch.load` with weights_only=True reads plain tuples only.
        return True, [tuple(each) for each in front if not point.covers(each)] + [tuple(point)]

    def broken_by(self, metrics: Mapping[str, Any], at: str = "") -> str:
        """Says which constraints a report breaks, of all or of those `at` the start; empty if it breaks none."""
        checked = (each.broken_by(metrics) for each in self.constraints if not at or each.at == at)
        return " and ".join(filter(None, checked))


def written(constraints: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the constraints of a dict, metric -> limit or limits, as --constraint has them."""
    each = ((name, limit if isinstance(limit, (list, tuple)) else [limit]) for name, limit in constraints.items())
    return tuple(f"{name} {limit}" for name, limits in each for limit in limits)


def aim_of(metric: str | tuple[str, ...], mode: str | tuple[str, ...], constraints: Iterable[str]) -> Aim:
    """Builds the aim of a search; raises a RequestError for a wrong name, mode or constraint."""
    metrics, modes = (each if isinstance(each, tuple) else (each,) for each in (metric, mode))
    if "" in metrics or not metrics:
        raise RequestError("--metric '': give the name of a reported metric")
    if wrong := [each for each in modes if each not in ("min", "max")]:
        raise RequestError(f"--mode {wrong[0]}: must be one of min, max")
    # A space's metrics may still come without its modes here; `check_aim` has both.
    goals = (Goal(each, modes[number] if number < len(modes) else "min") for number, each in enumerate(metrics))
    return Aim(tuple(goals), tuple(map(constraint_of, constraints)))


def check_aim(options: Any) -> None:
    """Raises a RequestError if the modes do not match the metrics, or if another option does not work with the aim."""
    aim, metric, mode, rows = options.aim, options.metric, options.mode, rows_of(type(options))  # type: ignore[arg-type]
    learn = rows["searcher"].several or ()  # the searchers that a constraint does not mislead
    metrics = [goal.metric for goal in aim.goals]
    number = len(mode) if isinstance(mode, tuple) else 1
    if number != len(metrics):
        need = f"--metric has {len(metrics)}; give one mode for each"
        raise RequestError(f"--mode {' '.join(mode) if number > 1 else mode}: {need}")
    if len(set(metrics)) < len(metrics):
        raise RequestError(f"--metric {' '.join(metric)}: names a metric twice; leave one out")
    if aim.several:
        for name, allowed in ((name, row.several) for name, row in rows.items() if row.several is not None):
            value = getattr(options, name)
            if value and value not in allowed:
                shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
                works = f"give one of {', '.join(allowed)}" if allowed else "leave it out"
                given = f"{option(name)} {shown}"
                raise RequestError(f"{given}: does not work with several metrics ({', '.join(metrics)}); {works}")
    elif aim.constraints and options.searcher not in learn:
        raise RequestError(
            f"--constraint {str(aim.constraints[0])!r}: --searcher {options.searcher} does not learn what breaks it; "
            f"give one of {', '.join(learn)}"
        )
    check_modes(aim.goals[0], options.prune_by, options.prune_mode)
