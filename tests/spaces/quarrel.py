"""A Task whose last worker gets into the trouble that a parameter names, in its second epoch."""

import os

import torch
from ray import tune

from search_spaces.cifar import accuracy
from tuner.space import Space, Task
from tuner.training.data import Arrays, Splits


class Net(torch.nn.Module):
    """A linear model that counts its training batches."""

    def __init__(self, trouble):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.trouble = trouble
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            if self.steps > 10 and torch.distributed.get_rank() == 1:
                self.quarrel(len(inputs))
        return self.layer(inputs)

    def quarrel(self, num_inputs):
        if self.trouble == "dies":
            os._exit(9)
        if self.trouble == "raises":
            raise KeyError("a bug of the user's")
        if self.trouble == "scarce" and num_inputs > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def blobs(data_dir):
    stream = torch.Generator().manual_seed(7)
    targets = torch.randint(0, 2, (180,), generator=stream)
    inputs = torch.randn((180, 4), generator=stream) + 1.5 * targets[:, None]
    inputs, targets = inputs.numpy(), targets.numpy()
    return Splits(Arrays(inputs[:120], targets[:120]), Arrays(inputs[120:], targets[120:]), source="made by a seed")


space = Space(
    params={"trouble": tune.grid_search(["none", "dies", "raises", "scarce", "last"])},
    task=Task(
        data=blobs,
        model=lambda config: Net(config["trouble"]),
        optimizer=lambda parameters, config: torch.optim.SGD(parameters, lr=0.1),
        metrics={"accuracy": accuracy},
        batch_size=12,
    ),
    num_samples=1,
    max_epochs=3,
    strategy="ddp",
    workers_per_trial=2,
)
