"""The colours and ranges of figures: one colour scale from the best value to the worst, and axes without outliers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from textwrap import wrap
from typing import Any, NamedTuple

from tuner.record.records import sign_of
from tuner.views.labels import escaped, tick

# Viridis without its ends, which are hard to see on a white or a black page. Its lightness changes evenly, and readers
# with any colour blindness can tell its colours apart. The best value gets the first colour; `look.js` reverses the
# scale on a dark page, so that the best value always contrasts most with the page.
VIRIDIS = ("#414487", "#355f8d", "#2a788e", "#21918c", "#22a884", "#44bf70", "#7ad151", "#bddf26")
FENCE = 10  # an outlier is farther from the best value than FENCE times the median
GAIN = 3  # the whole axis must be GAIN times as long as the clipped one; else clipping gains little
LEAST_VALUES = 12  # with fewer values, none counts as an outlier
NUM_TICKS = 5
LEAST_DIGITS, MOST_DIGITS = 4, 15  # of a tick's text; more than 15 are those of rounding errors


def empty_figure(text: str) -> dict[str, Any]:
    """Returns a figure without data that shows a sentence, which is not escaped, instead."""
    lines = "<br>".join(wrap(escaped(text), 60))
    note = {"text": lines, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    axis = {"visible": False}
    layout = {"annotations": [note], "xaxis": axis, "yaxis": axis, "height": 140, "meta": {"text": tick(text, 400)}}
    return {"data": [], "layout": layout}


class Range(NamedTuple):
    """The range of an axis without outliers. `outside` of `total` values are beyond `end`, the worst value kept."""

    low: float
    high: float
    end: float
    outside: int
    total: int


def clipped(values: Iterable[float], mode: str, weights: Sequence[float] | None = None) -> Range | None:
    """Returns the range that leaves out outliers on the worst side; None if there are none, or too few values.

    The best value is always inside. `weights` say how much each value counts for the median; by default all are equal.
    """
    sign = sign_of(mode)
    pairs = sorted(zip((sign * value for value in values), weights, strict=True)) if weights else None
    losses = [loss for loss, _ in pairs] if pairs else sorted(sign * value for value in values)
    if len(losses) < (2 if pairs else LEAST_VALUES):
        return None
    middle = len(losses) // 2
    if pairs:
        sums = list(accumulate(weight for _, weight in pairs))
        middle = min(bisect_right(sums, sums[-1] / 2), len(losses) - 1)
    best, median = losses[0], losses[middle]
    fence = best + FENCE * (median - best)
    kept = bisect_right(losses, fence)
    if not math.isfinite(fence) or median <= best or kept == len(losses):
        return None
    worst = losses[kept - 1]
    if losses[-1] - best < GAIN * (worst - best):
        return None
    margin = 0.06 * (worst - best)
    low, high = sorted((sign * (best - margin), sign * (worst + margin)))
    return Range(low, high, sign * worst, len(losses) - kept, len(losses))


def within_range(values: list[float], within: Range | None, mode: str) -> list[float]:
    """Returns the values, each outlier replaced by the end of the range."""
    if within is None:
        return values
    return [min(value, within.end) if mode == "min" else max(value, within.end) for value in values]


def value_axis(title: str, within: Range | None) -> dict[str, Any]:
    """Returns the layout of an axis of the metric; its title says where the axis is clipped. `title` is not escaped."""
    if within is None:
        return {"title": {"text": escaped(title, 60)}}
    return {"title": {"text": f"{escaped(title, 60)} ({beyond(within)})"}, "range": [within.low, within.high]}


def beyond(within: Range) -> str:
    """Says in words where an axis ends: `clipped at 4.2`."""
    return f"clipped at {within.end:.4g}"


def unclipped(title: str, within: Range | None, axis: str = "yaxis") -> dict[str, Any]:
    """Returns the part of a figure's `meta` with which a page shows the whole axis; empty if nothing is clipped."""
    return {"clipped": {"axis": axis, "title": escaped(title, 60)}} if within else {}


def ticks_between(low: float, high: float) -> tuple[list[float], list[str]]:
    """Returns NUM_TICKS even ticks, and their texts with as few digits as tell them apart, but at least four.

    Plotly's own texts have all digits of the ends of an axis: 726.8556795M.
    """
    ticks = [low + (high - low) * i / (NUM_TICKS - 1) for i in range(NUM_TICKS)] if high > low else [low]
    for digits in range(LEAST_DIGITS, MOST_DIGITS + 1):
        texts = [f"{tick:.{digits}g}" for tick in ticks]
        if len(set(texts)) == len(texts):
            break
    return ticks, texts


def color_axis(values: Sequence[float], mode: str, title: str) -> dict[str, Any]:
    """Returns Plotly's `coloraxis` for the values; its bar marks the best end, and where outliers share a colour."""
    within = clipped(values, mode)
    low, high = min(values), max(values)
    if within:
        low, high = (low, within.end) if mode == "min" else (within.end, high)
    ticks, texts = ticks_between(low, high)
    best, worst = (0, -1) if mode == "min" else (-1, 0)
    if within:
        texts[worst] += " or worse"
    texts[best] += " (best)"
    bar = {"title": {"text": escaped(title, 24)}, "tickvals": ticks, "ticktext": texts}
    scale = [[i / (len(VIRIDIS) - 1), color] for i, color in enumerate(VIRIDIS)]
    return {
        "colorscale": scale, "reversescale": mode == "max", "cmin": low, "cmax": high if high > low else low + 1,
        "colorbar": bar,
    }  # fmt: skip
