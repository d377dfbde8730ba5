"""Where trials fail: all ended trials over the two parameters that best tell those that failed from the others.

Each way to fail has its own causes. For each, a decision tree of depth 2 (Breiman et al., "Classification and
regression trees", 1984) finds the region with the largest share of such trials. The text names it, unless it may be
chance. The tree of the most frequent way chooses the two parameters.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tuner.core.events import ENDED
from tuner.record.records import TrialRecord, kept
from tuner.record.results import ExperimentRecord
from tuner.record.texts import counted
from tuner.spec.constraints import Aim
from tuner.views.figures import plot
from tuner.views.figures.parameters import MAX_DRAWN, MAX_NAMED, MISSING_SHARE, MISSING_TEXT, Axis, axes_of, label_at

MIN_FAILED = 3  # minimum number of failed trials for a map, of those of one way for its region, and of trials in a leaf
# A region is named if chance explains its failures with at most this probability. It is small because the tree picks
# the worst region of many.
CHANCE = 0.001
SYMBOLS = {  # how a trial failed -> its colour and symbol
    "ran out of memory": (plot.STOP_COLOR, "x"),
    "lost its worker": (plot.STOP_COLOR, "diamond"),
    "raised an error": (plot.STOP_COLOR, "cross"),
    "diverged": (plot.STOP_COLOR, "triangle-up"),
    "broke a constraint": (plot.MAIN_COLOR, "square"),
}
KINDS = {"oom": "ran out of memory", "worker_lost": "lost its worker"}
NUMBER = "number of the ended trial"  # the second axis, if only one parameter differs


class Failing(NamedTuple):
    """The ended trials, how each one failed ("" = it did not), the two axes of the map, and the regions in words."""

    trials: list[TrialRecord]
    outcomes: list[str]
    x: Axis
    y: Axis
    regions: str


def failure_of(trial: TrialRecord, aim: Aim) -> str:
    """Returns how an ended trial failed: a key of SYMBOLS; empty if it did not."""
    if trial.status == "failed":
        return KINDS.get(trial.failure, "raised an error")
    if trial.shown_status == "diverged":
        return "diverged"
    last = {each.metric: trial.last(each.metric) for each in aim.constraints}
    return "broke a constraint" if aim.broken_by(last) else ""


@kept
def failing_of(record: ExperimentRecord) -> Failing | None:
    """Finds where trials fail; None if fewer than MIN_FAILED did, if all did, or if no parameter differs."""
    trials = [trial for trial in record.searched if trial.status in ENDED]
    outcomes = [failure_of(trial, record.experiment.aim) for trial in trials]
    ways = Counter(filter(None, outcomes))
    if not MIN_FAILED <= ways.total() < len(trials) or not (axes := axes_of(record, trials)):
        return None
    # The places in the order of values, because scikit-learn refuses a value that overflows a 32-bit float.
    at = np.array([np.unique(axis.filled(MISSING_SHARE), return_inverse=True)[1] for axis in axes]).T
    found = [_region(axes, at, np.array([each == way for each in outcomes]), way) for way, _ in ways.most_common()]
    number = Axis(NUMBER, [float(place) for place in range(len(trials))])
    x, y = [*(axes[each] for each in found[0][0]), number][:2]
    named = " ".join(sentence for _, sentence in found if sentence)
    return Failing(trials, outcomes, x, y, named or "No part of the space stands out.")


def _region(axes: list[Axis], at: Any, failed: Any, way: str) -> tuple[list[int], str]:
    """Returns the axes, the most telling first, and a sentence about the region; it is empty if there is none."""
    from scipy.stats import hypergeom
    from sklearn.tree import DecisionTreeClassifier

    fitted = DecisionTreeClassifier(max_depth=2, min_samples_leaf=MIN_FAILED, random_state=0).fit(at, failed)
    leaves, tree = fitted.apply(at), fitted.tree_
    # One failed and one other trial are added to each leaf, so that few trials do not outweigh many.
    worst = max(np.unique(leaves), key=lambda leaf: (failed[leaves == leaf].sum() + 1) / ((leaves == leaf).sum() + 2))
    inside = leaves == worst
    told: dict[int, set[str]] = {}  # parameter -> on which sides the splits bound it in this leaf
    for node, following in pairwise(fitted.decision_path(at[inside][:1]).indices):
        side = "above" if following == tree.children_left[node] else "below"
        told.setdefault(int(tree.feature[node]), set()).add(side)
    order = list(dict.fromkeys([*told, *np.argsort(-fitted.feature_importances_, kind="stable").tolist()]))
    all_failed, size, there = int(failed.sum()), int(inside.sum()), int(failed[inside].sum())
    others = len(failed) - size
    # The probability that at least so many of as many trials, drawn at random, failed.
    if all_failed < MIN_FAILED or not told or hypergeom.sf(there - 1, len(failed), all_failed, size) > CHANCE:
        return order, ""
    where = " and ".join(_range(axes[each], inside, sides) for each, sides in told.items())
    return order, f"{there} of the {size} trials where {where} {way}, and {all_failed - there} of the {others} others."


def _range(axis: Axis, inside: Any, sides: set[str]) -> str:
    """Says which values of a parameter the trials inside have; `sides` says whether others lie above and below them."""
    name, there = plot.tick(axis.name, 30), [axis.values[place] for place in np.flatnonzero(inside)]
    known = sorted({value for value in there if value is not None})
    if not known:
        return f"{name} is {MISSING_TEXT}"
    low, high = label_at(axis, known[0]), label_at(axis, known[-1])
    if sides == {"below"} and known[0] == min(axis.known):
        said = "given"  # only missing values lie below
    elif len(known) == 1 or not _is_ordered(axis.texts):
        named = " or ".join(label_at(axis, value) for value in known[:MAX_NAMED])
        said = named if len(known) <= MAX_NAMED else f"one of {len(known)} values"
    elif sides == {"above"}:
        said = f"at most {high}"
    else:
        said = f"at least {low}" if sides == {"below"} else f"{low} to {high}"
    return f"{name} is {said}{f' or {MISSING_TEXT}' if None in there else ''}"


def _is_ordered(texts: list[str]) -> bool:
    """Whether the ticks of an axis are numbers in ascending order; those of a choice of texts are not."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return False
    return numbers == sorted(numbers)


