"""Warnings about the searched metric: its name contradicts the mode, or its values (NaN, all equal) rank no trials."""

from __future__ import annotations

import re

LARGER = {"accuracy", "acc", "auc", "f1"}  # words in the names of metrics whose larger values are better
SMALLER = {"loss", "error", "perplexity"}  # words in the names of metrics whose smaller values are better
NEGATED = {"neg", "negative", "minus"}  # words that reverse the direction: larger neg_log_loss is better


def wrong_mode(metric: str, mode: str) -> str:
    """Returns a warning if a metric's name contradicts the mode; empty if the name fits the mode or suggests none."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+", metric)}
    usual = {"max"} if words & LARGER else set()
    usual |= {"min"} if words & SMALLER else set()
    if words & NEGATED or len(usual) != 1 or mode in usual:
        return ""
    better = "larger" if mode == "max" else "smaller"
    return f"mode is {mode}, so a {better} {metric} counts as better; if that is wrong, give --mode {usual.pop()}"


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
