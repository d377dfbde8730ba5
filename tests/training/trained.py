"""A small training with all that makes exactness hard: a convolution, running statistics, dropout, augmentation."""

import random

import numpy as np
import torch
from torch import nn

from tuner.record.report_keys import SPEED, USAGE
from tuner.space import Task
from tuner.training.data import Arrays, Splits
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

NUM_EXAMPLES = 103  # a prime: no batch size divides it


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(36, 3))
        self.computed_in = set()

    def forward(self, images):
        outputs = self.head(self.features(images))
        self.computed_in.add(outputs.dtype)
        return outputs


def images(num=NUM_EXAMPLES, seed=0):
    """uint8 images whose class, 0 to 2, is the channel that is brightest."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num)
    pixels = rng.integers(0, 200, (num, 3, 8, 8), dtype=np.uint8)
    pixels[np.arange(num), labels] += 55
    return Arrays(pixels, labels)


def noisy(inputs):
    """Draws from each of the three streams that an augmentation may use."""
    return inputs + torch.randn_like(inputs) * 0.1 + random.random() * 0.1 + np.random.rand() * 0.1


def sgd(parameters, config):
    return torch.optim.SGD(parameters, lr=config.get("lr", 0.05), momentum=0.9, fused=config.get("fused", False))


def accuracy(outputs, targets):
    return (outputs.argmax(1) == targets).float().mean()


TASK = dict(
    data=lambda data_dir: None,
    model=lambda config: ConvNet(),
    optimizer=sgd,
    metrics={"accuracy": accuracy},
    prepare=lambda inputs: inputs.float() / 255 - 0.5,
    augment=noisy,
    schedule=lambda optimizer, config, max_epochs: torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5),
    channels_last=True,
)


def training(config=None, *, seed=0, max_epochs=4, splits=None, precision="fp32", on_oom="shrink", **changes):
    """A training of the setting; `changes` are of the task."""
    splits = splits or Splits(images(), images(50, seed=1))
    return Training(Task(**TASK | changes), splits, TrialSpec(config or {}, seed, max_epochs, precision, on_oom=on_oom))


def figures(report):
    """The part of a report that must repeat; the rest are seconds, what is counted by them, and a process's usage."""
    return {name: value for name, value in report.items() if name not in USAGE | SPEED}


def weights(trial):
    return [tensor.clone() for tensor in trial.model.state_dict().values()]


def same(first, second):
    return all(map(torch.equal, first, second))
