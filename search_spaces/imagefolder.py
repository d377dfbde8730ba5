"""ResNet-18 on a folder of images, --data-dir, a subfolder a class; `imagefolder:space64` for small images."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from ray import tune
from torch import Tensor, nn

from search_spaces.datasets.image_folder import image_folder
from search_spaces.shared.classifiers import accuracy, cosine, sgd, smoothed_loss
from tuner.space import Config, Space, Task
from tuner.training.data import Splits

if find_spec("kornia") is None:
    raise ImportError("its augmentation needs the package kornia: pip install -e '.[images]'")


class Normalize(nn.Module):
    """uint8 or float pixels of 0 to 255 as ImageNet's normalised values.

    Part of the model, so that bytes are what goes to the device, and that a saved model takes plain pixels.
    """

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, values in (("mean", (0.485, 0.456, 0.406)), ("std", (0.229, 0.224, 0.225))):
            self.register_buffer(name, 255 * torch.tensor(values)[:, None, None])

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean).div_(self.std)


def resnet18(config: Config) -> nn.Module:
    """(N, 3, H, W) pixels to (N, classes) scores, untrained."""
    # Importing torchvision takes seconds, which neither the command line nor Ray's start has to wait for.
    from torchvision import models

    return nn.Sequential(Normalize(), models.resnet18(num_classes=config["num_classes"]))


def augmented(images: Tensor, size: int) -> Tensor:
    """(N, 3, H, W) uint8 as (N, 3, size, size) float32 pixels of 0 to 255, each image with draws of its own."""
    # Imported by the trials alone: kornia takes a second.
    from search_spaces.augmentation.chain import augment

    return augment(images, size, degrees=45.0, strengths=STRENGTHS)


def image_folder_space(canvas: int, size: int) -> Space:
    """The search with images decoded to canvas x canvas, cut to size x size in training and evaluated whole.

    The canvas is larger because a random crop enlarges what it shows: so things look as large in both.
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
            augment=partial(augmented, size=size),
            batch_size=64,
            channels_last=True,
        ),
        metric="accuracy",
        mode="max",
        max_epochs=10,
        mutable=("lr", "weight_decay"),
    )


STRENGTHS = (0.4, 0.4, 0.4, 0.1)  # of colour jitter

space = image_folder_space(canvas=256, size=224)
space64 = image_folder_space(canvas=72, size=64)
