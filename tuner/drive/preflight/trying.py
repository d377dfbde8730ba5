"""Tries one setting of the parameters: trains and evaluates on about one batch, and saves and loads the state."""

from __future__ import annotations

import contextlib
import io
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.drive.advice import advice_on, batch_of_one, counted
from tuner.drive.preflight import limits
from tuner.drive.preflight.examples import batch_of, check_classes, odd_example
from tuner.drive.preflight.limits import Config, Failed, Late, Tries
from tuner.drive.preflight.watching import watch_model, watched_task
from tuner.errors.users_code import place_of
from tuner.spec.spaces import said, with_place
from tuner.training.data import Arrays, Splits
from tuner.training.task import Task

if TYPE_CHECKING:
    from tuner.drive.session import Request
    from tuner.training.loop import Training


def try_setting(request: Request, task: Task, splits: Splits, tries: Tries) -> None:
    """Trains and evaluates with `tries.tried` on about one batch, saves and loads the state; raises Failed or Late."""
    from tuner.training.loop import Training, checked_batch_size

    experiment, config = request.experiment, tries.tried
    whole = {**splits.constants, **config}
    try:
        batch_size = checked_batch_size(whole.get("batch_size", task.batch_size))
    except ValueError as error:
        raise Failed("parameter 'batch_size':" if "batch_size" in whole else "Task:", str(error)) from error
    small = replace(splits, train=batch_of(splits.train, "train", batch_size))
    assert splits.validation is not None
    small = replace(small, validation=batch_of(splits.validation, "validation", batch_size), test=None)
    outputs: list[Any] = []
    watched = watched_task(task, whole, tries)
    try:
        with contextlib.closing(
            Training(watched, config, small, seed=0, max_epochs=experiment.max_epochs, precision=experiment.precision)
        ) as training:
            check_parameters(training, task, tries)
            watch_model(training, task, batch_of_one(splits, batch_size), outputs, tries)
            weights = sum(each.numel() for each in training.model.parameters())
            if weights > limits.LARGE_MODEL or len(small.train) < min(batch_size, len(splits.train)):
                try_in_parts(training, small, 1 if len(splits.train) % batch_size == 1 else 2, weights, outputs, tries)
            else:
                training.run_epoch()
            check_state(training, weights > limits.LARGE_MODEL, tries)
    except (Failed, Late):
        raise
    except (Exception, SystemExit) as error:
        raise failed_step(error, task, whole, tries.forward) from error
    check_classes(task, splits, outputs[-1] if outputs else None)


def try_in_parts(
    training: Training, small: Splits, num_examples: int, weights: int, outputs: list[Any], tries: Tries
) -> None:
    """Does what `run_epoch` does on one small batch, but leaves out long steps that would exceed BUDGET_S.

    The first setting always tries the forward pass, the loss and the metrics. A later setting raises Late instead of
    leaving out a step.
    """
    import torch

    from tuner.training.batches import examples_of

    assert isinstance(small.train, Arrays) and isinstance(small.validation, Arrays)
    # Row -1 is tried first: `batch_of` puts an example with NaN into the last row, unless an earlier row has one.
    train, validation = (part.take(np.arange(-1, num_examples - 1)) for part in (small.train, small.validation))
    examples = examples_of(train, training.task, training.device)
    ((inputs, targets),) = examples.batches(torch.arange(len(train)), len(train), training.train_format)
    inputs = training.task.augment(inputs) if training.task.augment else inputs
    training.network.train()
    began = time.perf_counter()
    loss = training.mean_loss(inputs, targets)
    forward_s = time.perf_counter() - began
    with torch.no_grad():
        for measure in training.measures.values():
            measure(outputs[-1], targets)
    parts: list[tuple[str, float, Callable[[], Any]]] = [
        ("the backward pass", 2 * forward_s, lambda: training.backward(loss)),
        ("the optimizer's step", limits.STEP_S * weights, lambda: training.precision.step(training.optimizer)),
        ("the evaluation", forward_s, lambda: training.evaluate(validation)),
    ]
    for number, (_, about_s, part) in enumerate(parts):
        if about_s > limits.CHEAP_S and tries.spent_s + about_s > limits.BUDGET_S:
            if tries.num > 1:
                raise Late
            tries.left_out += [name for name, *_ in parts[number:]]
            break
        part()
    training.drop_gradients()
    if training.schedule is not None:
        training.schedule.step()


