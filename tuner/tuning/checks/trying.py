"""Tries one setting of the parameters: trains and evaluates on about one batch, and saves and loads the state."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils import _pytree

from tuner.errors.users_code import place_of, place_raised
from tuner.spec.spaces import with_place
from tuner.training.data import Arrays, Splits
from tuner.training.loop import Training, checked_batch_size
from tuner.training.task import Task
from tuner.tuning.checks.advice import advice_on
from tuner.tuning.checks.examples import batch_of, batch_of_one, named_row, odd_row
from tuner.tuning.checks.failed import Config, Failed
from tuner.tuning.checks.watching import Watch

# A checkpoint of a model with more weights is tried without its tensors: 300 million weights take 1.2 GB, and as much
# again for momentum and each copy.
LARGE_MODEL = 20_000_000
NAN = "look for log(0), a division by 0 or an overflow"


def try_setting(
    task: Task, splits: Splits, odd: Mapping[str, int | None], config: Config, max_epochs: int, precision: str
) -> tuple[Failed | None, str]:
    """Trains and evaluates on about one batch, saves and loads the state.

    Args:
        odd: name of a part -> its first row with NaN or infinity.

    Returns:
        What is to blame for a loss that was NaN or infinite and must not be, None if there is none; and a line that
        counts the model's frozen weights, empty if it has none.

    Raises:
        Failed: a trial with this config would fail.
    """
    whole = {**splits.constants, **config}
    try:
        batch_size = checked_batch_size(whole.get("batch_size", task.batch_size))
    except ValueError as error:
        raise Failed("parameter 'batch_size':" if "batch_size" in whole else "Task:", str(error)) from error
    assert splits.validation is not None
    train = batch_of(splits.train, "train", batch_size, odd.get("train"))
    validation = batch_of(splits.validation, "validation", batch_size, odd.get("validation"))
    small, watch = replace(splits, train=train, validation=validation, test=None), Watch(task, splits)
    try:
        with contextlib.closing(
            Training(watch.task, config, small, seed=0, max_epochs=max_epochs, precision=precision)
        ) as training:
            check_parts(training, task)
            frozen = frozen_weights(training, task)
            unset = [name for name, value in training.model.named_parameters() if not value.isfinite().all()]
            watch.watch_model(training, batch_of_one(splits, batch_size))
            report = training.run_epoch()
            check_state(training)
    except Failed:
        raise
    except (Exception, SystemExit) as error:
        place = "" if place_raised(error) else f" after the forward pass{watch.forward}"
        raise Failed(f"a training step{place}", f"raises {with_place(error)}", advice_on(error)) from error
    for name, part, loss in (("train", train, report["train_loss"]), ("validation", validation, report["loss"])):
        if not math.isfinite(loss) and (example := odd_example(splits, name, odd, part)):
            return odd_data(task, name, example), frozen
    if watch.first_loss is None or math.isfinite(watch.first_loss):
        return None, frozen
    if unset:
        problem = f"makes {unset[0]!r} with NaN or infinite values"
        blamed = Failed(f"model(config){place_of(task.model)}", problem, "initialize it with finite numbers")
    elif not watch.finite_outputs:
        problem = "gives outputs with NaN or infinite values on the first batch"
        blamed = Failed(f"the model{watch.forward}", problem, f"{NAN} in its forward pass")
    else:
        place = place_of(task.training_loss or task.loss) or watch.forward
        blamed = Failed(f"the loss{place}", "is not a finite number on the first batch", f"{NAN} in it")
    return blamed, frozen


def odd_example(splits: Splits, name: str, odd: Mapping[str, int | None], tried: Arrays | None = None) -> str:
    """Names the first example of a part with NaN or infinity; of data in files, only `tried` ones are searched."""
    row = odd.get(name)
    if row is None and tried is not None and not isinstance(getattr(splits, name), Arrays):
        row = odd_row(tried)
    return "" if row is None else named_row(splits, name, row)


def odd_data(task: Task, name: str, example: str) -> Failed:
    """Returns the Failed that names the first example with NaN or infinity in a part of the data."""
    problem = f"has NaN or infinite values, the first in {example}"
    advice = "replace or drop them: np.isfinite finds them"
    return Failed(f"the {name} part of the data{place_of(task.data)}", problem, advice)


def frozen_weights(training: Training, task: Task) -> str:
    """Returns a line that counts the frozen weights, empty if there are none; raises Failed if all are frozen."""
    sizes = [each.numel() for each in training.model.parameters()]
    frozen = [each.numel() for each in training.model.parameters() if not each.requires_grad]
    if frozen and len(frozen) == len(sizes):
        advice = "leave requires_grad at True in the layers to train"
        problem = f"has no parameter to train: all {sum(sizes):,} weights are frozen (requires_grad=False)"
        raise Failed(f"model(config){place_of(task.model)}", problem, advice)
    counts = f"{sum(frozen):,} of the model's {sum(sizes):,} weights ({len(frozen)} of {len(sizes)} tensors)"
    where = place_of(task.model)
    return f"NOTE: {counts} are frozen (requires_grad=False){where}: no trial trains them" if frozen else ""


def check_parts(training: Training, task: Task) -> None:
    """Raises Failed if the optimizer trains no parameter of the model, or the schedule needs a metric."""
    own = {id(parameter) for parameter in training.model.parameters()}
    given = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    if own and not any(id(parameter) in own for parameter in given):
        advice = "pass on the parameters that the function gets; it must not build another model"
        place = place_of(task.optimizer)
        raise Failed(f"optimizer(parameters, config){place}", "trains no parameter of the model", advice)
    if isinstance(training.schedule, ReduceLROnPlateau):
        advice = "use another one, such as CosineAnnealingLR(optimizer, max_epochs)"
        problem = "is a ReduceLROnPlateau, but a Task steps its schedule without a metric"
        raise Failed(f"the schedule{place_of(task.schedule)}", problem, advice)


def check_state(training: Training) -> None:
    """Saves and loads the training's state as a checkpoint does; a large model's tensors are left out."""
    large = sum(each.numel() for each in training.model.parameters()) > LARGE_MODEL
    file = io.BytesIO()
    try:
        state: Any = training.state_dict()
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
