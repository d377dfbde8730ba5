"""Warnings about the searched metric: a mode that contradicts its name, and values that compare nothing."""

from __future__ import annotations

import re

LARGER = {"accuracy", "acc", "auc", "f1"}  # words of the names of metrics of which larger is better
SMALLER = {"loss", "error", "perplexity"}
NEGATED = {"neg", "negative", "minus"}  # as in neg_log_loss, of which larger is better


def wrong_mode(metric: str, mode: str) -> str:
    """Says that a metric's name contradicts the mode; empty if it does not, or if the name says nothing certain."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+", metric)}
    usual = {"max"} if words & LARGER else set()
    usual |= {"min"} if words & SMALLER else set()
    if words & NEGATED or len(usual) != 1 or mode in usual:
        return ""
    better = "larger" if mode == "max" else "smaller"
    return f"mode is {mode}, so a {better} {metric} counts as better; if that is wrong, give --mode {usual.pop()}"


def all_diverged(trials: str, metric: str) -> str:
    """Says that all of some trials diverged, such as `the first 8 trials`."""
    return (
        f"{trials} all diverged: their {metric} became NaN or infinite. More such trials will not help: look for NaN "
        f"in the data, the model and the loss, and search smaller learning rates"
    )


def one_value(trials: str, metric: str, value: float) -> str:
    """Says that all of some trials reported the same value in every epoch."""
    return (
        f"{trials} reported the same {metric}, {value:.5g}, in every epoch, so none is better than another: check that "
        f"it depends on the parameters and on the training"
    )