def failed_step(error: BaseException, task: Task, config: Config, forward: str) -> Failed:
    """Returns the Failed for an error that no function of the Task raised, such as an error of the backward pass."""
    text, advice = said(error), advice_on(error, config)
    if "does not require grad" in text:
        name, function = ("training_loss", task.training_loss) if task.training_loss else ("the loss", task.loss)
        return Failed(f"{name}{place_of(function) or place_of(task.model)}", "has no gradient", advice)
    if "modified by an inplace operation" in text:
        problem = "or the loss changes a value in place that the backward pass needs"
        return Failed(f"the forward pass{forward or place_of(task.model)}", problem, advice)
    if "LROnPlateau" in text:
        return Failed(f"the schedule{place_of(task.schedule)}", f"raises {with_place(error)}", advice)
    return Failed("a training step", f"raises {with_place(error)}", advice)


def check_parameters(training: Training, task: Task, tries: Tries) -> None:
    """Raises Failed if the model has parameters and the optimizer trains none of them; notes how many are frozen."""
    sizes = [each.numel() for each in training.model.parameters()]
    frozen = [each.numel() for each in training.model.parameters() if not each.requires_grad]
    if frozen and len(frozen) == len(sizes):
        advice = "leave requires_grad at True in the layers to train"
        problem = f"has no parameter to train: all {sum(sizes):,} weights are frozen (requires_grad=False)"
        raise Failed(f"model(config){place_of(task.model)}", problem, advice)
    if frozen and not tries.frozen:
        counts = f"{sum(frozen):,} of the model's {sum(sizes):,} weights ({len(frozen)} of {len(sizes)} tensors)"
        tries.frozen = f"NOTE: {counts} are frozen (requires_grad=False){place_of(task.model)}: no trial trains them"
    own = {id(parameter) for parameter in training.model.parameters()}
    given = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    if own and not any(id(parameter) in own for parameter in given):
        advice = "pass on the parameters that the function gets; it must not build another model"
        place = place_of(task.optimizer)
        raise Failed(f"optimizer(parameters, config){place}", "trains no parameter of the model", advice)


def check_losses(tries: Tries, splits: Splits, task: Task) -> None:
    """Raises Failed if a loss was NaN or infinite, and the train data has such values or no first loss was finite."""
    row, place = odd_example(splits.train), place_of(task.training_loss or task.loss)
    if not (tries.losses and tries.broken) or (row is None and any(map(math.isfinite, tries.losses))):
        return
    advice = "look for log(0), a division by 0 or a square root of 0 in the model and the loss"
    if row is not None:
        problem = f"have NaN or infinite values, the first in example {row} (counted from 0) of the {counted(splits)}"
        raise Failed(f"the train data{place_of(task.data)}", problem, "replace or drop them: np.isfinite finds them")
    raise Failed(f"the loss{place or place_of(task.model)}", "is not a finite number on the first batch", advice)


def check_state(training: Training, large: bool, tries: Tries) -> None:
    """Saves and loads the training's state as a checkpoint does; a large model's tensors are left out."""
    import torch
    from torch.utils import _pytree

    file = io.BytesIO()
    if large:
        tries.left_out.append("loading a checkpoint")
    try:
        state = training.state_dict()
        if large:
            state = _pytree.tree_map(lambda each: each.new_empty(0) if isinstance(each, torch.Tensor) else each, state)
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True, map_location="cpu")
        if not large:
            training.load_state_dict(state)
    except Exception as error:
        advice = "keep tensors, numbers, texts, lists and dicts in the state_dict of model, optimizer and schedule"
        problem = with_place(error).partition(". ")[0]  # torch's text goes on for ten sentences
        raise Failed("a checkpoint", f"cannot be saved and loaded: {problem}", advice) from error
