"""Seeds the random streams of a trial at each epoch, and restores them when a step is repeated."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch


def reseed(seed: int, *, epoch: int, rank: int = 0) -> None:
    """Seeds every random stream from (seed, epoch), or from (seed, epoch, rank) if the rank is above 0.

    Epoch 0 stands for the construction of the model.
    """
    words = np.random.SeedSequence(seed, spawn_key=(epoch, rank) if rank else (epoch,)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))  # also seeds every CUDA device


@contextmanager
def kept_streams() -> Iterator[None]:
    """Restores the random streams of Python, numpy and torch's CPU generator at its end."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


class Streams:
    """Saves (`note`) and restores (`put_back`) the states of torch's random number generators of the CPU and GPUs.

    Saving the state of one generator takes 1 us.
    """

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self.generators = [torch.default_generator]
        for device in devices:
            if device.type == "cuda":
                index = torch.cuda.current_device() if device.index is None else device.index
                self.generators.append(torch.cuda.default_generators[index])
        self.note()

    def note(self) -> None:
        self.states = [generator.get_state() for generator in self.generators]

    def put_back(self) -> None:
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)
