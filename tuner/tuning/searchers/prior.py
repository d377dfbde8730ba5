"""A user's guess of good values, around which a share of the random settings is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from tuner.spec import domains

Setting = dict[str, Any]
WIDTH = 0.25  # standard deviation around a guess, as a share of the range's width, logarithmic in a log range
MOST_SHARE = 0.5  # share of random settings that are drawn around the guess while these are no worse than the others


class Prior:
    """Draws settings around the guess as PriorBand does at its lowest rung (Mallik et al., NeurIPS 2023).

    The guess is trusted as long as its settings win: `share` falls from a half to nothing while the probability that a
    setting around the guess beats another random one falls from 1/2 to 1/4.
    """

    def __init__(self, guess: Setting, leaves: dict[str, Any]) -> None:
        self.guess, self._leaves = guess, leaves
        self._is_around: dict[str, bool] = {}  # random trial -> whether it was drawn around the guess
        self._values: dict[str, float] = {}  # random trial -> its last value, of which a smaller one is better

    def __bool__(self) -> bool:
        return bool(self.guess)

    def moved(self, trial_id: str, flat: Setting, stream: np.random.Generator) -> Setting:
        """Returns a random setting, or with the probability `share` one whose guessed parameters lie near the guess."""
        self._is_around[trial_id] = stream.random() < self.share
        if not self._is_around[trial_id]:
            return flat
        return flat | {name: self._near(name, value, flat[name], stream) for name, value in self.guess.items()}

    def learn(self, trial_id: str, value: float) -> None:
        if trial_id in self._is_around:
            self._values[trial_id] = value

    @property
    def share(self) -> float:
        around = np.array([value for trial, value in self._values.items() if self._is_around[trial]])
        others = np.array([value for trial, value in self._values.items() if not self._is_around[trial]])
        beaten = sum(np.searchsorted(np.sort(-others), -around, side).sum() for side in ("left", "right")) / 2
        wins = (beaten + 1) / (around.size * others.size + 2)  # as if one of each had won once more
        return float(MOST_SHARE * min(1, max(0, 4 * wins - 1)))

    def _near(self, name: str, guess: Any, drawn: Any, stream: np.random.Generator) -> Any:
        domain = self._leaves[name]
        kind = domains.kind(domain)
        if kind in domains.LISTED:
            return guess if stream.random() < MOST_SHARE else drawn
        if kind == "normal":
            return domains.within(domain, guess + WIDTH * domains.sampler_of(domain).sd * stream.standard_normal())
        span = domains.Range(domain)
        while not 0 <= (at := span.position(guess) + WIDTH * stream.standard_normal()) <= 1:
            pass
        return span.value_at(at)
