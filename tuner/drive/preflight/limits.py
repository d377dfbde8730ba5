"""The preflight check's limits on time and size, its progress, and the exceptions that end it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

BUDGET_S = 1.5  # no further setting begins after these seconds; a large model's first setting is tried only in part
# MOST_VALUES limits the input values of a tried batch: 10 MNIST images. With 85 CIFAR images, MobileNet at 112 pixels
# takes 30 s.
MOST_VALUES = 2**13
# A model with more than LARGE_MODEL weights is tried with one setting, and its checkpoint without the tensors: 300
# million weights take 1.2 GB, and as much again for gradients, momentum and each copy.
LARGE_MODEL = 20_000_000
CHEAP_S = 1.0  # seconds; a step of a setting that should take less is tried even after BUDGET_S
STEP_S = 5e-9  # estimate of an optimizer's first step, in seconds per weight: Adam takes 1.3 s for 270 million
LARGEST_SCAN = 2**28  # bytes; a larger array is not searched for NaN, which takes 1 s per GB
Config = dict[str, Any]


@dataclass
class Failed(Exception):
    """Raised if a part of the space or its data fails; `advice` says what is expected and what to do."""

    part: str
    problem: str
    advice: str = ""


class Late(Exception):
    """Raised in a setting after the first when the time is up; the remaining steps of that setting are not tried."""


@dataclass
class Tries:
    """The check's progress: how many settings were tried, the newest, and what was left out to save time."""

    began: float = field(default_factory=time.perf_counter)
    tried: Config = field(default_factory=dict)  # the config of the newest setting
    num: int = 0
    losses: list[float] = field(default_factory=list)  # loss of each setting's first batch, before any update
    broken: bool = False  # whether any batch's loss was NaN or infinite
    left_out: list[str] = field(default_factory=list)
    remaining: list[str] = field(default_factory=list)  # the values that the newest and the later settings try
    frozen: str = ""  # how many weights are frozen, in the first setting that has such; a line to print
    forward: str = ""  # file and line of the user's forward pass, for error texts

    @property
    def spent_s(self) -> float:
        return time.perf_counter() - self.began

    @property
    def late(self) -> bool:
        """Whether twice BUDGET_S seconds have passed; always False in the first setting, which is tried in any case."""
        return self.num > 1 and self.spent_s > 2 * BUDGET_S
