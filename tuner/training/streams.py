"""The random streams that a trial draws from: started anew each epoch, put back when a step is repeated."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import torch


def reseed(seed: int, *, epoch: int, rank: int = 0) -> None:
    """Starts every random stream from (seed, epoch), and those of further processes of a trial from their rank too.

    Epoch 0 is the model's construction.
    """
    words = np.random.SeedSequence(seed, spawn_key=(epoch, rank) if rank else (epoch,)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]))  # every CUDA device's stream too


class Streams:
    """Torch's random streams, the CPU's and the devices', as they were when last noted; noting takes 1 us each."""

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
