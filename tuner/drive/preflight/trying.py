"""Tries one setting: trains and evaluates it on about one batch, and saves and loads its state."""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.drive.advice import advice_on, batch_of_one, counted
from tuner.drive.preflight import limits
from tuner.drive.preflight.examples import batch_of, check_classes, odd_example
from tuner.drive.preflight.limits import Config, Failed, Late, Tries
from tuner.drive.preflight.watching import watch_model, watched_task
from tuner.spec.spaces import place_of, said, with_place
from tuner.training.data import Splits
from tuner.training.task import Task

if TYPE_CHECKING:
    from tuner.drive.session import Request
    from tuner.training.loop import Training


def try_setting(request: Request, task: Task, splits: Splits, tries: Tries) -> None:
    """Trains and evaluates a setting on about one batch, saves and loads its state; raises a Failed for what fails."""
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
            check_parameters(training, task)
            watch_model(training, task, batch_of_one(splits, batch_size), outputs, tries)
            training.run_epoch()
            check_state(training, tries)
    except (Failed, Late):
        raise
    except (Exception, SystemExit) as error:
        raise failed_step(error, task, whole, tries.forward) from error
    check_classes(task, splits, outputs[-1] if outputs else None)


def failed_step(error: BaseException, task: Task, config: Config, forward: str) -> Failed:
    """What to say about an error of a training step that no function of the task raised, such as its backward pass."""
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


def check_parameters(training: Training, task: Task) -> None:
    """Checks that the optimizer trains at least one parameter of the model."""
    own = {id(parameter) for parameter in training.model.parameters()}
    given = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    if own and not any(id(parameter) in own for parameter in given):
        advice = "pass on the parameters that the function gets; it must not build another model"
        place = place_of(task.optimizer)
        raise Failed(f"optimizer(parameters, config){place}", "trains no parameter of the model", advice)


def check_losses(tries: Tries, splits: Splits, task: Task) -> None:
    """Checks that at least one tried setting has a finite loss before its first update, with NaN in the data or not."""
    row, place = odd_example(splits.train), place_of(task.training_loss or task.loss)
    if not (tries.losses and tries.broken) or (row is None and any(map(math.isfinite, tries.losses))):
        return
    advice = "look for log(0), a division by 0 or a square root of 0 in the model and the loss"
    if row is not None:
        problem = f"have NaN or infinite values, the first in example {row} (counted from 0) of the {counted(splits)}"
        raise Failed(f"the train data{place_of(task.data)}", problem, "replace or drop them: np.isfinite finds them")
    raise Failed(f"the loss{place or place_of(task.model)}", "is not a finite number on the first batch", advice)


def check_state(training: Training, tries: Tries) -> None:
    """Saves and loads the training's state as a checkpoint does; without its tensors if the model is large."""
    import torch
    from torch.utils import _pytree

    file = io.BytesIO()
    large = sum(each.numel() for each in training.model.parameters()) > limits.LARGE_MODEL
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
        raise Failed("a checkpoint", f"cannot be saved and loaded: {with_place(error)[:300]}", advice) from error
