"""The data and the training of PyTorch's Ray Tune tutorial, in its style: what all peers share.

Kept as the tutorial has them: an image is a PIL picture turned into a tensor and normalised each time it is
read, batches come from loaders with processes of their own, the loss is fetched after every step, and every
epoch ends with a checkpoint. Changed: the loaders have `num_workers` processes instead of 8 (two cores, not a
server), the split is given instead of drawn anew by each trial, and epochs are yielded, for any library to
report.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.peers import workload

Metrics = dict[str, float]
State = dict[str, Any]


class Images(Dataset[tuple[Tensor, int]]):
    """Pictures in memory, decoded by item as `torchvision.datasets.CIFAR10` does it."""

    def __init__(self, part: str) -> None:
        inputs, self.targets = workload.load_images(part)
        self.pictures = np.ascontiguousarray(inputs.transpose(0, 2, 3, 1))
        half = (0.5, 0.5, 0.5)
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(half, half)])

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pictures[index])), int(self.targets[index])


def lenet(l1: int, l2: int) -> nn.Module:
    """LeNet with two searched widths; a peer imports nothing of ours, which would set variables that Ray reads."""
    first = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
    scores = [nn.Linear(16 * 5 * 5, l1), nn.ReLU(), nn.Linear(l1, l2), nn.ReLU(), nn.Linear(l2, 10)]
    return nn.Sequential(*first, *second, nn.Flatten(), *scores)


def loader(part: str, batch_size: int, num_workers: int) -> DataLoader[tuple[Tensor, Tensor]]:
    return DataLoader(Images(part), batch_size=batch_size, shuffle=True, num_workers=num_workers)


def train_epoch(net: nn.Module, batches: DataLoader[Any], optimizer: torch.optim.Optimizer) -> float:
    running_loss = 0.0
    for inputs, labels in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    return running_loss / len(batches)


@torch.no_grad()
def validate(net: nn.Module, batches: DataLoader[Any]) -> Metrics:
    loss, correct, total = 0.0, 0, 0
    for inputs, labels in batches:
        outputs = net(inputs)
        loss += F.cross_entropy(outputs, labels).item()
        correct += (outputs.argmax(1) == labels).sum().item()
        total += len(labels)
    return {"loss": loss / len(batches), "accuracy": correct / total}


def train_cifar(setting: Mapping[str, Any]) -> Iterator[tuple[Metrics, State]]:
    """Train one setting; after each epoch give its validation metrics and what a checkpoint holds."""
    work = workload.load()
    # One thread a trial on every side: two trials share two cores.
    torch.set_num_threads(1)
    net = lenet(int(setting["l1"]), int(setting["l2"]))
    optimizer = torch.optim.SGD(net.parameters(), lr=float(setting["lr"]), momentum=0.9)
    batch_size = int(setting["batch_size"])
    train_batches = loader("train", batch_size, work.num_workers)
    validation_batches = loader("validation", batch_size, work.num_workers)
    for epoch in range(1, work.max_epochs + 1):
        train_epoch(net, train_batches, optimizer)
        metrics = validate(net, validation_batches)
        yield metrics, {"epoch": epoch, "net": net.state_dict(), "optimizer": optimizer.state_dict()}


def save(state: State, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "data.pkl").open("wb") as file:
        pickle.dump(state, file)
