"""Seeds, saves and restores the global random streams of Python, numpy and torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def reseed(seed: int, *, epoch: int, rank: int = 0) -> None:
    """Seeds the global streams of Python, numpy and torch from (seed, epoch), and from rank if it is above 0.

    In `Training`, epoch 0 stands for the construction of the model.
    """
    words = np.random.SeedSequence(seed, spawn_key=(epoch, rank) if rank else (epoch,)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))  # also seeds every CUDA device


@contextmanager
def kept_streams() -> Iterator[None]:
    """On exit, restores the random streams of Python, numpy and torch's CPU generator as they were on entry."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
