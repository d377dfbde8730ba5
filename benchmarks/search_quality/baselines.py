"""The methods without a library: random search, and one epoch for everything."""

from __future__ import annotations

import heapq
import math
from typing import Any

from benchmarks.search_quality.simulate import Action, Draws, Problem
from tuner.spec.metrics import sign_of


class Random:
    """Trains each random setting to the last epoch."""

    def __init__(self, problem: Problem) -> None:
        self._draws = Draws(problem)
        self._started = 0

    def next(self) -> tuple[int, dict[str, Any]]:
        self._started += 1
        return self._started - 1, self._draws.draw()

    def report(self, trial: int, epoch: int, value: float) -> Action:
        return "continue"


class OneEpoch:
    """Trains each random setting for one epoch, and of each T of them the best so far to the end (arXiv 2404.04111).

    The paper fixes the number of settings, and so the time at which it can be asked for an answer. Here a setting is
    trained to the end after each T new ones, T being the number of epochs. So at any time about half of the epochs
    are first epochs, which is within a factor of two of the best fixed number.
    """

    def __init__(self, problem: Problem) -> None:
        self._draws, self._sign, self._max_epochs = Draws(problem), sign_of(problem.mode), problem.max_epochs
        self._settings: list[dict[str, Any]] = []
        self._waiting: list[tuple[float, int]] = []  # (loss after one epoch, trial), a heap
        self._compared = self._promoted = 0

    def next(self) -> tuple[int, dict[str, Any]]:
        if self._waiting and self._compared >= self._max_epochs * (self._promoted + 1):
            self._promoted += 1
            trial = heapq.heappop(self._waiting)[1]
            return trial, self._settings[trial]
        self._settings.append(self._draws.draw())
        return len(self._settings) - 1, self._settings[-1]

    def report(self, trial: int, epoch: int, value: float) -> Action:
        if epoch > 1:
            return "continue"
        self._compared += 1
        if not math.isfinite(value):
            return "stop"
        heapq.heappush(self._waiting, (self._sign * value, trial))
        return "pause"
