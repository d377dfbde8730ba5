"""What a method knows of a simulated search before it begins."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search_quality.simulate import Curves


@dataclass(frozen=True)
class Problem:
    """A table of curves, the number of workers and the seed of one search."""

    curves: Curves
    workers: int
    seed: int

    @property
    def mode(self) -> str:
        return self.curves.mode

    @property
    def max_epochs(self) -> int:
        return self.curves.max_epochs

    @property
    def sign(self) -> int:
        """The factor, 1 or -1, that turns the metric into a loss."""
        return 1 if self.mode == "min" else -1

    def as_json(self) -> dict[str, Any]:
        """Returns what a method in another environment gets."""
        described = {"space": self.curves.space, "mode": self.mode, "max_epochs": self.max_epochs}
        return {**described, "workers": self.workers, "seed": self.seed}


class Draws:
    """Draws random settings of a space with Ray's own distributions."""

    def __init__(self, problem: Problem) -> None:
        self._domains = problem.curves.domains()
        self._random = np.random.RandomState(problem.seed)

    def draw(self) -> dict[str, Any]:
        """Returns the next setting."""
        return {name: domain.sample(random_state=self._random) for name, domain in self._domains.items()}


def seed_of(table: str, workers: int, repeat: int) -> int:
    """Returns the seed of a repeat; the same for all methods."""
    return int(np.random.SeedSequence((zlib.crc32(table.encode()), workers, repeat)).generate_state(1)[0] >> 1)
