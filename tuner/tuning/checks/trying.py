"""Tries one setting of the parameters: trains and evaluates on about one batch, and saves the state.

The functions of the Task and the model's forward pass are traced, to name those that fail or return a wrong value.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils import _pytree

from tuner.errors.users_code import place_of, place_raised
from tuner.spec.spaces import with_place
from tuner.training.data import Arrays, Splits
from tuner.training.loop import Training, checked_batch_size
from tuner.training.sources import predicts_classes
from tuner.training.task import Task, TrialSpec
from tuner.tuning.checks.advice import CheckFailed, Config, TracedConfig, advice_on, arguments_of, described
from tuner.tuning.checks.data import batch_of, check_classes, nonfinite_data, nonfinite_row

NAN = "look for log(0), a division by 0 or an overflow"
BY_GRADIENTS = "by operations with a gradient: no argmax, ==, round, detach, item or no_grad"
MEAN = "its mean over the batch, a tensor without dimensions (no .item())"


def _is_mean(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _steps(value: Any) -> bool:
    """Whether a value has what the training calls of an optimizer or a schedule."""
    fits = hasattr(value, "step") and hasattr(value, "state_dict") and not isinstance(value, type)
    return fits and not isinstance(value, ReduceLROnPlateau)


def _is_number(value: Any) -> bool:
    """Whether a metric's value can be converted to a float, as reports need."""
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


SCHEDULE = "a learning-rate scheduler that steps without a metric, such as CosineAnnealingLR(optimizer, max_epochs)"
# Function of a Task -> its name in errors, the check of what it returns, and what it should return.
RETURNS: dict[str, tuple[str, Callable[[Any], bool], str]] = {
    "model": ("model(config)", lambda value: isinstance(value, nn.Module), "a torch.nn.Module, such as Net(...)"),
    "optimizer": ("optimizer(parameters, config)", _steps, "a torch.optim.Optimizer"),
    "loss": ("the loss", _is_mean, MEAN),
    "training_loss": ("training_loss", _is_mean, MEAN),
    "schedule": ("schedule(optimizer, config, max_epochs)", _steps, SCHEDULE),
    "prepare": ("prepare", torch.is_tensor, "the prepared inputs, a tensor"),
    "augment": ("augment", torch.is_tensor, "the augmented inputs, a tensor"),
}


