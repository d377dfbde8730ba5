"""Orders points with several metrics, of which smaller values are better: Pareto fronts, knee and hypervolume.

The order is that of MO-ASHA (Schmucker et al., "Multi-objective asynchronous successive halving", 2021): front by
front, and within a front as an epsilon-net, so that the first points of a front lie far apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tuner.spec.constraints import Point

Losses = npt.NDArray[np.float64]  # of shape (points, metrics)


def best_first(points: Sequence[Point]) -> list[int]:
    """Returns the indices of points: those that break no constraint front by front, then those that break one less."""
    feasible = [index for index, point in enumerate(points) if point.violation <= 0]
    losses = np.array([points[index].losses for index in feasible])
    spread = [feasible[each] for front in fronts(losses) for each in _net(front, losses)] if feasible else []
    broken = [index for index, point in enumerate(points) if point.violation > 0]
    return spread + sorted(broken, key=lambda index: (points[index].violation, points[index].losses))


def pareto(points: Sequence[Point]) -> list[int]:
    """Returns the Pareto front of the points that break no constraint: its knee, then the others by their losses.

    If all break one, returns the one that breaks them least. Of equal points, only the first is in the front.
    """
    order = best_first(points)
    feasible = [index for index in order if points[index].violation <= 0]
    if not feasible:
        return order[:1]
    at = np.array(feasible)[fronts(np.array([points[index].losses for index in feasible]))[0]]
    front = {points[index].losses: int(index) for index in sorted(at, reverse=True)}
    first = front.pop(points[feasible[0]].losses)
    return [first, *(front[losses] for losses in sorted(front))]


def fronts(losses: Losses) -> list[list[int]]:
    """Returns the Pareto front, then the front of the others, and so on; equal points are in the same front.

    The points are sorted, so that none covers an earlier one. A binary search then finds the first front that has no
    point that is better (Zhang et al., "An efficient approach to nondominated sorting", 2015).
    """
    found: list[list[int]] = []
    for index in map(int, np.lexsort(losses.T[::-1])):
        place = bisect_left(found, True, key=lambda front: not _is_behind(losses[index], losses[front]))
        if place == len(found):
            found.append([])
        found[place].append(index)
    return found


def _is_behind(own: Losses, others: Losses) -> bool:
    """Whether another point is better than this one in a metric, and at least as good in all."""
    return bool(((others <= own).all(axis=1) & (others < own).any(axis=1)).any())


def scaled(losses: Losses) -> Losses:
    """Returns losses on a scale from 0, the best value of a metric, to 1, the worst."""
    low, high = losses.min(axis=0), losses.max(axis=0)
    at: Losses = (losses - low) / np.where(high > low, high - low, 1.0)
    return at


def knee(losses: Losses) -> int:
    """Returns the point of a front that bulges most towards the best values, the earlier of two equal ones.

    It is the one farthest from the plane through the front's ends (Das, "On characterizing the knee of the Pareto
    curve", 1999), so the one with the smallest sum of scaled losses; of equal sums, the most balanced.
    """
    at = scaled(losses)
    return int(np.lexsort((at.max(axis=1).round(9), at.sum(axis=1).round(9)))[0])


def _net(front: list[int], losses: Losses) -> list[int]:
    """Orders a front: its knee first, then always the point that is farthest from those before it."""
    at = scaled(losses[front])
    order = [knee(losses[front])]
    nearest = np.full(len(front), np.inf)
    while len(order) < len(front):
        nearest = np.minimum(nearest, ((at - at[order[-1]]) ** 2).sum(axis=1))
        nearest[order[-1]] = -1
        order.append(int(nearest.argmax()))
    return [front[each] for each in order]


def hypervolume(losses: Any, reference: Any) -> float:
    """Returns how much of the space below the reference point has a point that is at least as good."""
    losses, reference = np.asarray(losses, dtype=float), np.asarray(reference, dtype=float)
    losses = losses[(losses < reference).all(axis=1)] if len(losses) else losses
    if not len(losses):
        return 0.0
    if len(reference) == 1:
        return float(reference[0] - losses.min())
    losses = losses[fronts(losses)[0]]
    losses = losses[np.argsort(losses[:, -1], kind="stable")]
    ends = [*losses[1:, -1], reference[-1]]
    slices = (ends[number] - losses[number, -1] for number in range(len(losses)))
    return sum(
        float(height) * hypervolume(losses[: number + 1, :-1], reference[:-1])
        for number, height in enumerate(slices)
        if height > 0
    )
