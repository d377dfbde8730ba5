"""Formats parameters and numbers as text, and escapes the texts of figures, because Plotly reads them as HTML.

Every text that a figure shows from an experiment's folder passes through `escaped` or `tick`, including the names of
nodes and categories.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from tuner.errors import printable
from tuner.record.records import TrialRecord, kept
from tuner.record.report_keys import SPEED, USAGE

# Colours of Okabe and Ito (2008), which readers with any colour blindness can tell apart, on a light and a dark page.
BEST_COLOR = "#e69f00"  # the winner's colour in every figure
MAIN_COLOR, GRAY, STOP_COLOR = "#2f86c8", "#8b93a7", "#d55e00"
OPEN_COLOR = "#cc79a7"  # what was interrupted or is unknown
GROUPS = {  # status -> legend name, colour, opacity; drawn in this order, the last one on top
    "pruned": ("pruned", GRAY, 0.45),
    "failed": ("failed", STOP_COLOR, 0.8),
    "interrupted": ("interrupted", OPEN_COLOR, 0.8),
    "paused": ("paused", "#009e73", 0.45),
    "running": ("running", "#009e73", 0.9),
    "completed": ("completed", MAIN_COLOR, 0.85),
}
MOST_NAME = 200  # characters of a nested name: a million values under one long name would repeat it a million times
MOST_PARAMETERS = 12  # a hover box with more covers the curves


def trials(count: int) -> str:
    """The number of trials in words: `1 trial`, `2 trials`."""
    return counted(count, "trial")


def counted(count: int, noun: str) -> str:
    """A number of things in words: `1 epoch`, `2 epochs`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


@kept
def label_of(trial: TrialRecord) -> str:
    """Returns the hover text of a trial, escaped: its id, its status, and its first MOST_PARAMETERS parameters."""
    lines = [f"trial {trial.id}, {trial.status}"]
    lines += [f"{name} {formatted(value)}" for name, value in islice(flat_parameters(trial.config), MOST_PARAMETERS)]
    return "<br>".join(escaped(line, 80) for line in lines)


def formatted(value: Any) -> str:
    """Formats a float with five significant digits, as the page's `number` does, and any other value by `str`.

    Metrics and parameters look the same in the terminal, in figures and on the page: 0.12346, 123460, 1e+300.
    """
    return f"{float(f'{value:.5g}'):.15g}" if isinstance(value, float) else str(value)


def escaped(text: str, length: int = sys.maxsize) -> str:
    """Returns the text on one line with HTML escaped; a text beyond `length` characters is cut and ends in `...`."""
    line = printable(" ".join(text.split()))
    return html.escape(line if len(line) <= length else line[: length - 3] + "...")


def tick(text: str, length: int) -> str:
    """Returns the text for an axis tick: one line of at most `length` characters without `<`, `>` and `&`.

    Plotly reads some tick texts as HTML and others as plain text, so these three characters are replaced, not escaped.
    """
    line = printable(" ".join(text.split())).translate(str.maketrans("<>&", "\u2039\u203a+"))
    return line if len(line) <= length else line[: length - 3] + "..."


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Flattens nested parameters: `{"a": {"b": 1}}` -> `{"a/b": 1}`."""
    return dict(flat_parameters(config))


def flat_parameters(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the flattened names and values of a trial's parameters one by one; nested names are cut at MOST_NAME.

    It is a generator, so that a caller who needs the first few does not flatten all: 16 MB hold a million parameters.
    """
    levels = [("", iter(config.items()))]  # a stack instead of recursion: a value may be nested hundreds of levels
    while levels:
        above, items = levels[-1]
        for name, value in items:
            name = f"{above}{name}"[:MOST_NAME] if above else name
            if _is_nested(value):
                levels.append((f"{name}/"[:MOST_NAME], iter(value.items())))
                break
            yield name, value
        else:
            levels.pop()


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict) and not (len(value) == 1 and "grid_search" in value)


def figures(metrics: dict[str, Any], metric: str = "") -> str:
    """Formats the finite numbers among the metrics: `loss 1.2345, accuracy 0.5612`.

    Leaves out resource usage and training speed, unless one of them is the metric of the search.
    """
    hidden = (USAGE | SPEED) - {metric}
    shown = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
        if name not in hidden
    }
    return ", ".join(f"{name} {formatted(value)}" for name, value in shown.items())


def setting(config: dict[str, Any]) -> str:
    """Formats a trial's parameters in one line: `l1 64, lr 0.00123, batch_size 8`."""
    return ", ".join(f"{n} {v:.6g}" if isinstance(v, float) else f"{n} {v}" for n, v in flat(config).items())
