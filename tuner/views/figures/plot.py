"""What all figures share: colours, escaped texts, traces and layouts of Plotly's schema, and axes without outliers.

A figure is a dictionary of Plotly's schema, made without importing plotly. Plotly reads texts as HTML, so every text
from an experiment's folder passes through `escaped` or `tick`, including the names of nodes and categories.

In a trace that shows trials, `customdata` has each point's trial, and `meta` names what the trace shows. The layout's
`meta` has `text`, a description in words, and, if an axis leaves out outliers, `clipped`: the axis and its full title.
"""

from __future__ import annotations

import html
import math
import sys
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice, repeat
from textwrap import wrap
from typing import Any, NamedTuple

from tuner.errors import printable
from tuner.record.records import TrialRecord, kept
from tuner.record.texts import flat_parameters, formatted
from tuner.spec.metrics import sign_of

Figure = dict[str, Any]
Point = tuple[Any, ...]  # x, y, and optionally the trial's id and the hover text
BEYOND = "beyond"  # the `meta` of marks for values beyond a clipped axis; `look.js` leaves them out of a whole axis
GAP: Point = (None, None, None, "")
# Okabe and Ito's colours (2008) for colour-blind readers, except MAIN_COLOR and GRAY; for a light and a dark page.
BEST_COLOR = "#e69f00"  # the winner's colour in every figure
MAIN_COLOR, GRAY, STOP_COLOR = "#2f86c8", "#8b93a7", "#d55e00"
OPEN_COLOR = "#cc79a7"  # the colour of interrupted trials and unknown outcomes
GROUPS = {  # status -> legend name, colour, opacity; drawn in this order, the last one on top
    "pruned": ("pruned", GRAY, 0.45),
    "diverged": ("diverged", STOP_COLOR, 0.45),
    "failed": ("failed", STOP_COLOR, 0.8),
    "interrupted": ("interrupted", OPEN_COLOR, 0.8),
    "paused": ("paused", "#009e73", 0.45),
    "running": ("running", "#009e73", 0.9),
    "completed": ("completed", MAIN_COLOR, 0.85),
}
# Viridis without its ends, which are hard to see on a white or a black page. The best value gets the first colour;
# `look.js` reverses the scale on a dark page, so that the best value always contrasts most with the page.
VIRIDIS = ("#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26")
LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0}
MAX_HOVER_LINES = 12  # maximum parameters in a hover box; a longer box covers the curves
FENCE = 10  # an outlier is more than FENCE times as far from the best value as the median is
GAIN = 3  # an axis is clipped only if it is at least GAIN times as long as the clipped axis would be
LEAST_VALUES = 12  # with fewer values (2 if they have weights), none counts as an outlier
NUM_TICKS = 5
MOST_ROUNDED = 1e308  # an end beyond it could be rounded to infinity
MAX_TICK_STEPS = 1e15  # a range this far from zero, in steps of its ticks, gets ticks at its ends only
LEAST_DIGITS, MOST_DIGITS = 4, 17  # significant digits of a tick's text; 17 tell any two floats apart


def escaped(text: str, length: int = sys.maxsize) -> str:
    """Returns the text on one line with HTML escaped; a text beyond `length` characters is cut and ends in `...`."""
    return html.escape(cut(printable(" ".join(text.split())), length))


def tick(text: str, length: int) -> str:
    """Returns a text for a tick; replaces `<`, `>` and `&`, because Plotly may read it as HTML or as plain text."""
    return cut(printable(" ".join(text.split())).translate(str.maketrans("<>&", "\u2039\u203a+")), length)


def cut(line: str, length: int) -> str:
    return line if len(line) <= length else line[: length - 3] + "..."


@kept
def label_of(trial: TrialRecord) -> str:
    """Returns the hover text of a trial, escaped: its id, its status, and its first MAX_HOVER_LINES parameters."""
    lines = [f"trial {trial.id}, {trial.shown_status}"]
    lines += [f"{name} {formatted(value)}" for name, value in islice(flat_parameters(trial.config), MAX_HOVER_LINES)]
    return "<br>".join(escaped(line, 80) for line in lines)


def points(mode: str, rows: Iterable[Point], **look: Any) -> Figure:
    """Returns a trace of points or lines; a line ends at a GAP."""
    columns: Figure = dict(zip(("x", "y", "customdata", "text"), map(list, zip(*rows, strict=False)), strict=False))
    if "customdata" in columns:
        columns["customdata"] = [None if trial is None else escaped(trial) for trial in columns["customdata"]]
    return {"type": "scatter", "mode": mode, "x": [], **columns, **look}


def lines(mode: str, curves: Iterable[Iterable[Point]], color: str, width: float, size: float, **look: Any) -> Figure:
    """Returns one trace with all curves, because one trace per trial would be slow with some hundreds of trials."""
    own = {
        "line": {"color": color, "width": width}, "marker": {"color": color, "size": size},
        "hovertemplate": "%{text}<br>epoch %{x}: %{y:.5g}<extra></extra>",
    }  # fmt: skip
    return points(mode, [row for curve in curves for row in (*curve, GAP)], **own | look)


def figure(
    traces: Iterable[Figure],
    text: str,
    *,
    clip: tuple[str, Range | None] | None = None,
    axis: str = "yaxis",
    scales: Mapping[str, str] | None = None,
    **layout: Any,
) -> Figure:
    """Returns a figure of the non-empty traces; `text` is its description, `clip` the metric axis's title and range.

    `scales` maps the axes whose positions are no values to what they are: `log` (log10 of the value), or `names` (the
    number of the tick). The page needs it to save the values.
    """
    if clip:
        layout = {axis: value_axis(*clip)} | layout
    clipping = {"clipped": {"axis": axis, "title": escaped(clip[0], 60)}} if clip and clip[1] else {}
    drawn = [trace for trace in traces if trace.get("x") != []]
    return {
        "data": drawn,
        "layout": {"hovermode": "closest", **layout, "meta": {"text": text, "scales": scales or {}, **clipping}},
    }


