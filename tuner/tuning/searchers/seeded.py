"""Asks a searcher for settings and tells it of results, each call with random numbers of its own.

A search and its simulation (`benchmarks.search_quality`) both use a searcher through this class, so both get the same
settings for the same results.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from ray.tune.search import Searcher

from tuner.record.events import plain
from tuner.record.records import sign_of
from tuner.spec.experiment import Experiment
from tuner.tuning.searchers.named import MODEL_BASED
from tuner.tuning.searchers.sampling import seeded


class SeededSearcher:
    """A searcher whose draws depend only on the experiment's seed and on the order of the calls.

    Attributes:
        num_proposed: the number of settings that the searcher has proposed.
        exhausted: whether the searcher has said that it has no more settings.
    """

    def __init__(self, searcher: Searcher, experiment: Experiment) -> None:
        self.searcher = searcher
        self._experiment = experiment
        self._last: dict[str, dict[str, Any]] = {}  # the last report of each unfinished trial
        self.num_proposed = 0
        self.exhausted = False
        self._completed: set[str] = set()  # trials whose end the searcher knows
        self._worst = sign_of(experiment.mode) * math.inf

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Returns the next setting; None if the searcher has none now, or none any more."""
        with self._seeded(1, self.num_proposed):
            setting = self.searcher.suggest(trial_id)
        if setting == Searcher.FINISHED:
            self.exhausted = True
            return None
        if setting is None:
            return None
        self.num_proposed += 1
        return python_values(setting)

    def report(self, trial_id: str, result: dict[str, Any]) -> None:
        """Tells the searcher a trial's report, unless it already knows the trial's end."""
        if trial_id in self._completed:
            return
        self._last[trial_id] = self._finite(result)
        with self._seeded(2, int(trial_id), result["training_iteration"]):
            self.searcher.on_trial_result(trial_id, self._last[trial_id])

    def complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tells the searcher that a trial has ended, the first time it ends: a trial may continue after its end."""
        if trial_id in self._completed:
            return
        self._completed.add(trial_id)
        last = self._last.pop(trial_id, None)
        result = result or last  # Ray gives no result of a trial that is stopped while it is paused
        # For a failed trial, the searcher gets the worst value (infinity as a loss). After an error or a NaN, TPE
        # proposed 9 of 10 later settings in the failing region; after infinity, 1 of 7 (measured with hyperopt 0.3).
        result = {"training_iteration": 0, self._experiment.metric: self._worst} if error or not result else result
        with self._seeded(3, int(trial_id)):
            self.searcher.on_trial_complete(trial_id, self._finite(result))

    def _seeded(self, *key: int) -> AbstractContextManager[None]:
        # The searchers without a library draw from streams of their own, and to seed the global ones takes 0.1 ms.
        drawn_globally = self._experiment.searcher in MODEL_BASED
        return seeded(self._experiment.seed, *key) if drawn_globally else nullcontext()

    def _finite(self, result: dict[str, Any]) -> dict[str, Any]:
        value = plain(result.get(self._experiment.metric))
        known = isinstance(value, (int, float)) and math.isfinite(value)
        return {**result, self._experiment.metric: value if known else self._worst}


def python_values(setting: dict[str, Any]) -> dict[str, Any]:
    """Converts the numpy scalars in a setting to Python's: torch's DataLoader refuses TuneBOHB's np.int64."""
    if isinstance(setting, dict):
        return {name: python_values(value) for name, value in setting.items()}
    return plain(setting) if isinstance(setting, np.generic) else setting
