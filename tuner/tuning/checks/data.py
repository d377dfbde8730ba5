"""Reads and splits a search's data, checks it, and chooses the examples that the preflight check tries."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from tuner.errors import RequestError
from tuner.errors.users_code import place_of, place_raised
from tuner.spec.space import Space
from tuner.spec.spaces import with_place
from tuner.training.data import Arrays, DataError, Files, HeldOut, Mapped, Splits, read_examples
from tuner.training.task import Task
from tuner.tuning.checks.advice import CheckFailed, advice_on
from tuner.tuning.requests import Request

logger = logging.getLogger(__name__)
# MOST_VALUES limits the input values of a tried batch: 10 MNIST images. With 85 CIFAR images, MobileNet at 112 pixels
# takes 30 s.
MOST_VALUES = 2**13
CHUNK_BYTES = 2**20  # of an array that is searched for NaN at once: 614 MB, CIFAR-10 as float32, take 0.11 s


def load_data(request: Request) -> Request:
    """Reads, decodes and splits a request's data; RequestError if data is missing or the data function fails."""
    task, experiment = request.loaded_space.space.task, request.experiment
    if task is None:
        return request
    from tuner.training.sources import UnsuitableData, splits_of

    function, folder = f"--space {experiment.space}: its data function", experiment.data_dir
    try:
        splits = splits_of(task, folder, experiment.seed)
    except UnsuitableData as error:
        place = place_raised(error.__cause__ and error.__cause__.__cause__) or place_of(task.data)
        raise RequestError(f"{function}{place} {error}") from error
    except DataError as error:
        raise RequestError(str(error)) from error
    except (Exception, SystemExit) as error:
        # Such as AttributeError: 'NoneType' object ..., or the path "None/train.csv" of f"{data_dir}/train.csv".
        without = "NoneType" in str(error) and isinstance(error, (TypeError, AttributeError)) or "None/" in str(error)
        if without and not folder:
            raise RequestError(f"{function} needs a folder: give --data-dir DIR ({with_place(error)})") from error
        advice = advice_on(error) or "correct the function"
        if isinstance(error, (OSError, SystemExit)) and "--data-dir" not in advice:
            advice += f"; correct --data-dir {folder}" if folder else "; if it needs a folder, give --data-dir DIR"
        raise RequestError(f"{function} raises {with_place(error)}; {advice}") from error
    facts = {**request.facts, "data": {"source": splits.source, "notice": splits.notice}}
    return replace(request, splits=splits, facts=facts)


def check_lengths(splits: Splits, space: Space) -> None:
    """Raises CheckFailed if a part of the data is empty; warns if a constant batch_size exceeds the train examples."""
    assert space.task is not None
    advice = {"validation": "give more examples, or Splits(validation=...)", "test": "leave it out, or give some"}
    for name, part in splits.parts.items():
        if len(part) == 0:
            where = f"the {name} part of the data{place_of(space.task.data)}"
            raise CheckFailed(where, "has no examples", advice.get(name, "the data function must return some"))
    size = splits.constants.get("batch_size", space.declared.get("batch_size", space.task.batch_size))
    num, held_out = len(splits.train), len(splits.validation)
    if isinstance(size, int) and size > num:
        text = "batch_size %d is above the %d training examples (%d of %d are for validation): each epoch is one batch"
        logger.warning(text, size, num, held_out, num + held_out)


def nonfinite_row(part: Any) -> int | None:
    """Returns the first row of Arrays with NaN or infinity in its input or target; None for other parts of data."""
    rows = []
    for values in (part.inputs, part.targets) if isinstance(part, Arrays) else ():
        if values.dtype.kind in "fc" and values.size:
            step = max(1, CHUNK_BYTES * len(values) // values.nbytes)
            for start in range(0, len(values), step):
                finite = np.isfinite(values[start : start + step])
                if not finite.all():
                    rows.append(start + int(finite.reshape(len(finite), -1).all(axis=1).argmin()))
                    break
    return min(rows, default=None)


def nonfinite_data(task: Task, splits: Splits, name: str, row: int) -> CheckFailed:
    """Returns the error that names an example with NaN or infinity by its number in what `data` returned."""
    part = splits.parts[name]
    example = f"example {row} (counted from 0)"
    if isinstance(part, Files):
        example = part.path(row)
    elif isinstance(part, Mapped):
        example = f"item {part.rows[row]} of the {type(part.dataset).__name__}"
    elif isinstance(splits, HeldOut) and name == "train":
        example = f"example {splits.rows[name][row]} (counted from 0)"
    elif isinstance(splits, HeldOut) and name == "validation":
        example = f"example {splits.rows[name][row]} of train (counted from 0), which is held out for validation"
    problem = f"has NaN or infinite values, the first in {example}"
    return CheckFailed(f"the {name} part of the data{place_of(task.data)}", problem, "replace or drop them")


def batch_of(part: Any, name: str, batch_size: int, odd: int | None) -> Arrays:
    """Returns a part's first examples: a full batch and the smaller last one, or fewer if examples are large.

    The batch has the example `odd`, in which is NaN or infinity.
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
        raise CheckFailed(f"the {name} part of the data:", f"{error}{place_raised(error)}") from error
    return Arrays(np.stack(inputs), targets)


def check_classes(task: Task, splits: Splits, outputs: Any) -> None:
    """Raises CheckFailed if a part has class numbers without an output of the model; a GPU would only say `assert`."""
    num_outputs: int = outputs.shape[1] if getattr(outputs, "ndim", 0) >= 2 else 0
    for name, part in splits.parts.items() if num_outputs else ():
        targets = getattr(part, "targets", None)
        if targets is None or targets.dtype != np.int64 or targets.ndim != 1:
            continue
        classes = targets[targets != getattr(task.loss, "ignore_index", -100)]
        low, high = (int(classes.min()), int(classes.max())) if len(classes) else (0, 0)
        if low < 0 or high >= num_outputs:
            more = "loss=nn.CrossEntropyLoss(ignore_index=-1)" if low < 0 else "the model more outputs"
            raise CheckFailed(
                f"the {name} targets{place_of(task.data)}",
                f"go from {low} to {high}, but the model has {num_outputs} outputs",
                f"class numbers go from 0 to {num_outputs - 1}: renumber the targets, or give {more}",
            )
