"""Texts of figures: settings and numbers as a person reads them, escaped for Plotly, which reads texts as HTML.

Every text of a folder that a figure shows passes through `escaped` or `tick`, names of nodes and categories too.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from tuner.errors import printable
from tuner.record.columns import USAGE
from tuner.record.kept import kept
from tuner.record.records import PACE, TrialRecord

BEST_COLOR = "#f08c00"  # the winner, in every figure; seen on a light and on a dark page
MAIN_COLOR, GRAY, STOP_COLOR = "#4c8bf5", "#8b93a7", "#d9534f"
GROUPS = {  # status -> name in the legend, colour, opacity; drawn in this order, the last on top
    "pruned": ("pruned", GRAY, 0.45),
    "failed": ("failed", STOP_COLOR, 0.8),
    "interrupted": ("interrupted", "#b58900", 0.8),
    "running": ("running", "#2aa198", 0.9),
    "completed": ("trained to the end", MAIN_COLOR, 0.85),
}
MOST_NAME = 200  # characters of a nested name: a million values below a long one would repeat it
MOST_PARAMETERS = 12  # a hover box with more covers the curves


@kept
def label_of(trial: TrialRecord) -> str:
    """What hovering a trial shows: its id, status and setting, a parameter a line, escaped."""
    lines = [f"trial {trial.id}, {trial.status}"]
    lines += [f"{name} {shown(value)}" for name, value in islice(leaves(trial.config), MOST_PARAMETERS)]
    return "<br>".join(escaped(line, 80) for line in lines)


def shown(value: Any) -> str:
    """A float in five digits, anything else as it is."""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def escaped(text: str, length: int) -> str:
    """The text in one line of at most `length` characters, the rest `...`, with HTML's characters as entities."""
    line = printable(" ".join(text.split()))
    return html.escape(line if len(line) <= length else line[: length - 3] + "...")


def tick(text: str, length: int) -> str:
    """As `escaped`, for Plotly's tick texts, some of which are read as HTML and some not: no character of HTML's."""
    line = printable(" ".join(text.split())).translate(str.maketrans("<>&", "\u2039\u203a+"))
    return line if len(line) <= length else line[: length - 3] + "..."


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a/b": 1}`."""
    return dict(leaves(config))


def leaves(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parameters of a recorded setting one by one, as `flat` has them: names may be any, and long ones are cut.

    Whoever wants the first few pays for no more: a setting of 16 MB holds a million.
    """
    levels = [("", iter(config.items()))]  # no calls: a value may be nested hundreds of levels
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
    """Shows the finite numbers among the metrics: `loss 1.2345, accuracy 0.5612`.

    Leaves out the figures of the machine and of the training's pace, except for the metric of the search.
    """
    hidden = (USAGE | PACE) - {metric}
    shown = {
        name: value
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
        if name not in hidden
    }
    return ", ".join(f"{name} {value:.4f}" for name, value in shown.items())


def setting(config: dict[str, Any]) -> str:
    """`l1 64, lr 0.00123, batch_size 8`"""
    return ", ".join(f"{n} {v:.6g}" if isinstance(v, float) else f"{n} {v}" for n, v in flat(config).items())
