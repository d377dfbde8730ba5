"""Checks the data of a Task, and chooses the examples that the preflight check tries."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from tuner.drive.advice import NEGATIVE, counted
from tuner.drive.preflight import limits
from tuner.drive.preflight.limits import Failed
from tuner.errors.users_code import place_of, place_raised
from tuner.spec.space import Space
from tuner.training.data import Arrays, DataError, Part, Splits, read_examples
from tuner.training.task import Task

logger = logging.getLogger(__name__)


def check_lengths(splits: Splits, space: Space) -> None:
    """Raises Failed if a part of the data is empty; warns if a constant batch_size exceeds the train examples."""
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    assert space.task is not None
    advice = {"validation": "give more examples, or Splits(validation=...)", "test": "leave it out, or give some"}
    for name, part in parts.items():
        if part is not None and len(part) == 0:
            raise Failed(
                f"the {name} part of the data{place_of(space.task.data)}",
                "has no examples",
                advice.get(name, "the data function must return some"),
            )
    size = splits.constants.get("batch_size", space.declared.get("batch_size", space.task.batch_size))
    if isinstance(size, int) and size > len(splits.train):
        logger.warning("batch_size %d is above the %s: each epoch is one batch", size, counted(splits))


def odd_example(part: Part) -> int | None:
    """Returns the row of the first example with NaN or infinity; None if there is none.

    It searches only Arrays, the inputs before the targets, and no array above LARGEST_SCAN bytes.
    """
    for values in (part.inputs, part.targets) if isinstance(part, Arrays) else ():
        if values.dtype.kind == "f" and values.nbytes <= limits.LARGEST_SCAN:
            odd = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if odd.any():
                return int(odd.argmax())
    return None


def batch_of(part: Part, name: str, batch_size: int) -> Arrays:
    """Returns a part's first examples: a full batch and the smaller last one, or fewer if examples are large."""
    one = part if isinstance(part, Arrays) else None
    values = np.size(one.inputs[0]) if one else limits.MOST_VALUES // 8
    most = max(2, limits.MOST_VALUES // max(1, int(values)))
    rest = len(part) % batch_size
    # If an epoch's last batch has one example, a batch of one is tried, because batch norm cannot train on it.
    num = batch_size + rest if batch_size <= most else 1 if rest == 1 else most
    rows = np.arange(min(num, len(part)))
    if one:
        odd = odd_example(one)  # replaces the last example, so that the batch has it
        return one.take(rows if odd is None or odd in rows else np.array([*rows[:-1], odd]))
    assert not isinstance(part, Arrays)
    try:
        inputs, targets = read_examples(part, rows.tolist())
    except DataError as error:
        raise Failed(f"the {name} part of the data:", f"{error}{place_raised(error)}") from error
    return Arrays(np.stack(inputs), targets)


def check_classes(task: Task, splits: Splits, outputs: Any) -> None:
    """Checks that class numbers lie from 0 to the model's outputs - 1; on a GPU, CUDA would only report an `assert`."""
    import torch

    from tuner.training.sources import predicts_classes

    if not (predicts_classes(task) and isinstance(outputs, torch.Tensor) and outputs.ndim >= 2):
        return
    for name in ("train", "validation", "test"):
        part = getattr(splits, name)
        targets = getattr(part, "targets", None)
        if targets is None or targets.dtype != np.int64 or targets.ndim != 1:
            continue
        counted = targets[targets != getattr(task.loss, "ignore_index", -100)]
        low, high = (int(counted.min()), int(counted.max())) if len(counted) else (0, 0)
        if low < 0 or high >= outputs.shape[1]:
            count = outputs.shape[1]
            raise Failed(
                f"the {name} targets{place_of(task.data)}",
                f"go from {low} to {high}, but the model has {count} outputs",
                NEGATIVE
                if low < 0
                else f"class numbers go from 0 to {count - 1}: renumber the targets, or give the model more outputs",
            )
