"""Functions that several image classifier spaces use: optimizer, schedule, loss, accuracy and image enlargement."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tuner.space import Config


def sgd(parameters: Iterable[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    """SGD with momentum 0.9 and the setting's `lr` and `weight_decay`."""
    return torch.optim.SGD(parameters, lr=config["lr"], momentum=0.9, weight_decay=config["weight_decay"], fused=True)


def cosine(optimizer: torch.optim.Optimizer, config: Config, max_epochs: int) -> torch.optim.lr_scheduler.LRScheduler:
    """A schedule that lowers the learning rate to 0 over the epochs, along half a cosine."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max_epochs)


def smoothed_loss(scores: Tensor, labels: Tensor, config: Config) -> Tensor:
    """Cross-entropy with the setting's `label_smoothing`, for training.

    A space that searches `label_smoothing` should use accuracy as its metric. Smoothing makes a model less confident on
    purpose, so cross-entropy would favour settings with little smoothing.
    """
    return functional.cross_entropy(scores, labels, label_smoothing=config["label_smoothing"])


def accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    """The share of images, 0 to 1, whose label has the highest score."""
    return (scores.argmax(1) == labels).float().mean()


def enlarged(images: Tensor, size: int) -> Tensor:
    """Enlarges (N, 3, H, W) pixels of 0..255 to (N, 3, size, size) values of -1..1; for `Task.prepare`.

    The data set is stored small, and only a chunk is enlarged at a time: CIFAR-10 at 112 x 112 would take 9 GB as
    floats.
    """
    small = images.float().div_(127.5).sub_(1)
    return functional.interpolate(small, size=(size, size), mode="bilinear", align_corners=False)
