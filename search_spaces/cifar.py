"""LeNet on CIFAR-10, the search of the PyTorch tutorial."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from ray import tune
from torch import Tensor, nn

from search_spaces.datasets.cifar10 import cifar10
from tuner.space import Config, Space, Task


class LeNet(nn.Module):
    """The tutorial's network: (N, 3, 32, 32) images to (N, 10) scores; l1 and l2 are its hidden widths."""

    def __init__(self, l1: int, l2: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Linear(16 * 5 * 5, l1), nn.ReLU(), nn.Linear(l1, l2), nn.ReLU(), nn.Linear(l2, 10)
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def normalize(images: Tensor) -> Tensor:
    """Scales pixels from 0..255 to -1..1, as the tutorial does, so that its learning rates apply."""
    return images.float().div_(127.5).sub_(1)


def sgd(parameters: Iterable[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=config["lr"], momentum=0.9, fused=True)


def accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of images, 0 to 1, whose label has the highest score."""
    return (scores.argmax(1) == labels).float().mean()


widths = [2**i for i in range(2, 9)]

space = Space(
    params={
        "l1": tune.choice(widths),
        "l2": tune.choice(widths),
        "lr": tune.loguniform(1e-4, 1e-1),
        "batch_size": tune.choice([2, 4, 8, 16]),
    },
    task=Task(
        data=cifar10,
        model=lambda config: LeNet(config["l1"], config["l2"]),
        optimizer=sgd,
        metrics={"accuracy": accuracy},
        prepare=normalize,
        validation_fraction=0.2,
        channels_last=True,
    ),
    metric="loss",
    mode="min",
    max_epochs=10,
    mutable=("lr",),
)
