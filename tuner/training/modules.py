"""Finds modules beside the model that the optimizer trains, such as a loss with parameters of its own."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from tuner.training.task import Task

WANTED = (
    "keep them in an nn.Module that the task's loss, training_loss or optimizer uses by its own name, or put them into "
    "the model"
)


def modules_beside(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer) -> nn.ModuleList:
    """Return the modules that own what the optimizer trains beside the model's parameters.

    They are found in the task's functions: in their closures, and among the globals that their code names.

    Raises:
        ValueError: a parameter of the optimizer belongs neither to the model nor to such a module.
    """
    left = {id(each): each for group in optimizer.param_groups for each in group["params"]}
    own = [parameter for parameter in model.parameters() if left.pop(id(parameter), None) is not None]
    found = nn.ModuleList()
    if not own:  # it trains another model, which the check before the first trial says
        return found
    for function in (task.loss, task.training_loss, task.optimizer, task.augment, task.model) if left else ():
        for module in _modules_in(function, set()):
            if any(id(parameter) in left for parameter in module.parameters()):
                found.append(module)
                for parameter in module.parameters():
                    left.pop(id(parameter), None)
    if left:
        shapes = ", ".join(str(tuple(each.shape)) for each in list(left.values())[:3])
        raise ValueError(f"the optimizer trains parameters that no checkpoint would have (shapes {shapes}); {WANTED}")
    return found


def _modules_in(value: Any, seen: set[int]) -> Iterator[nn.Module]:
    """Yield the modules that a function reaches by its own names, and by those of the functions that it names."""
    if id(value) in seen:
        return
    seen.add(id(value))
    inner: list[Any] = []
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, types.MethodType):
        inner = [value.__self__, value.__func__]
    elif isinstance(value, types.FunctionType):
        inner = [value.__globals__.get(name) for name in _names(value.__code__)]
        for cell in value.__closure__ or ():
            try:
                inner.append(cell.cell_contents)
            except ValueError:  # the variable has no value yet
                continue
    for each in inner:
        yield from _modules_in(each, seen)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
