"""The colours and labels of figures, and how their texts are escaped, because Plotly reads them as HTML.

Every text that a figure shows from an experiment's folder passes through `escaped` or `tick`, including the names of
nodes and categories.
"""

from __future__ import annotations

import html
import sys
from itertools import islice

from tuner.errors import printable
from tuner.record.records import TrialRecord, kept
from tuner.record.texts import flat_parameters, formatted

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
MOST_PARAMETERS = 12  # a hover box with more covers the curves


@kept
def label_of(trial: TrialRecord) -> str:
    """Returns the hover text of a trial, escaped: its id, its status, and its first MOST_PARAMETERS parameters."""
    lines = [f"trial {trial.id}, {trial.status}"]
    lines += [f"{name} {formatted(value)}" for name, value in islice(flat_parameters(trial.config), MOST_PARAMETERS)]
    return "<br>".join(escaped(line, 80) for line in lines)


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