def titled(text: str, **more: Any) -> Figure:
    return {"title": {"text": text}, **more}


def axis_of(name: str, length: int, **more: Any) -> Figure:
    """Returns the layout of the axis of a parameter or metric; numbers of bytes read 264MB."""
    units = {"tickformat": ".3~s", "ticksuffix": "B"} if name.endswith("_bytes") and "tickvals" not in more else {}
    return titled(escaped(name, length), **units, **more)


def empty_figure(text: str) -> Figure:
    """Returns a figure that shows a sentence instead of data; escapes the sentence."""
    lines = "<br>".join(wrap(escaped(text), 60))
    note = {"text": lines, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    axis = {"visible": False}
    layout = {"annotations": [note], "xaxis": axis, "yaxis": axis, "height": 140, "meta": {"text": tick(text, 400)}}
    return {"data": [], "layout": layout}


class Range(NamedTuple):
    """The range of an axis without outliers; `end` is the worst value that is no outlier."""

    low: float
    high: float
    end: float


def clipped(values: Iterable[float], mode: str, weights: Sequence[float] | None = None) -> Range | None:
    """Returns an axis's range without bad outliers, or None if it is hardly shorter; `weights` weight the median.

    Without a mode, which values are bad is unknown, and the range has all.
    """
    if not mode:
        return None
    sign = sign_of(mode)
    pairs = sorted(zip((sign * value for value in values), weights or repeat(1.0), strict=False))
    if len(pairs) < (2 if weights else LEAST_VALUES):
        return None
    losses, sums = [loss for loss, _ in pairs], list(accumulate(weight for _, weight in pairs))
    best, median = losses[0], losses[min(bisect_right(sums, sums[-1] / 2), len(losses) - 1)]
    fence = best + FENCE * (median - best)
    kept = bisect_right(losses, fence)
    if not math.isfinite(fence) or median <= best or kept == len(losses):
        return None
    worst = losses[kept - 1]
    if losses[-1] - best < GAIN * (worst - best):
        return None
    margin = 0.06 * (worst - best)
    low, high = sorted((sign * (best - margin), sign * (worst + margin)))
    return Range(low, high, sign * worst)


def within_range(values: list[float], within: Range | None, mode: str) -> list[float]:
    """Returns the values; replaces each outlier by `within.end`, the worst value that is no outlier."""
    if within is None:
        return values
    return [min(value, within.end) if mode == "min" else max(value, within.end) for value in values]


def value_axis(title: str, within: Range | None) -> Figure:
    """Returns the layout of the metric's axis; escapes `title` and adds where the axis is clipped."""
    if within is None:
        return titled(escaped(title, 60))
    return titled(f"{escaped(title, 60)} (clipped at {within.end:.4g})", range=[within.low, within.high])


def ticks_between(low: float, high: float) -> tuple[list[float], list[str]]:
    """Returns the two ends and round ticks between them, and texts with just enough digits to differ.

    The ends are always ticks, because they say what the best and the worst value is. A round tick is left out if it
    would stand closer to an end than half of the ticks' distance.
    """
    if not high > low:
        return [low], [f"{low:.{LEAST_DIGITS}g}"]
    rough = 0.9 * (high - low) / (NUM_TICKS - 1)  # 0.9: a range of 1.0001 has the ticks of a range of 1
    power = 10.0 ** math.floor(math.log10(rough)) if 0 < rough < math.inf else math.nan
    step = next((n * power for n in (1, 2, 2.5, 5, 10) if n * power >= rough), math.nan)
    ticks = shown = [low, high]
    if math.isfinite(step) and max(-low, high) < MOST_ROUNDED:  # else the range overflows or underflows
        steps = range(math.ceil(low / step), math.floor(high / step) + 1) if abs(low / step) < MAX_TICK_STEPS else ()
        ticks = [low, *(n * step for n in steps if low + step / 2 <= n * step <= high - step / 2), high]
        places = 2 - math.floor(math.log10(step))
        shown = [round(tick, places) + 0.0 for tick in ticks]  # an end at -1.4e-05 of 0..1 is 0
    for digits in range(LEAST_DIGITS, MOST_DIGITS + 1):
        texts = [f"{value:.{digits}g}" for value in shown]
        if len(set(texts)) == len(texts):
            break
    return ticks, texts


def color_axis(values: Sequence[float], mode: str, title: str) -> Figure:
    """Returns Plotly's `coloraxis` for the values; its bar marks the best end, and the end that outliers share.

    Without a mode, no end is the best.
    """
    within = clipped(values, mode)
    low, high = min(values), max(values)
    if within:
        low, high = (low, within.end) if mode == "min" else (within.end, high)
    ticks, texts = ticks_between(low, high)
    best, worst = (0, -1) if mode == "min" else (-1, 0)
    if within:
        texts[worst] += " or worse"
    if mode:
        texts[best] += " (best)"
    return {
        "colorscale": [[i / (len(VIRIDIS) - 1), color] for i, color in enumerate(VIRIDIS)],
        "reversescale": mode == "max",
        "cmin": low,
        "cmax": high if high > low else low + 1,
        "colorbar": titled(escaped(title, 24), tickvals=ticks, ticktext=texts),
    }
