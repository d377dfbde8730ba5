"""Orders points with several metrics, of which smaller values are better: Pareto fronts, knee and hypervolume.

The order is that of MO-ASHA (Schmucker et al., "Multi-objective asynchronous successive halving", 2021): front by
front, and within a front as an epsilon-net, so that the first points of a front lie far apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Sequence
from functools import partial
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
    feasible = [index for index, point in enumerate(points) if point.violation <= 0]
    if not feasible:
        return best_first(points)[:1]
    losses = np.array([points[index].losses for index in feasible])
    front = fronts(losses)[0]  # by their losses, equal points as given
    first, of = front[knee(losses[front])], {points[feasible[each]].losses: feasible[each] for each in reversed(front)}
    return [of.pop(points[feasible[first]].losses), *reversed(of.values())]


def fronts(losses: Losses) -> list[list[int]]:
    """Returns the Pareto front, then the front of the others, and so on; equal points are in the same front.

    The points are sorted, so that none is better than an earlier one. A binary search then finds the first front that
    has no better point (Zhang et al., "An efficient approach to nondominated sorting", 2015).
    """
    found: list[list[int]] = []
    values = losses.tolist()

    def fits(index: int, front: list[int]) -> bool:
        if len(values[index]) != 2:
            return not _behind(losses[[index]], losses[front])[0]
        last = values[front[-1]]  # of two metrics, it has the front's least second loss
        return bool(values[index][1] < last[1] or values[index] == last)

    for index in map(int, np.lexsort(losses.T[::-1])):
        place = bisect_left(found, True, key=partial(fits, index))
        if place == len(found):
            found.append([])
        found[place].append(index)
    return found


def _behind(losses: Losses, others: Losses) -> npt.NDArray[np.bool_]:
    """For each point, whether another one is better in a metric, and at least as good in all."""
    own = losses[:, None]
    better: Any = (others <= own).all(axis=2) & (others < own).any(axis=2)
    return np.asarray(better.any(axis=1))


class Order:
    """Ranks points as `best_first` does, while points are added; all break no constraint. Points are numbered 0, 1, ...

    A new point moves worse ones to the next front (Li et al., "Efficient nondomination level update method for
    steady-state evolutionary multiobjective optimization", 2017), so that an arrival need not sort all points again.
    """

    def __init__(self, num_metrics: int) -> None:
        self._losses, self._num = np.empty((16, num_metrics)), 0
        self._fronts: list[npt.NDArray[np.int64]] = []  # the numbers of their points

    def __len__(self) -> int:
        return self._num

    def add(self, losses: Sequence[float]) -> int:
        """Adds a point; returns its number."""
        if self._num == len(self._losses):
            self._losses = np.concatenate([self._losses, np.empty_like(self._losses)])
        self._losses[self._num] = losses
        moved, own = np.array([self._num]), self._losses[[self._num]]
        self._num += 1
        place = bisect_left(self._fronts, True, key=lambda front: not _behind(own, self._losses[front])[0])
        while len(moved):
            front = self._fronts[place] if place < len(self._fronts) else moved[:0]
            worse = _behind(self._losses[front], self._losses[moved])
            self._fronts[place : place + 1] = [np.concatenate([front[~worse], moved])]
            moved, place = front[worse], place + 1
        return self._num - 1

    def place(self, number: int) -> int:
        """Returns a point's place, from 1; equal points have the place of the first of them."""
        before, front = self._front_with({number})
        equal = (self._losses[front] == self._losses[number]).all(axis=1)
        return before + 1 + int(equal.argmax())

    def first(self, among: Container[int]) -> tuple[int, int]:
        """Returns the best point `among` some, and how many of all points are before it."""
        before, front = self._front_with(among)
        return next((each, before + at) for at, each in enumerate(front) if each in among)

    def _front_with(self, some: Container[int]) -> tuple[int, list[int]]:
        """Returns the first front that has one of `some` points, in order, and how many points are before the front."""
        before = 0
        for front in self._fronts:
            if any(each in some for each in front):
                by_losses = np.lexsort(self._losses[front].T[::-1])  # as in `fronts`: it decides between ties
                return before, _net(front[by_losses].tolist(), self._losses)
            before += len(front)
        raise ValueError("none of these points was added")


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


def agreement(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Returns the share of pairs that both lists order alike, among the pairs that differ in the second list.

    A pair that is equal in the first list counts half. Without pairs that differ, the share is 0.
    """
    earlier, later = (np.subtract.outer(each, each) for each in (first, second))
    above = later > 0
    return float((1 + np.sign(earlier[above])).mean() / 2) if above.any() else 0.0
