"""How one trial's training scales over processes: the same images, the same batch per process, 1, 2 (and 4) workers.

    python -m benchmarks.ddp_scaling [--model resnet18] [--workers 1 2] [--cuda] [--repeats 5]

The models are the ResNet-18 of `search_spaces/imagefolder.py` on images of 64 x 64, and the LeNet of
`search_spaces/cifar.py`, whose step of 15 ms is as short as steps get; a batch of 128 a process, synthetic images, one
thread a process, gloo on CPUs and nccl on GPUs. All groups are started first and train an epoch in turns, so that a
slow minute of the machine meets each of them; times are medians. `alone` is what the machine itself allows: as many
processes at once, each with its part of the images, that do not talk to each other.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers import measure
from search_spaces import cifar, imagefolder
from tuner.space import Task
from tuner.training.data import Arrays, Splits
from tuner.training.group import Processes
from tuner.training.task import TrialSpec


@dataclass(frozen=True)
class Model:
    """What is trained: a task and its setting, square images of so many pixels, and how many of them an epoch."""

    task: Task | None
    config: dict[str, Any]
    size: int
    num_images: int


RESNET = {"num_classes": 10, "lr": 0.1, "weight_decay": 1e-4, "label_smoothing": 0.0}
MODELS = {
    "resnet18": Model(replace(imagefolder.space64.task, augment=None), RESNET, 64, 1024),
    "lenet": Model(cifar.space.task, {"l1": 128, "l2": 64, "lr": 1e-3}, 32, 16_384),
}


def material(model: str, num_images: int) -> tuple[Task, Splits]:
    """The task, and synthetic images."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (num_images, 3, MODELS[model].size, MODELS[model].size), dtype=np.uint8)
    labels = rng.integers(0, 10, num_images)
    task = MODELS[model].task
    assert task is not None
    return task, Splits(Arrays(images, labels), Arrays(images[:64], labels[:64]))


def epoch_s(groups: list[Processes]) -> float:
    """Seconds of the training part of an epoch of groups that run side by side."""
    calls = [[group.send(rank, "run_epoch") for rank in range(group.num_workers)] for group in groups]
    return max(group.answers(of_group)[0][0]["train_s"] for group, of_group in zip(groups, calls, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="resnet18")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=128, help="of one process")
    parser.add_argument("--images", type=int, help="of an epoch, whatever the workers (resnet18 1,024, lenet 16,384)")
    parser.add_argument("--cuda", action="store_true", help="a GPU a process")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    model, most = MODELS[options.model], max(options.workers)
    num_images = options.images or model.num_images
    with ExitStack() as stack:

        def started(part: int, num_workers: int) -> Processes:
            group = Processes(partial(material, options.model, part), num_workers, use_cuda=options.cuda)
            stack.callback(group.close)
            group.begin(TrialSpec({**model.config, "batch_size": options.batch * num_workers}, 0, 100))
            group.run_epoch()
            return group

        sides: dict[str, list[Processes]] = {str(n): [started(num_images, n)] for n in options.workers}
        if not options.cuda:
            sides[f"{most} alone"] = [started(num_images // most, 1) for _ in range(most)]
        measured = measure.in_turn(list(sides), options.repeats, lambda side, name: epoch_s(sides[side]))
    print(f"{options.model}, {num_images:,} synthetic images an epoch, {options.batch} a step and process\n")
    medians = {side: statistics.median(seconds) for side, seconds in measured.items()}
    first = next(iter(medians.values()))
    rows = [[side, measure.spread(measured[side]), f"{first / each:.2f}"] for side, each in medians.items()]
    measure.show(["workers", "time (s)", "speed-up"], rows)


if __name__ == "__main__":
    main()
