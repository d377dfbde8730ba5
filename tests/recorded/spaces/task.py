"""A linear model that tells two blobs apart, as a Task. Never edit this file: recorded folders hold its sha256."""

import os
import time

import numpy as np
import torch
from ray import tune

from tuner.space import Space, Task
from tuner.training.data import Arrays, Splits


def blobs(data_dir):
    stream = np.random.default_rng(7)
    targets = stream.integers(0, 2, 240)
    inputs = (stream.normal(size=(240, 4)) + 1.5 * targets[:, None]).astype(np.float32)
    return Splits(
        train=Arrays(inputs[:200], targets[:200]), test=Arrays(inputs[200:], targets[200:]), source="made by a seed"
    )


def unhurried(inputs):
    """A batch as it is; an epoch takes EPOCH_S seconds."""
    time.sleep(float(os.environ.get("EPOCH_S", "0")) * len(inputs) / 160)
    return inputs


space = Space(
    params={"lr": tune.loguniform(1e-3, 1e-1), "batch_size": tune.choice([8, 16])},
    task=Task(
        data=blobs,
        model=lambda config: torch.nn.Linear(4, 2),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=config["lr"], momentum=0.9),
        augment=unhurried,
    ),
    max_epochs=4,
    num_samples=4,
)