class TracedTask:
    """Wraps the functions of a Task for one setting.

    Attributes:
        task: the Task with wrapped functions: one that fails or returns a wrong value raises CheckFailed.
        first_loss: the loss of the first training batch, before any update; None before that batch.
        finite_outputs: whether the model's outputs for that batch were finite.
        forward: file and line of the user's forward pass.
    """

    def __init__(self, task: Task, splits: Splits) -> None:
        self.first_loss: float | None = None
        self.finite_outputs, self.forward = True, place_of(task.model)
        self._task, self._splits = task, splits
        self._minimized = "training_loss" if task.training_loss else "the loss"
        whole = replace(task, loss=task.loss or nn.functional.cross_entropy)
        traced: dict[str, Any] = {
            field: self._traced(name, function, fits, wanted)
            for field, (name, fits, wanted) in RETURNS.items()
            if (function := getattr(whole, field)) is not None
        }
        traced["metrics"] = {
            name: self._traced(f"metrics[{name!r}]", each, _is_number, "its mean over the batch, a tensor or a number")
            for name, each in task.metrics.items()
        }
        self.task = replace(whole, **traced, compile=False, stages=None)

    def trace_forward(self, model: nn.Module) -> None:
        """Wraps the model's forward pass."""
        self.forward = place_of(model.forward) or self.forward
        model.forward = self._traced("the model", model.forward, lambda outputs: True, "")

    def _traced(self, name: str, function: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
        """Returns a function that calls the user's one and raises CheckFailed with its name."""

        def call(*arguments: Any, **options: Any) -> Any:
            minimized = name == self._minimized and torch.is_grad_enabled()  # an evaluation has no gradients
            if minimized and self.first_loss is None and predicts_classes(self._task):
                check_classes(self._task, self._splits, arguments[0])
            try:
                given = (TracedConfig(each) if type(each) is dict else each for each in arguments)
                value = function(*given, **options)
            except (Exception, SystemExit) as error:
                place = place_of(function) or (self.forward if name == "the model" else "")
                raised = place_raised(error)
                advice = [self._arguments(name, arguments, not (raised or place)), advice_on(error, name, function)]
                problem = f"raises {with_place(error)}{'' if raised else place}"
                raise CheckFailed(name, problem, "; ".join(filter(None, advice))) from error
            if not fits(value):
                made = f"an object: {value.__name__}(...)" if isinstance(value, type) else wanted
                raise CheckFailed(f"{name}{place_of(function)}", f"returns {described(value)}", f"return {made}")
            if minimized:
                self._check_loss(f"{name}{place_of(function)}", arguments[0], value)
            return value

        return call

    def _arguments(self, name: str, arguments: tuple[Any, ...], with_places: bool) -> str:
        """Describes the tensors that a function got; `with_places` adds where the user's model and data are defined."""
        if not any(isinstance(each, Tensor) for each in arguments):
            return ""
        places = ["", "", ""]
        if with_places and len(arguments) > 1:
            places[:2] = self.forward, place_of(self._task.data)
        texts = zip(arguments_of(name).split(", "), arguments, places, strict=False)
        text = ", ".join(f"{argument}: {described(value)}{place}" for argument, value, place in texts)
        if name == "the loss" and predicts_classes(self._task):  # torch's own loss, whose arguments are known
            outputs, targets = arguments[:2]
            if not isinstance(outputs, Tensor):
                text += "; cross-entropy takes one tensor: return the scores alone, or use Task(loss=...)"
            elif targets.is_floating_point() and targets.shape != outputs.shape:
                text += "; class numbers are integers: return targets.astype('int64')"
        return f"it gets {text}"

    def _check_loss(self, loss: str, outputs: Any, value: Tensor) -> None:
        """Keeps the first loss of the training; raises CheckFailed if no gradient leads from it to the model."""
        if not value.requires_grad:
            if isinstance(outputs, Tensor) and not outputs.requires_grad:
                advice = f"compute them {BY_GRADIENTS}, and leave requires_grad at True in the layers to train"
                raise CheckFailed(f"the model{self.forward}", "gives outputs without a gradient", advice)
            raise CheckFailed(loss, "has no gradient", f"compute it from the outputs {BY_GRADIENTS}")
        if self.first_loss is None:
            self.first_loss = float(value.detach())
            self.finite_outputs = not isinstance(outputs, Tensor) or bool(outputs.isfinite().all())


def try_setting(
    task: Task, splits: Splits, odd: Mapping[str, int | None], config: Config, max_epochs: int, precision: str
) -> tuple[CheckFailed | None, str]:
    """Trains and evaluates on about one batch, and saves the state.

    Args:
        odd: name of a part -> its first row with NaN or infinity.

    Returns:
        What is to blame for a loss that was NaN or infinite and must not be, None if there is none; and a line that
        counts the model's frozen weights, empty if it has none.

    Raises:
        CheckFailed: a trial with this config would fail.
    """
    merged = {**splits.constants, **config}
    try:
        batch_size = checked_batch_size(merged.get("batch_size", task.batch_size))
    except ValueError as error:
        raise CheckFailed("parameter 'batch_size':" if "batch_size" in merged else "Task:", str(error)) from error
    batches = {
        name: batch_of(getattr(splits, name), name, batch_size, odd.get(name)) for name in ("train", "validation")
    }
    small, traced = replace(splits, **batches, test=None), TracedTask(task, splits)  # type: ignore[arg-type]
    try:
        with contextlib.closing(
            Training(traced.task, small, TrialSpec(config, seed=0, max_epochs=max_epochs, precision=precision))
        ) as training:
            weights = dict(training.model.named_parameters())
            trained = {id(each) for group in training.optimizer.param_groups for each in group["params"]}
            if weights and trained.isdisjoint(map(id, weights.values())):
                where, advice = (
                    place_of(task.optimizer),
                    "use its argument `parameters`; it must not build another model",
                )
                raise CheckFailed(f"{RETURNS['optimizer'][0]}{where}", "trains no parameter of the model", advice)
            unset = [name for name, value in weights.items() if not value.isfinite().all()]
            traced.trace_forward(training.model)
            report = training.run_epoch()
            _check_state(training)
    except CheckFailed:
        raise
    except (Exception, SystemExit) as error:
        place = "" if place_raised(error) else f" after the forward pass{traced.forward}"
        raise CheckFailed(f"a training step{place}", f"raises {with_place(error)}", advice_on(error)) from error
    frozen = _frozen_weights(weights, place_of(task.model))
    for (name, batch), key in zip(batches.items(), ("train_loss", "loss"), strict=True):
        row = odd.get(name)
        if row is None and not isinstance(getattr(splits, name), Arrays):
            row = nonfinite_row(batch)  # only the tried examples of files and datasets are searched
        if row is not None and not math.isfinite(report[key]):
            return nonfinite_data(task, splits, name, row), frozen
    if traced.first_loss is None or math.isfinite(traced.first_loss):
        return None, frozen
    if unset:
        blamed = f"model(config){place_of(task.model)}", f"makes {unset[0]!r} with NaN or infinite values"
        return CheckFailed(*blamed, "initialize it with finite numbers"), frozen
    if not traced.finite_outputs:
        problem = "gives outputs with NaN or infinite values on the first batch"
        return CheckFailed(f"the model{traced.forward}", problem, f"{NAN} in its forward pass"), frozen
    place = place_of(task.training_loss or task.loss) or traced.forward
    return CheckFailed(f"the loss{place}", "is not a finite number on the first batch", f"{NAN} in it"), frozen


def _frozen_weights(weights: Mapping[str, Tensor], place: str) -> str:
    frozen = [each.numel() for each in weights.values() if not each.requires_grad]
    total = sum(each.numel() for each in weights.values())
    counts = f"{sum(frozen):,} of the model's {total:,} weights ({len(frozen)} of {len(weights)} tensors)"
    return f"NOTE: {counts} are frozen (requires_grad=False){place}: no trial trains them" if frozen else ""


def _check_state(training: Training) -> None:
    """Saves the training's state as a checkpoint does and reads it; without the content of tensors, which may be GB."""
    state = _pytree.tree_map(lambda each: each.new_empty(0) if torch.is_tensor(each) else each, training.state_dict())
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        advice = "keep tensors, numbers, texts, lists and dicts in the state_dict of model, optimizer and schedule"
        problem = with_place(error).partition(". ")[0]  # torch's text goes on for ten sentences
        raise CheckFailed("a checkpoint", f"cannot be saved and loaded: {problem}", advice) from error
