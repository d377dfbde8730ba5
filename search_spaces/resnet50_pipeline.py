"""ResNet-50 as a pipeline of two stages on two devices; CIFAR-10 enlarged to 64 x 64, with `:space128` to 128 x 128."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ray import tune
from torch import nn

from search_spaces.datasets.cifar10 import NUM_CLASSES, cifar10
from search_spaces.shared.classifiers import accuracy, cosine, enlarged, sgd
from tuner.space import Config, Space, Task


def resnet50(config: Config) -> nn.Module:
    """An untrained ResNet-50 that maps (N, 3, H, W) images to (N, 10) scores."""
    # Imported here, because torchvision takes seconds to import; the command line and Ray need not wait for it.
    from torchvision import models

    return models.resnet50(num_classes=NUM_CLASSES)


def two_stages(model: nn.Module) -> Sequence[nn.Module]:
    """Cuts the model after its second group of blocks; on one core, the first stage takes 0.43 to 0.49 of a step."""
    first = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2")
    second = [getattr(model, name) for name in ("layer3", "layer4", "avgpool")]
    return [
        nn.Sequential(*(getattr(model, name) for name in first)),
        nn.Sequential(*second, nn.Flatten(), model.fc),
    ]


def pipeline_space(size: int) -> Space:
    """A search on images that the device enlarges to size x size."""
    return Space(
        params={
            "lr": tune.loguniform(1e-3, 0.3),
            "weight_decay": tune.loguniform(1e-6, 1e-3),
            "batch_size": tune.choice([60, 120]),
            "split_size": tune.choice([10, 20, 30]),
        },
        task=Task(
            data=cifar10,
            model=resnet50,
            stages=two_stages,
            optimizer=sgd,
            metrics={"accuracy": accuracy},
            schedule=cosine,
            prepare=partial(enlarged, size=size),
            batch_size=120,
            validation_fraction=0.1,
            channels_last=True,
        ),
        strategy="pipeline",
        metric="accuracy",
        mode="max",
        max_epochs=5,
        mutable=("lr", "weight_decay"),
    )


space = pipeline_space(64)
space128 = pipeline_space(128)
