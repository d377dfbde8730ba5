"""What a trial trains on: examples in memory or in files, split once, read in batches by index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


class DataError(ValueError):
    """The data is missing, truncated or altered; the text names the file and what to do."""


@dataclass(frozen=True)
class Arrays:
    """Examples held in memory; `targets[i]` belongs to `inputs[i]`.

    Args:
        inputs: array of shape (N, ...), uint8 for images, any dtype that torch knows.
        targets: array of shape (N, ...).
    """

    inputs: np.ndarray
    targets: np.ndarray

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs but {len(self.targets)} targets: one target an input")

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: np.ndarray) -> Arrays:
        """The examples at these indices, in their order."""
        return Arrays(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True)
class Files:
    """Examples that do not fit in memory: a file each, decoded when it is read; `targets[i]` belongs to `paths[i]`.

    Args:
        paths: array of shape (N,) of bytes (`os.fsencode`): every trial of a node maps the same one, where a
            list of a million strings would be copied into each.
        targets: array of shape (N,) or (N, ...).
        decode: `decode(path) -> array`, the input as it is stored in a batch (uint8 of shape (3, H, W), say), of
            one shape and dtype for all; called in processes of the trial's loader. What it raises fails the
            trial, and the file is named.
    """

    paths: np.ndarray
    targets: np.ndarray
    decode: Callable[[str], np.ndarray]

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.targets):
            raise ValueError(f"{len(self.paths)} paths but {len(self.targets)} targets: one target a path")

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, rows: np.ndarray) -> Files:
        """The examples at these indices, in their order."""
        return Files(self.paths[rows], self.targets[rows], self.decode)


@dataclass(frozen=True)
class Splits:
    """A data set as a space's `data` function returns it.

    Args:
        train: what is trained on, and, while `validation` is None, what the validation part is taken from.
        validation: what every report is measured on; None has the service take a seeded part of `train`.
        test: evaluated once, with the best trial, at the end of the search; None when there is none.
        source: where the examples came from, kept in experiment.json.
        constants: what the task's functions find in their config beside the setting, because only the data
            can tell: the number of classes, say.
        notice: what a reader of the answer must know about the data (a sample in the place of the whole
            set, say): shown at the start of a search, in experiment.json and beside the answer.
    """

    train: Arrays | Files
    validation: Arrays | Files | None = None
    test: Arrays | Files | None = None
    source: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    notice: str = ""


def hold_out(splits: Splits, *, fraction: float, seed: int) -> Splits:
    """The same splits with `fraction` of `train` moved to `validation`, chosen by `seed` alone.

    All trials of an experiment share the result, so that their figures can be compared. Splits that have a
    validation part already are returned as they are.
    """
    if splits.validation is not None:
        return splits
    order = np.random.default_rng(seed).permutation(len(splits.train))
    num_validation = round(len(order) * fraction)
    # Sorted, because a gather in memory order is faster and the order within a split carries no meaning.
    held, kept = np.sort(order[:num_validation]), np.sort(order[num_validation:])
    return replace(splits, train=splits.train.take(kept), validation=splits.train.take(held))
