"""Two blobs told apart by a linear model: a Task space whose trials take milliseconds."""

import dataclasses
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


def accuracy(scores, labels):
    return (scores.argmax(1) == labels).float().mean()


space = Space(
    params={
        "width": tune.choice([2, 4, 8]),
        "lr": tune.loguniform(1e-4, 1e-1),
        "batch_size": tune.choice([4, 8, 16]),
    },
    task=Task(
        data=blobs,
        model=lambda config: torch.nn.Sequential(
            torch.nn.Linear(4, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 2)
        ),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=config["lr"], momentum=0.9),
        metrics={"accuracy": accuracy},
    ),
    max_epochs=8,
    num_samples=6,
    mutable=("lr",),
)


def unhurried(inputs):
    time.sleep(0.5 * len(inputs) / 160)
    return inputs


# An epoch takes half a second, so that a kill finds it in the middle of one.
slow = dataclasses.replace(space, task=dataclasses.replace(space.task, augment=unhurried))


def annealing(optimizer, config, max_epochs):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max_epochs)


# With a schedule, whose rate a resumed trial must continue.
cosine = dataclasses.replace(space, task=dataclasses.replace(space.task, schedule=annealing))


class Scarce(torch.nn.Module):
    """The tiny model on a device that holds `most` examples at once while training."""

    def __init__(self, config):
        super().__init__()
        self.model, self.most = space.task.model(config), config["most"]

    def forward(self, inputs):
        if self.training and len(inputs) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.model(inputs)


SETTING = {"width": tune.choice([4]), "lr": tune.choice([0.01]), "batch_size": tune.choice([16])}
SHORT = {"num_samples": 1, "max_epochs": 2, "mutable": ()}
scarce = dataclasses.replace(
    space,
    params={**SETTING, "most": tune.grid_search([4, 1000])},
    task=dataclasses.replace(space.task, model=Scarce),
    **SHORT,
)


class Quarrel(torch.nn.Module):
    """The tiny model, whose last worker gets into a trouble in its second epoch."""

    def __init__(self, config):
        super().__init__()
        self.model, self.trouble = space.task.model(config), config["trouble"]
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        self.steps += self.training
        if self.training and self.steps > 10 and torch.distributed.get_rank() == 1:
            if self.trouble == "dies":
                os._exit(9)
            if self.trouble == "raises":
                raise KeyError("a bug of the user's")
            if self.trouble == "scarce" and len(inputs) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.model(inputs)


quarrel = dataclasses.replace(
    space,
    params={**SETTING, "trouble": tune.grid_search(["none", "dies", "raises", "scarce", "last"])},
    task=dataclasses.replace(space.task, model=Quarrel),
    **SHORT | {"max_epochs": 3},
    strategy="ddp",
    workers_per_trial=2,
)


def noisy(data_dir):
    """Ten classes in 64 dimensions: 5 MB, half a second an epoch on one core."""
    stream = np.random.default_rng(1)
    centres = stream.normal(size=(10, 64))
    targets = stream.integers(0, 10, 20_000)
    inputs = (centres[targets] + 4 * stream.normal(size=(20_000, 64))).astype(np.float32)
    return Splits(Arrays(inputs[:18_000], targets[:18_000]), Arrays(inputs[18_000:], targets[18_000:]))


def wide(config):
    width = config["width"]
    return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))


classes = Space(
    params={"width": tune.choice([32, 64, 128]), "lr": tune.loguniform(1e-4, 1e-2)},
    task=dataclasses.replace(space.task, data=noisy, model=wide, metrics={}, batch_size=16),
    max_epochs=10,
    num_samples=6,
)

# Two metrics that few settings have both: a high accuracy, and a high loss that is not too high.
two = dataclasses.replace(space, metric=("accuracy", "loss"), mode=("max", "max"), constraints={"loss": "<= 3"})

# Chosen by a metric that only a trial's last report has; the rungs compare the loss.
finals = dataclasses.replace(
    space,
    task=dataclasses.replace(space.task, metrics={}, final_metrics={"accuracy": accuracy}),
    metric="accuracy",
    mode="max",
    prune_by="loss",
)
