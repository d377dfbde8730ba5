"""Goal: a metric and its direction. Warnings about it: its name contradicts the mode, or its values rank no trials."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tuner.errors import RequestError, nearest

LARGER = {"accuracy", "acc", "auc", "f1", "precision", "recall", "r2", "reward"}  # words in names: larger is better
SMALLER = {"loss", "error", "perplexity", "rmse", "mse", "mae"}  # words in names: smaller is better
MOST_INTEGER = 2**63  # an integer of this size or more makes a decision's line invalid; as a metric it is ignored
NEGATED = {"neg", "negative", "minus"}  # words that reverse the direction: larger neg_log_loss is better


class Goal(NamedTuple):
    """A reported metric and its direction: what the rungs compare, or what the answer is chosen by."""

    metric: str
    mode: str

    @property
    def sign(self) -> int:
        return sign_of(self.mode)

    def value(self, metrics: Mapping[str, Any]) -> Any:
        """Returns a report's value of this metric; None if the report has none."""
        return metrics.get(self.metric)


def sign_of(mode: str) -> int:
    """Returns the factor, 1 or -1, that turns the metric into a loss, so that smaller is always better."""
    return 1 if mode == "min" else -1


def finite(value: Any) -> float | None:
    """Returns the value if it is a finite number, else None. Booleans and integers beyond +-2**63 also give None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if is_number(value) and -MOST_INTEGER < value < MOST_INTEGER else None


def finite_all(value: Any) -> Any:
    """Returns a finite value, or a tuple of values that are all finite; else None."""
    if isinstance(value, tuple):
        return None if None in map(finite, value) else value
    return finite(value)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def keeps_last(compared: Goal, wanted: Goal, metrics: Mapping[str, Any]) -> bool:
    """Whether a report has the wanted metric without the compared one, of which the trial's last value then counts."""
    return compared.value(metrics) is None and wanted.value(metrics) is not None


def check_modes(wanted: Goal, prune_by: str, prune_mode: str) -> None:
    """Raises a RequestError if --prune-mode has no metric, or contradicts the mode of the same metric."""
    if prune_by in ("", wanted.metric) and prune_mode != (wanted.mode if prune_by else "min"):
        why = "there is no --prune-by; leave it out, or add --prune-by METRIC"
        if prune_by:
            why = f"--prune-by {prune_by} is also the metric, whose --mode is {wanted.mode}; give that"
        raise RequestError(f"--prune-mode {prune_mode}: {why}")


def reached(limits: Mapping[str, float], goals: Iterable[Goal], report: Mapping[str, Any]) -> str:
    """Returns which limit a report reaches: `loss reached 0.1 (--stop loss=0.1)`; other metrics have max."""
    modes = dict(goals)
    for name, limit in limits.items():
        value, least = report.get(name), modes.get(name, "max") == "max"
        if isinstance(value, (int, float)) and (value >= limit if least else value <= limit):
            return f"{name} reached {value:g} (--stop {name}={limit:g})"
    return ""


def wrong_mode(metric: str, mode: str, option: str = "--mode") -> str:
    """Returns a warning if a metric's name contradicts its mode; empty if the name fits the mode or suggests none."""
    other = usual_mode(metric)
    if other in ("", mode):
        return ""
    better = "larger" if mode == "max" else "smaller"
    return f"{option[2:]} is {mode}, so a {better} {metric} counts as better; if that is wrong, give {option} {other}"


def usual_mode(metric: str) -> str:
    """Returns the direction that a metric's name suggests, min or max; empty if it suggests none or both."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+", metric)}
    usual = {"max"} if words & LARGER else set()
    usual |= {"min"} if words & SMALLER else set()
    return "" if words & NEGATED or len(usual) != 1 else usual.pop()


def all_diverged(trials: str, metric: str) -> str:
    """Returns a warning that each of these trials diverged; `trials` names them, such as `the first 8 trials`."""
    return (
        f"{trials} all diverged: their {metric} became NaN or infinite. More such trials will not help: look for NaN "
        f"in the data, the model and the loss, and search smaller learning rates"
    )


def one_value(trials: str, metric: str, value: float) -> str:
    """Returns a warning that all epochs of all these trials had the same value; `trials` names the trials."""
    return (
        f"{trials} reported the same {metric}, {value:.5g}, in every epoch, so none is better than another: check that "
        f"it depends on the parameters and on the training"
    )


def advice_without(prune_by: str) -> str:
    """Returns what to do if reports lack the compared metric, which --prune-by may have named."""
    return f"; give one of these, or report it{'' if prune_by else ', or add --prune-by with one of these'}"


def without_metric(trials: str, metric: str, known: Collection[str]) -> str:
    """Returns a warning that these trials completed without a finite value; `known` has the metrics of any trials."""
    hint = "" if metric in known else nearest(metric, known)
    needs = "which an answer needs" + (hint or "; report it as a finite number, at the latest in a trial's last report")
    return f"{trials} completed without a finite {metric!r}, {needs}"
