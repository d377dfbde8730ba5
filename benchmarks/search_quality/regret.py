"""The budgets at which searches are compared, and the regret that a search has there."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from benchmarks.search_quality.simulate import Curves, Observation
from tuner.errors import RequestError

Floats = npt.NDArray[np.float64]
NUM_BUDGETS = 10
BETWEEN = 4  # regrets are recorded this many times as densely, so that a share of a budget is known to a fifth
FIRST = 0.5  # the first budget, in full trainings a worker
SHARE = 0.1  # the last budget pays for this share of the table
LEAST = 4.0  # a table whose last budget is below this many times the first is too small
FEWEST = LEAST * FIRST / SHARE  # settings a worker that a table therefore needs


def budgets(curves: Curves, workers: int) -> Floats | None:
    """Returns the budgets in seconds a worker, geometric; None if the table has too few settings (`FEWEST`).

    Every `BETWEEN`-th one from the first on is one of the `NUM_BUDGETS` budgets; the others lie between them.
    """
    first = FIRST * curves.full_training_s
    last = SHARE * float(curves.seconds.sum()) / workers
    if first <= 0 or last < LEAST * first:
        return None
    return np.geomspace(first, last, BETWEEN * (NUM_BUDGETS - 1) + 1)


class Regret:
    """Normalises a table's values: 0 is the best value of the table, 1 the median of its settings' best values.

    Raises:
        RequestError: the table has no such scale, because too many settings have diverged or are equally good.
    """

    def __init__(self, curves: Curves) -> None:
        self._sign = 1.0 if curves.mode == "min" else -1.0
        losses = self._sign * curves.values
        best_of_setting = np.where(np.isfinite(losses), losses, math.inf).min(axis=1)
        self._best = float(best_of_setting.min())
        self._scale = float(np.median(best_of_setting)) - self._best
        if not (math.isfinite(self._scale) and self._scale > 0):
            raise RequestError("a table's median setting must be finite and worse than its best one; leave it out")

    def at(self, budgets: Floats, observations: Iterable[Observation]) -> Floats:
        """Returns the regret of the best value reported up to each budget; 1 before the first finite report."""
        times, bests, best = [-math.inf], [self._best + self._scale], math.inf
        for observed in observations:
            loss = self._sign * observed.value
            if math.isfinite(loss) and loss < best:
                best = loss
                times.append(observed.seconds)
                bests.append(best)
        at = np.searchsorted(times, budgets, side="right") - 1
        return (np.array(bests)[at] - self._best) / self._scale
