"""What a trial trains on: arrays held in memory, split once, read in batches by index."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Splits:
    """A data set as a space's `data` function returns it.

    Args:
        train: what is trained on, and, while `validation` is None, what the validation part is taken from.
        validation: what every report is measured on; None has the service take a seeded part of `train`.
        test: evaluated once, with the best trial, at the end of the search; None when there is none.
        source: where the examples came from, kept in experiment.json.
        notice: what a reader of the answer must know about the data (a sample in the place of the whole
            set, say): shown at the start of a search, in experiment.json and beside the answer.
    """

    train: Arrays
    validation: Arrays | None = None
    test: Arrays | None = None
    source: str = ""
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
    train, validation = (Arrays(splits.train.inputs[rows], splits.train.targets[rows]) for rows in (kept, held))
    return replace(splits, train=train, validation=validation)
