"""Checks that the functions and datasets of a space can be sent to a worker process."""

from __future__ import annotations

import inspect
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tuner.errors.users_code import place_of
from tuner.spec.spaces import line_written, said
from tuner.training.data import Arrays
from tuner.tuning.checks.advice import arguments_of
from tuner.tuning.checks.failed import Failed

if TYPE_CHECKING:
    from tuner.tuning.requests import Request


def check_parts(request: Request) -> None:
    """Raises Failed if a function of the space, or a dataset that is not Arrays, cannot be sent to a worker."""
    from ray import cloudpickle

    from tuner.engine.cluster import probe

    space = request.loaded_space.space
    probe.by_value(request.loaded_space)
    functions: dict[str, Any] = {"train": space.train} if space.task is None else dict(vars(space.task))
    metrics = functions.pop("metrics", {})
    if space.task is not None:
        from torch import nn

        if isinstance(space.task.model, nn.Module):
            line = line_written(request.loaded_space.path, "model", "Task")
            part = f"Task(model=...){line and f' ({request.loaded_space.path}, {line})'}"
            raise Failed(part, "is a module, not a function", "write model=lambda config: Net(...)")
    functions |= {f"metrics[{name!r}]": metric for name, metric in metrics.items()}
    for name, function in functions.items():
        sendable(name, function, cloudpickle)
    for name in ("train", "validation", "test") if request.splits else ():
        part = getattr(request.splits, name)
        if part is not None and not isinstance(part, Arrays):
            sendable(f"the {name} data", getattr(part, "dataset", None) or part, cloudpickle)


def sendable(name: str, value: Any, cloudpickle: Any) -> None:
    """Raises Failed if a function or dataset cannot be sent to a worker; names the captured variable at fault."""
    try:
        cloudpickle.CloudPickler(Nowhere(), protocol=5, buffer_callback=lambda buffer: None).dump(value)
        return
    except Exception as error:  # an object's own __reduce__ may raise anything
        problem = said(error)
    from ray.util import inspect_serializability

    _, failures = inspect_serializability(value, name=name, print_file=io.StringIO())
    found = sorted((path_of(failure), type(failure.obj).__name__) for failure in failures)
    captured, uses = [each for each in found if each[0]], "cannot be sent"
    if captured:
        (variable, *_), kind = captured[0]
        known = variables_of(value)
        kind = type(known[variable]).__name__ if variable in known else kind
        uses = f"uses {variable!r}, {FILES.get(kind, f'a {kind}')}, which cannot be sent"
    part = f"{name}{place_of(value)}"
    where = "its __getitem__" if name.startswith("the ") else f"the function that takes ({arguments_of(name)})"
    raise Failed(part, f"{uses} to a worker process ({problem})", f"create such objects inside {where}")


FILES = dict.fromkeys(("TextIOWrapper", "BufferedReader", "BufferedWriter", "FileIO"), "an open file")


def variables_of(function: Any) -> Mapping[str, Any]:
    """Returns the variables of its module and of outer functions that a function uses, name -> value."""
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return {}
    return {**variables.globals, **variables.nonlocals}


def path_of(failure: Any) -> tuple[str, ...]:
    """Returns the variable that a function uses, and the attributes that lead from it to what cannot be sent."""
    path = getattr(failure, "path", None) or ("", failure.name)  # Ray 2.59 names only the last step
    return tuple(map(str, path[1:]))


class Nowhere(io.RawIOBase):
    """A file that discards what is written: the check only needs to know whether an object can be pickled."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(memoryview(data).cast("B"))