def draw_failing(record: ExperimentRecord) -> plot.Figure | None:
    """Draws the ended trials over two parameters, with a symbol for each way to fail; draws every n-th of many."""
    data = failing_of(record)
    if data is None:
        return None
    xs, ys = (axis.filled(MISSING_SHARE) for axis in (data.x, data.y))
    counts = Counter(filter(None, data.outcomes))
    traces, drawn = [], 0
    for outcome in ("", *SYMBOLS):
        places = [place for place, each in enumerate(data.outcomes) if each == outcome]
        places = places[:: math.ceil(len(places) / MAX_DRAWN) or 1]
        drawn += len(places)
        color, symbol = SYMBOLS.get(outcome, (plot.GRAY, "circle"))
        rows = [(xs[at], ys[at], data.trials[at].id, plot.label_of(data.trials[at])) for at in places]
        traces.append(
            plot.points(
                "markers", rows, name=outcome or "did not fail", meta="trials",
                hovertemplate="%{text}<extra></extra>",
                marker={"color": color, "symbol": symbol, "size": 8 if outcome else 6, "opacity": 0.85},
            )
        )  # fmt: skip
    each = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    number = f"{counts.total()} of {counted(len(data.trials), 'ended trial')}"
    sampled = f" The figure shows {drawn} of the ended trials." if drawn < len(data.trials) else ""
    text = f"{number} failed, diverged or broke a constraint: {each}. {data.regions}{sampled}"
    across, up = data.x.layout(14), data.y.layout(14)
    scales = {"xaxis": data.x.scale, "yaxis": data.y.scale}
    return plot.figure(traces, text, scales=scales, xaxis=across, yaxis=up, showlegend=True, legend=plot.LEGEND)
