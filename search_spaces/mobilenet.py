"""MobileNetV2 on CIFAR-10 enlarged to 112 x 112; `--space mobilenet:space224` for 224 x 224."""

from __future__ import annotations

from functools import partial

from ray import tune
from torch import nn

from search_spaces.datasets.cifar10 import NUM_CLASSES, cifar10
from search_spaces.shared.classifiers import accuracy, cosine, enlarged, sgd, smoothed_loss
from tuner.space import Config, Space, Task


def mobilenet(config: Config) -> nn.Module:
    """An untrained MobileNetV2 that maps (N, 3, H, W) images to (N, 10) scores."""
    # Imported here, because torchvision takes seconds to import; the command line and Ray need not wait for it.
    from torchvision.models import mobilenet_v2

    return mobilenet_v2(num_classes=NUM_CLASSES)


def mobilenet_space(size: int) -> Space:
    """A search on images enlarged to size x size."""
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
