"""Checks that workers can receive the functions and datasets of a space, and that a train function reports metrics."""

from __future__ import annotations

import inspect
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.errors.users_code import place_of
from tuner.spec.reach import python_files
from tuner.spec.script import Script
from tuner.spec.source import check_reports, never_reports
from tuner.spec.spaces import message_of
from tuner.training.data import Arrays
from tuner.tuning.checks.advice import CheckFailed, arguments_of

if TYPE_CHECKING:
    from tuner.tuning.requests import Request


def check_sendable(request: Request) -> None:
    """Raises CheckFailed if a function of the space, or a dataset that is not Arrays, cannot be sent to a worker."""
    from tuner.engine.cluster import probe

    space = request.loaded_space.space
    probe.by_value(request.loaded_space)
    functions: dict[str, Any] = {"train": space.train} if space.task is None else dict(vars(space.task))
    functions |= {f"metrics[{name!r}]": metric for name, metric in functions.pop("metrics", {}).items()}
    for name, function in functions.items():
        _check(name, function)
    for name in ("train", "validation", "test") if request.splits else ():
        part = getattr(request.splits, name)
        if part is not None and not isinstance(part, Arrays):
            _check(f"the {name} data", getattr(part, "dataset", part))


def _check(name: str, value: Any) -> None:
    problem = _pickling_error(value)
    if not problem:
        return
    uses = "cannot be sent"
    for variable, used in _variables(value).items():
        if _pickling_error(used):
            kind = "open file" if isinstance(used, io.IOBase) else type(used).__name__
            uses = f"uses {variable!r}, {'an' if kind[0] in 'aeiou' else 'a'} {kind}, which cannot be sent"
            break
    where = "its __getitem__" if name.startswith("the ") else f"the function that takes ({arguments_of(name)})"
    advice = f"create such objects inside {where}"
    raise CheckFailed(f"{name}{place_of(value)}", f"{uses} to a worker process ({problem})", advice)


def _pickling_error(value: Any) -> str:
    """Returns why a value cannot be sent to a worker; empty if it can be."""
    from ray import cloudpickle

    try:
        cloudpickle.dumps(value, protocol=5, buffer_callback=lambda buffer: None)
    except Exception as error:  # an object's own __reduce__ may raise anything
        return message_of(error) or type(error).__name__
    return ""


def _variables(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object, and the variables of outer functions and of its module that it uses."""
    try:
        used = inspect.getclosurevars(inspect.unwrap(value))
    except (TypeError, ValueError):
        return dict(getattr(value, "__dict__", {}))
    return {**used.globals, **used.nonlocals}


def check_reporting(train: Any, metric: str) -> None:
    """Raises RequestError if a script never reports a metric, or if a function's file calls `report` without a dict."""
    if isinstance(train, Script):
        never_reports(train.path, {**train.sources(), **python_files(Path(train.path).parent)}, metric)
        return
    while hasattr(train, "func"):  # functools.partial
        train = train.func
    file = inspect.getsourcefile(train) if inspect.isfunction(train) else None
    if file and Path(file).is_file():
        check_reports(Path(file).read_text(encoding="utf-8", errors="replace"), file)
