"""ResNet-18 on the images in --data-dir, one subfolder per class; `imagefolder:space64` for small images."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ray import tune
from torch import nn

from search_spaces.augmentation.chain import augment
from search_spaces.datasets.image_folder import image_folder
from search_spaces.shared.classifiers import accuracy, cosine, sgd, smoothed_loss
from search_spaces.shared.imagenet import Normalize
from tuner.space import Config, Space, Task
from tuner.training.data import Splits


def resnet18(config: Config) -> nn.Module:
    """An untrained ResNet-18 that maps (N, 3, H, W) pixels to (N, classes) scores."""
    # Imported here, because torchvision takes seconds to import; the command line and Ray need not wait for it.
    from torchvision import models

    return nn.Sequential(Normalize(), models.resnet18(num_classes=config["num_classes"]))


def image_folder_space(canvas: int, size: int) -> Space:
    """A search on images decoded to canvas x canvas; training uses random crops of size x size, evaluation the whole.

    The canvas is larger than the crops, because a random crop enlarges its content. So objects have about the same
    size in training and evaluation.
    """

    def data(data_dir: Path | None) -> Splits:
        return image_folder(data_dir, canvas)

    return Space(
        params={
            "lr": tune.loguniform(1e-3, 1.0),
            "weight_decay": tune.loguniform(1e-6, 1e-2),
            "batch_size": tune.choice([32, 64, 128]),
            "label_smoothing": tune.uniform(0.0, 0.2),
        },
        task=Task(
            data=data,
            model=resnet18,
            optimizer=sgd,
            training_loss=smoothed_loss,
            metrics={"accuracy": accuracy},
            schedule=cosine,
            augment=partial(augment, size=size, degrees=45.0, strengths=STRENGTHS),
            batch_size=64,
            channels_last=True,
        ),
        metric="accuracy",
        mode="max",
        max_epochs=10,
        mutable=("lr", "weight_decay"),
    )


STRENGTHS = (0.4, 0.4, 0.4, 0.1)  # colour jitter: brightness, contrast, saturation, hue

space = image_folder_space(canvas=256, size=224)
space64 = image_folder_space(canvas=72, size=64)
