"""Wraps the functions of a Task and the model's forward pass, to name those that fail or return a wrong value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tuner.drive.advice import advice_of_class, advice_on, described
from tuner.drive.preflight.limits import Config, Failed, Late, Tries
from tuner.errors.users_code import place_of, place_raised
from tuner.spec.spaces import said, with_place
from tuner.training.task import Task

if TYPE_CHECKING:
    from tuner.training.loop import Training


def watched_task(task: Task, config: Config, tries: Tries) -> Task:
    """Returns the Task with wrapped functions: one that fails or returns a wrong value raises Failed with its name."""
    import torch
    from torch import nn

    def watched(name: str, function: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
        if function is None:
            return None

        def call(*arguments: Any) -> Any:
            if tries.late:
                raise Late
            try:
                value = function(*arguments)
            except Failed:
                raise
            except (Exception, SystemExit) as error:
                place = "" if place_raised(error) else place_of(function)
                given = got(arguments, with_places=not (place or place_raised(error)))
                known = advice_of_class(name, function) or advice_on(error, config, name)
                advice = "; ".join(filter(None, [given, known]))
                raise Failed(name, f"raises {with_place(error)}{place}", advice) from error
            if "loss" in name and fits(value):
                tries.losses += [float(value)] if len(tries.losses) < tries.num else []
                tries.broken = tries.broken or not math.isfinite(float(value))
            if not fits(value):
                made = f"an object: {value.__name__}(...)" if isinstance(value, type) else wanted
                raise Failed(f"{name}{place_of(function)}", f"returns {described(value)}", f"return {made}")
            return value

        return call

    def got(arguments: tuple[Any, ...], with_places: bool) -> str:
        """Describes the tensors that a function got; `with_places` adds where the user's model and data are defined."""
        if not any(isinstance(each, torch.Tensor) for each in arguments):
            return ""
        if len(arguments) == 1:
            return f"it gets {described(arguments[0])}"
        places = (place_of(task.model), place_of(task.data)) if with_places else ("", "")
        outputs, targets = (f"{described(each)}{place}" for each, place in zip(arguments[:2], places, strict=True))
        return f"it gets outputs: {outputs}, and targets: {targets}"

    def tensor(value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def mean(value: Any) -> bool:
        return tensor(value) and value.ndim == 0

    def optimizer(value: Any) -> bool:
        return hasattr(value, "param_groups") and hasattr(value, "state_dict")

    mean_of_batch = "its mean over the batch, a tensor without dimensions (no .item())"
    metrics = {
        name: watched(f"metrics[{name!r}]", metric, number, "its mean over the batch, a tensor or a number")
        for name, metric in task.metrics.items()
    }
    loss = task.loss or nn.functional.cross_entropy
    return replace(
        task,
        model=watched(
            "model(config)",
            task.model,
            lambda value: isinstance(value, nn.Module),
            "a torch.nn.Module, such as Net(...)",
        ),
        optimizer=watched("optimizer(parameters, config)", task.optimizer, optimizer, "a torch.optim.Optimizer"),
        loss=watched("the loss", loss, mean, mean_of_batch),
        training_loss=watched("training_loss", task.training_loss, mean, mean_of_batch),
        metrics=metrics,
        schedule=watched(
            "schedule(optimizer, config, max_epochs)",
            task.schedule,
            lambda value: hasattr(value, "step") and hasattr(value, "state_dict"),
            "a learning-rate scheduler of torch.optim.lr_scheduler",
        ),
        prepare=watched("prepare", task.prepare, tensor, "the prepared inputs, a tensor"),
        augment=watched("augment", task.augment, tensor, "the augmented inputs, a tensor"),
        compile=False,
        stages=None,
    )


def number(value: Any) -> bool:
    """Whether a metric's value can be converted to a float, as reports need."""
    try:
        float(value)
        return True
    except (TypeError, ValueError, RuntimeError):
        return False


def watch_model(training: Training, task: Task, of_one: str, outputs: list[Any], tries: Tries) -> None:
    """Makes the forward pass raise a Failed that describes its inputs, and store its last outputs in `outputs`."""
    forward = training.model.forward
    tries.forward = place_of(forward)

    def call(*inputs: Any, **options: Any) -> Any:
        if tries.late:
            raise Late
        try:
            outputs[:] = [forward(*inputs, **options)]
            return outputs[0]
        except (Exception, SystemExit) as error:
            place = place_raised(error) or place_of(task.model)
            advice = f"it gets inputs of {described(inputs[0])}"
            if more := advice_on(error, training.config, last_batch=of_one):
                advice = more if more == of_one else f"{advice}; {more}"
            raise Failed("the model", f"raises {type(error).__name__}: {said(error)}{place}", advice) from error

    training.model.forward = call
