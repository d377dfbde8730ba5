"""A linear model that notes when it is first trained: two trials, told apart by `x`, for `benchmarks.ddp_start`."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import torch
from ray import tune
from torch import Tensor, nn

from tuner.space import Space, Task
from tuner.training.data import Arrays, Splits


class Noted(nn.Linear):
    """A linear layer whose first forward pass in training, in rank 0, leaves its time in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(8, 2)
        self.path: Path | None = path

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and self.path and torch.distributed.is_initialized() and torch.distributed.get_rank() == 0:
            self.path.write_text(repr(time.time()))
            self.path = None
        return super().forward(inputs)


def noise(data_dir: str | None) -> Splits:
    stream = np.random.default_rng(0)
    data = Arrays(stream.normal(size=(64, 8)).astype(np.float32), stream.integers(0, 2, 64))
    return Splits(data, data)


space = Space(
    params={"x": tune.grid_search(["cold", "warm"])},
    task=Task(
        data=noise,
        model=lambda config: Noted(Path(os.environ["FIRST_STEPS"]) / config["x"]),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.1),
    ),
    max_epochs=1,
    num_samples=2,
)
