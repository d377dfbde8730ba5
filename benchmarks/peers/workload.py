"""What every side of `end_to_end` is given: the same settings, images and budget, in one folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

VARIABLE = "BENCHMARK_WORKLOAD"


@dataclass(frozen=True)
class Workload:
    """One search, described without a word about who runs it.

    Args:
        settings: one configuration a trial, all of them trained.
        max_epochs: epochs of a trial that is not stopped.
        asha: stop trials by asynchronous successive halving (grace period 1, reduction factor 2).
        num_workers: processes of each of the tutorial's two data loaders.
        num_concurrent: trials trained at the same time, one core each.
    """

    settings: list[dict[str, Any]]
    max_epochs: int
    asha: bool
    num_workers: int
    num_concurrent: int = 2

    def save(self, folder: Path) -> None:
        (folder / "workload.json").write_text(json.dumps(asdict(self)))


def folder() -> Path:
    """The workload's folder, which reaches every process of every side through the environment."""
    return Path(os.environ[VARIABLE])


def load() -> Workload:
    return Workload(**json.loads((folder() / "workload.json").read_text()))


def save_images(path: Path, num_images: int) -> None:
    """Write `num_images` of the shipped sample, a fifth of them as the validation part: one split for all sides."""
    from search_spaces.datasets.cifar10 import load_sample

    images = load_sample("a benchmark needs no more").train
    inputs, targets = images.inputs, images.targets
    # Drawn, because nothing promises that the classes are mixed in the order given.
    order = np.random.default_rng(0).permutation(len(inputs))[:num_images]
    train, validation = np.split(order, [num_images * 4 // 5])
    np.savez(
        path / "images.npz",
        train_inputs=inputs[train],
        train_targets=targets[train],
        validation_inputs=inputs[validation],
        validation_targets=targets[validation],
    )


def load_images(part: str) -> tuple[np.ndarray, np.ndarray]:
    """The images (uint8, N x 3 x 32 x 32) and classes of `part`, "train" or "validation"."""
    with np.load(folder() / "images.npz") as arrays:
        return arrays[f"{part}_inputs"], arrays[f"{part}_targets"]
