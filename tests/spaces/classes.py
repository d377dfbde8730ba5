"""Noisy classes in 64 dimensions told apart by a small network: 5 MB of data, half a second an epoch on one core."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from ray import tune

from tuner.space import Space, Task
from tuner.training.data import Arrays, Splits


def classes(data_dir: Path | None) -> Splits:
    stream = np.random.default_rng(1)
    centres = stream.normal(size=(10, 64))
    targets = stream.integers(0, 10, 20_000)
    inputs = (centres[targets] + 4 * stream.normal(size=(20_000, 64))).astype(np.float32)
    return Splits(Arrays(inputs[:18_000], targets[:18_000]), Arrays(inputs[18_000:], targets[18_000:]))


space = Space(
    params={"width": tune.choice([32, 64, 128]), "lr": tune.loguniform(1e-4, 1e-2)},
    task=Task(
        data=classes,
        model=lambda config: torch.nn.Sequential(
            torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)
        ),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=config["lr"], momentum=0.9),
        batch_size=16,
    ),
    max_epochs=10,
    num_samples=6,
)
