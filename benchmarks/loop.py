"""What a trial's training loop costs: its training epoch against the loop one would write by hand.

    uv run --group dev python -m benchmarks.loop [--device cuda] [--repeats 7] [--batch-sizes 2 4 16 256]

Both train the LeNet of `search_spaces/cifar.py` on the same synthetic images, in turns, on one CPU thread.
The hand-written loop keeps float images in memory, takes each batch by index, and uses plain SGD and torch's
default backend; it reads one loss an epoch. A trial's loop starts from uint8 images and sums the loss. Images a second
are medians over the repeats; validation is no part of them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.peers import measure
from search_spaces.cifar import LeNet, normalize, space
from tuner.training.data import Arrays, Splits
from tuner.training.loop import Training
from tuner.training.task import TrialSpec

NUM_IMAGES = {2: 2048, 4: 4096, 16: 8192, 256: 8192}  # by batch size: half a second an epoch on a CPU
CONFIG: dict[str, Any] = {"l1": 128, "l2": 64, "lr": 1e-3}


class Bare:
    """The loop of a tutorial, without what slows it down: no loader, no loss read."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, batch_size: int, device: str) -> None:
        torch.manual_seed(0)
        self.images = normalize(torch.from_numpy(images)).to(device)
        self.labels = torch.from_numpy(labels).to(device)
        self.batch_size = batch_size
        self.model = LeNet(CONFIG["l1"], CONFIG["l2"]).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=CONFIG["lr"], momentum=0.9)

    def epoch_s(self) -> float:
        """Seconds of one epoch."""
        started = time.perf_counter()
        order = torch.randperm(len(self.images), device=self.images.device)
        for rows in torch.split(order, self.batch_size):
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(self.images[rows]), self.labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        loss.item()  # waits for the device
        return time.perf_counter() - started


def compare(batch_size: int, num_images: int, device: str, repeats: int) -> tuple[float, float]:
    """Images a second of the hand-written loop and of a trial's, after one epoch of each to warm up."""
    images, labels = synthetic(num_images)
    splits = Splits(Arrays(images, labels), Arrays(images[:256], labels[:256]))
    assert space.task is not None
    config = {**CONFIG, "batch_size": batch_size}
    trial = Training(space.task, splits, TrialSpec(config, 0, repeats), device=device)
    bare = Bare(images, labels, batch_size, device)
    pairs = [(bare.epoch_s(), trial.run_epoch()["train_s"]) for _ in range(1 + repeats)][1:]
    bare_s, trial_s = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    return num_images / bare_s, num_images / trial_s


def synthetic(num_images: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels shaped as CIFAR-10's."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (num_images, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, num_images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=list(NUM_IMAGES))
    parser.add_argument("--images", type=int, help="of an epoch (by default 2,048 to 8,192, by batch size)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(measure.machine(), end="")
    print(f"LeNet, synthetic CIFAR-shaped images, {options.device}; images a second\n")
    rows = []
    for batch_size in options.batch_sizes:
        num_images = options.images or NUM_IMAGES.get(batch_size, 8192)
        bare, trial = compare(batch_size, num_images, options.device, options.repeats)
        rows.append([str(batch_size), f"{bare:,.0f}", f"{trial:,.0f}", f"{trial / bare:.2f}"])
    measure.show(["batch", "by hand", "trial", "ratio"], rows)


if __name__ == "__main__":
    main()
