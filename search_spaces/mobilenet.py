"""MobileNetV2 on CIFAR-10 enlarged to 112 x 112; `--space mobilenet:space224` for 224 x 224."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from ray import tune
from torch import Tensor, nn
from torch.nn import functional

from search_spaces.datasets.cifar10 import NUM_CLASSES, cifar10
from tuner.space import Config, Space, Task


def mobilenet(config: Config) -> nn.Module:
    """(N, 3, H, W) images to (N, 10) scores, untrained."""
    # Importing torchvision takes seconds, which neither the command line nor Ray's start has to wait for.
    from torchvision.models import mobilenet_v2

    return mobilenet_v2(num_classes=NUM_CLASSES)


def enlarged(images: Tensor, size: int) -> Tensor:
    """(N, 3, 32, 32) pixels of 0 to 255 as (N, 3, size, size) values of -1 to 1.

    Stored small and enlarged on the device, a chunk at a time: the whole set at 112 x 112 would take 9 GB.
    """
    small = images.float().div_(127.5).sub_(1)
    return functional.interpolate(small, size=(size, size), mode="bilinear", align_corners=False)


def sgd(parameters: Iterable[nn.Parameter], config: Config) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=config["lr"], momentum=0.9, weight_decay=config["weight_decay"], fused=True)


def cosine(optimizer: torch.optim.Optimizer, config: Config, max_epochs: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max_epochs)


def smoothed_loss(scores: Tensor, labels: Tensor, config: Config) -> Tensor:
    return functional.cross_entropy(scores, labels, label_smoothing=config["label_smoothing"])


def accuracy(scores: Tensor, labels: Tensor) -> Tensor:
    """The part of the images, 0 to 1, whose highest score is their label's."""
    return (scores.argmax(1) == labels).float().mean()


def mobilenet_space(size: int) -> Space:
    """The search with images of size x size.

    It goes by accuracy: label smoothing makes a model less sure on purpose, so that cross-entropy, smoothed or not,
    would rank settings by how little they smooth. The reported `loss` is without smoothing, the same for all.
    """
    return Space(
        params={
            "lr": tune.loguniform(1e-3, 1.0),
            "weight_decay": tune.loguniform(1e-6, 1e-2),
            "batch_size": tune.choice([64, 128, 256]),
            "label_smoothing": tune.uniform(0.0, 0.2),
        },
        task=Task(
            data=cifar10,
            model=mobilenet,
            optimizer=sgd,
            training_loss=smoothed_loss,
            metrics={"accuracy": accuracy},
            schedule=cosine,
            prepare=partial(enlarged, size=size),
            batch_size=256,
            validation_fraction=0.1,
            channels_last=True,
        ),
        metric="accuracy",
        mode="max",
        max_epochs=10,
        mutable=("lr", "weight_decay"),
    )


space = mobilenet_space(112)
space224 = mobilenet_space(224)
