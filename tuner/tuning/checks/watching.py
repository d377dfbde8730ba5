"""Wraps the functions of a Task and the model's forward pass, to name those that fail or return a wrong value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tuner.errors.users_code import place_of, place_raised
from tuner.spec.spaces import said, with_place
from tuner.training.data import Splits
from tuner.training.sources import predicts_classes
from tuner.training.task import Task
from tuner.tuning.checks.advice import WatchedConfig, advice_of_class, advice_on, described
from tuner.tuning.checks.examples import check_classes
from tuner.tuning.checks.failed import Failed

if TYPE_CHECKING:
    from tuner.training.loop import Training

MEAN = "its mean over the batch, a tensor without dimensions (no .item())"
BY_GRADIENTS = "by operations with a gradient: no argmax, ==, round, detach, item or no_grad"


class Watch:
    """Watches the functions of a Task in one setting.

    Attributes:
        task: the Task with wrapped functions: one that fails or returns a wrong value raises Failed with its name.
        first_loss: the loss of the first training batch, before any update; None before that batch.
        finite_outputs: whether the model's outputs for that batch were finite.
        forward: file and line of the user's forward pass.
    """

    def __init__(self, task: Task, splits: Splits) -> None:
        self.first_loss: float | None = None
        self.finite_outputs, self.forward = True, place_of(task.model)
        self._task, self._splits = task, splits
        self._minimised = "training_loss" if task.training_loss else "the loss"
        call, metric = self._watched, "its mean over the batch, a tensor or a number"
        self.task = replace(
            task,
            model=call("model(config)", task.model, is_module, "a torch.nn.Module, such as Net(...)"),
            optimizer=call("optimizer(parameters, config)", task.optimizer, steps, "a torch.optim.Optimizer"),
            loss=call("the loss", task.loss or nn.functional.cross_entropy, is_mean, MEAN),
            training_loss=call("training_loss", task.training_loss, is_mean, MEAN),
            metrics={name: call(f"metrics[{name!r}]", each, is_number, metric) for name, each in task.metrics.items()},
            schedule=call(
                "schedule(optimizer, config, max_epochs)",
                task.schedule,
                steps,
                "a learning-rate scheduler of torch.optim.lr_scheduler",
            ),
            prepare=call("prepare", task.prepare, is_tensor, "the prepared inputs, a tensor"),
            augment=call("augment", task.augment, is_tensor, "the augmented inputs, a tensor"),
            compile=False,
            stages=None,
        )

    def _watched(self, name: str, function: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
        """Returns a function that calls the Task's one, if there is one, and raises Failed with its name."""
        if function is None:
            return None

        def call(*arguments: Any) -> Any:
            trains = name == self._minimised and torch.is_grad_enabled()  # an evaluation has no gradients
            if trains and self.first_loss is None:
                check_classes(self._task, self._splits, arguments[0])
            try:
                value = function(*(WatchedConfig(each) if type(each) is dict else each for each in arguments))
            except (Exception, SystemExit) as error:
                raised = place_raised(error)
                advice = [self._arguments(name, arguments, not (raised or place_of(function)))]
                advice += [advice_of_class(name, function) or advice_on(error, name)]
                problem = f"raises {with_place(error)}{'' if raised else place_of(function)}"
                raise Failed(name, problem, "; ".join(filter(None, advice))) from error
            if not fits(value):
                made = f"an object: {value.__name__}(...)" if isinstance(value, type) else wanted
                raise Failed(f"{name}{place_of(function)}", f"returns {described(value)}", f"return {made}")
            if trains:
                self._note(f"{name}{place_of(function)}", arguments[0], value)
            return value

        return call

    def _arguments(self, name: str, arguments: tuple[Any, ...], with_places: bool) -> str:
        """Describes the tensors that a function got; `with_places` adds where the user's model and data are defined."""
        if not any(isinstance(each, Tensor) for each in arguments):
            return ""
        if len(arguments) == 1:
            return f"it gets {described(arguments[0])}"
        places = (self.forward, place_of(self._task.data)) if with_places else ("", "")
        (outputs, targets), more = arguments[:2], ""
        if name == "the loss" and predicts_classes(self._task):  # torch's own loss, whose arguments are known
            if not isinstance(outputs, Tensor):
                more = "; cross-entropy takes one tensor: return the scores alone, or use Task(loss=...)"
            elif targets.is_floating_point() and targets.shape != outputs.shape:
                more = "; class numbers are integers: return targets.astype('int64')"
        return f"it gets outputs: {described(outputs)}{places[0]}, and targets: {described(targets)}{places[1]}{more}"

    def _note(self, loss: str, outputs: Any, value: Tensor) -> None:
        """Keeps the first loss of the training; raises Failed if no gradient leads from it to the model."""
        if not value.requires_grad and isinstance(outputs, Tensor) and not outputs.requires_grad:
            raise Failed(f"the model{self.forward}", "gives outputs without a gradient", f"compute them {BY_GRADIENTS}")
        if not value.requires_grad:
            raise Failed(loss, "has no gradient", f"compute it from the outputs {BY_GRADIENTS}")
        if self.first_loss is None:
            self.first_loss = float(value.detach())
            self.finite_outputs = not isinstance(outputs, Tensor) or bool(outputs.isfinite().all())

    def watch_model(self, training: Training, of_one: str) -> None:
        """Makes the forward pass raise a Failed that describes its inputs.

        Args:
            of_one: the advice on a batch of one example, for batch norm.
        """
        forward = training.model.forward
        self.forward = place_of(forward) or self.forward
        weights = next(training.model.parameters(), None)

        def call(*inputs: Any, **options: Any) -> Any:
            try:
                return forward(*inputs, **options)
            except (Exception, SystemExit) as error:
                place = place_raised(error) or place_of(self._task.model)
                advice = [f"it gets inputs of {described(inputs[0])}", advice_on(error)]
                if weights is not None and weights.dtype != inputs[0].dtype:
                    advice[0] += f", its weights are {str(weights.dtype).removeprefix('torch.')}"
                if raised_by(error) == "_verify_batch_size":
                    advice = [of_one]
                problem = f"raises {type(error).__name__}: {said(error)}{place}"
                raise Failed("the model", problem, "; ".join(filter(None, advice))) from error

        training.model.forward = call


def raised_by(error: BaseException) -> str:
    """Returns the name of the function that raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_name if trace else ""


def is_module(value: Any) -> bool:
    return isinstance(value, nn.Module)


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def is_mean(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def steps(value: Any) -> bool:
    """Whether a value has what the training calls of an optimizer or a schedule."""
    return hasattr(value, "step") and hasattr(value, "state_dict") and not isinstance(value, type)


def is_number(value: Any) -> bool:
    """Whether a metric's value can be converted to a float, as reports need."""
    try:
        return math.isfinite(float(value)) or True
    except (TypeError, ValueError, RuntimeError):
        return False
