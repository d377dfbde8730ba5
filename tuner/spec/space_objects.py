"""Finds where a Space object was defined, for calls from Python: `tuner.search(space)`."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields
from os import PathLike
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tuner.errors import RequestError
from tuner.spec.command import Command
from tuner.spec.script import Script
from tuner.spec.space import Space, defines
from tuner.spec.spaces import MAIN, LoadedSpace, find_space
from tuner.training.task import METRICS

SHIPPED = "search_spaces."


def space_of(given: Space | str | PathLike[str] | ModuleType, variable: str = "") -> LoadedSpace:
    """Loads the space of a call from Python: a Space, a name or path as for `--space`, or a module with `space`.

    `variable` is the calling program's name of what declares the Space, if that is a Tuner.
    """
    if isinstance(given, (str, PathLike)):
        return find_space(str(given))
    if isinstance(given, ModuleType):
        space = getattr(given, "space", None)
        if not isinstance(space, Space):
            raise RequestError(f"space={given.__name__}: the module has no space = Space(...) at module level; add it")
        return _named(space, given, "space")
    if not isinstance(given, Space):
        raise RequestError(
            f"space is a {type(given).__name__}: give a Space, a name in search_spaces/, a path to a .py file or a "
            f"module with a `space`"
        )
    home = _home(given)
    name = f"{MAIN}:{variable}" if variable else MAIN
    return _named(given, *home) if home else LoadedSpace(given, name, None, code_digest(given), MAIN)


def main_space(attribute: str) -> LoadedSpace | None:
    """The Space with this name in the running script or notebook; None if no Space there has the name."""
    main = sys.modules[MAIN]
    space = vars(main).get(attribute)
    return _named(space, main, attribute) if isinstance(space, Space) else None


def code_digest(space: Space) -> str:
    """The SHA-256 of the sources of the space's functions, and of the functions that these use from their own module.

    It is empty if a source text is unknown, such as that of a function typed at Python's prompt.
    """
    if isinstance(space.train, Command):
        return hashlib.sha256(repr(space.train).encode()).hexdigest()
    try:
        sources = sorted(_sources(space))
    except (OSError, TypeError):  # `inspect.getsource` raises these if it finds no source
        sources = []
    return hashlib.sha256("\n".join(sources).encode()).hexdigest() if sources else ""


def saves_checkpoints(space: Space) -> bool:
    """Guesses whether trials save checkpoints: yes for a Task, a class with save_checkpoint, or code that names them.

    A wrong guess does no harm: without a checkpoint at the first rung, asha-promotion becomes asha.
    """
    train = space.train
    if train is None:
        return True
    if isinstance(train, Command):
        return train.uses("checkpoint")
    if isinstance(train, type):
        return defines(train, "save_checkpoint")
    try:
        texts = [train.source] if isinstance(train, Script) else _sources(space)
    except (OSError, TypeError):
        return False
    return any("checkpoint" in text.lower() for text in texts)


def _named(space: Space, module: ModuleType, attribute: str) -> LoadedSpace:
    """The space with the name by which `find_space` finds it, or `__main__:ATTRIBUTE` for a script or notebook."""
    suffix = "" if attribute == "space" else f":{attribute}"
    file = getattr(module, "__file__", None)
    path = Path(file).resolve() if file and Path(file).is_file() else None
    if module.__name__ == MAIN or path is None:
        name = f"{MAIN}:{attribute}"
    elif module.__name__.startswith(SHIPPED):
        name = module.__name__.removeprefix(SHIPPED) + suffix
    elif "." in module.__name__:
        name = module.__name__ + suffix
    else:
        name = f"{path}{suffix}"
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest() if path else code_digest(space)
    return LoadedSpace(space, name, path, sha256, module.__name__)


def variable_of(value: Any, module: ModuleType) -> str | None:
    """The name of the module's variable with this value; None if there is none."""
    public = (name for name in list(vars(module)) if not name.startswith("_"))  # `_` and `_5` are a notebook's outputs
    return next((name for name in public if vars(module).get(name) is value), None)


def _home(space: Space) -> tuple[ModuleType, str] | None:
    """The module with this space, and the variable's name, or None; looks in the functions' modules and `__main__`."""
    for name in dict.fromkeys([*(getattr(each, "__module__", "") for each in _functions(space)), MAIN]):
        module = sys.modules.get(str(name))
        if module and (variable := variable_of(space, module)):
            return module, variable
    return None


def _functions(space: Space) -> list[Any]:
    """The functions of a space: `train`, or those of its task, metrics included."""
    if space.task is None:
        return [space.train]
    values = [getattr(space.task, field.name) for field in fields(space.task)]
    metrics = (metric for name in METRICS for metric in getattr(space.task, name).values())
    return [each for each in [*values, *metrics] if callable(each)]


def _sources(space: Space) -> set[str]:
    """The source texts of the space's functions, and of the functions that these use from their own module."""
    return {inspect.getsource(each.__code__) for each in used(_functions(space))}


def used(functions: list[Any]) -> Iterator[Any]:
    """Yields the functions, and those that they use from their own module."""
    seen: set[int] = set()
    todo = list(functions)
    for value in todo:
        while isinstance(value, functools.partial):
            todo += filter(callable, (*value.args, *value.keywords.values()))
            value = value.func
        if not (isinstance(value, type) or hasattr(value, "__code__")):
            value = getattr(value, "__func__", type(value))  # a bound method's function, or a callable object's class
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, type):
            todo += filter(inspect.isfunction, vars(value).values())
            continue
        yield value
        others = (value.__globals__.get(name) for name in names_in(value.__code__))
        todo += [each for each in others if callable(each) and getattr(each, "__module__", "") == value.__module__]


def names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes that a function, and the functions inside it, use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)
