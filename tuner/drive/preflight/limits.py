"""How far the check goes, what it has tried so far, and what ends it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

BUDGET_S = 1.5  # after this time no further setting is tried, and a large model's first setting only in part
# At most this many input values are tried at once: 10 MNIST images. With 85 CIFAR images, MobileNet at 112 pixels
# takes 30 s.
MOST_VALUES = 2**13
# A model with more weights is tried with one setting, and its checkpoint without the tensors: 300 million weights take
# 1.2 GB, and as much again for gradients, momentum and each copy.
LARGE_MODEL = 20_000_000
CHEAP_S = 1.0  # a part of the first setting that should take less is tried even if the time is up
STEP_S = 5e-9  # seconds per weight of an optimizer's first step: Adam's takes 1.3 s for 270 million weights
LARGEST_SCAN = 2**28  # bytes of a part's inputs that are searched for NaN, at 1 GB/s
Config = dict[str, Any]


@dataclass
class Failed(Exception):
    """A part of the task fails; `advice` says what is expected and what to do."""

    part: str
    problem: str
    advice: str = ""


class Late(Exception):
    """The time is up; what remains of a setting that is not the first is not tried."""


@dataclass
class Tries:
    """The settings that were tried, and what was left out to save time."""

    began: float = field(default_factory=time.perf_counter)
    tried: Config = field(default_factory=dict)  # the last one
    num: int = 0
    losses: list[float] = field(default_factory=list)  # of the first batch of each setting, before any update
    broken: bool = False  # whether any batch had a loss that is not finite
    left_out: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)  # the values that the last setting and those after it try
    forward: str = ""  # where the user's code defines the forward pass

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self.began

    @property
    def late(self) -> bool:
        """Whether the time is up; a first setting is tried in any case."""
        return self.num > 1 and self.spent_s > 2 * BUDGET_S
