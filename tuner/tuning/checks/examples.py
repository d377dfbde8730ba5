"""Checks the data of a Task, and chooses the examples that the preflight check tries."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from tuner.errors.users_code import place_of, place_raised
from tuner.spec.space import Space
from tuner.training.data import Arrays, DataError, Files, HeldOut, Mapped, Part, Splits, read_examples
from tuner.training.task import Task
from tuner.tuning.checks.failed import Failed

logger = logging.getLogger(__name__)
# MOST_VALUES limits the input values of a tried batch: 10 MNIST images. With 85 CIFAR images, MobileNet at 112 pixels
# takes 30 s.
MOST_VALUES = 2**13
CHUNK_BYTES = 2**20  # of an array that is searched for NaN at once: 614 MB, CIFAR-10 as float32, take 0.11 s


def parts_of(splits: Splits) -> Iterator[tuple[str, Part]]:
    """Yields the name and the examples of each part that the data has."""
    for name in ("train", "validation", "test"):
        if (part := getattr(splits, name)) is not None:
            yield name, part


def check_lengths(splits: Splits, space: Space) -> None:
    """Raises Failed if a part of the data is empty; warns if a constant batch_size exceeds the train examples."""
    assert space.task is not None
    advice = {"validation": "give more examples, or Splits(validation=...)", "test": "leave it out, or give some"}
    for name, part in parts_of(splits):
        if len(part) == 0:
            raise Failed(
                f"the {name} part of the data{place_of(space.task.data)}",
                "has no examples",
                advice.get(name, "the data function must return some"),
            )
    size = splits.constants.get("batch_size", space.declared.get("batch_size", space.task.batch_size))
    if isinstance(size, int) and size > len(splits.train):
        logger.warning("batch_size %d is above the %s: each epoch is one batch", size, counted(splits))


def counted(splits: Splits) -> str:
    """Says how many training examples there are, and how many examples are for validation."""
    num, held_out = len(splits.train), len(splits.validation or ())
    return f"{num} training examples ({held_out} of {num + held_out} are for validation)"


def odd_row(part: Arrays) -> int | None:
    """Returns the first row with NaN or infinity in its input or target; None if all are finite."""
    rows = []
    for values in (part.inputs, part.targets):
        if values.dtype.kind in "fc" and values.size:
            step = max(1, CHUNK_BYTES * len(values) // values.nbytes)
            for start in range(0, len(values), step):
                chunk = values[start : start + step]
                if not np.isfinite(chunk).all():
                    rows.append(start + int((~np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1)).argmax()))
                    break
    return min(rows, default=None)


def named_row(splits: Splits, name: str, row: int) -> str:
    """Names an example of a part, with its number in what the user's data function returned."""
    part = getattr(splits, name)
    if isinstance(part, Files):
        return part.path(row)
    if isinstance(part, Mapped):
        return f"item {part.rows[row]} of the {type(part.dataset).__name__}"
    if isinstance(splits, HeldOut) and name in splits.rows:
        row = splits.rows[name][row]
        if name == "validation":
            return f"example {row} of train (counted from 0), which is held out for validation"
    return f"example {row} (counted from 0)"


def batch_of(part: Part, name: str, batch_size: int, odd: int | None) -> Arrays:
    """Returns a part's first examples: a full batch and the smaller last one, or fewer if examples are large.

    Args:
        odd: a row with NaN or infinity, which the batch must have.
    """
    values = np.size(part.inputs[0]) if isinstance(part, Arrays) else MOST_VALUES // 8
    most = max(2, MOST_VALUES // max(1, int(values)))
    rest = len(part) % batch_size
    # If an epoch's last batch has one example, a batch of one is tried, because batch norm cannot train on it.
    num = batch_size + rest if batch_size <= most else 1 if rest == 1 else most
    rows = np.arange(min(num, len(part)))
    if isinstance(part, Arrays):
        return part.take(rows if odd is None or odd in rows else np.array([*rows[:-1], odd]))
    try:
        inputs, targets = read_examples(part, rows.tolist())
    except DataError as error:
        raise Failed(f"the {name} part of the data:", f"{error}{place_raised(error)}") from error
    return Arrays(np.stack(inputs), targets)


def batch_of_one(splits: Splits, size: int) -> str:
    """Says what to do about a batch of one example, which batch norm cannot train on."""
    num = len(splits.train)
    other = next((each for each in range(size + 1, num) if num % each != 1), num)
    return f"a batch has 1 of the {counted(splits)}: give another batch_size, such as {other}"


def check_classes(task: Task, splits: Splits, outputs: Any) -> None:
    """Raises Failed if class numbers are below 0, or not below the number of the model's outputs.

    On a GPU, CUDA would only report an `assert`.
    """
    import torch

    from tuner.training.sources import predicts_classes

    if not (predicts_classes(task) and isinstance(outputs, torch.Tensor) and outputs.ndim >= 2):
        return
    for name, part in parts_of(splits):
        targets = getattr(part, "targets", None)
        if targets is None or targets.dtype != np.int64 or targets.ndim != 1:
            continue
        classes = targets[targets != getattr(task.loss, "ignore_index", -100)]
        low, high = (int(classes.min()), int(classes.max())) if len(classes) else (0, 0)
        if low < 0 or high >= outputs.shape[1]:
            raise Failed(
                f"the {name} targets{place_of(task.data)}",
                f"go from {low} to {high}, but the model has {outputs.shape[1]} outputs",
                f"class numbers go from 0 to {outputs.shape[1] - 1}: renumber the targets, "
                + (
                    "or give loss=nn.CrossEntropyLoss(ignore_index=-1)" if low < 0 else "or give the model more outputs"
                ),
            )
