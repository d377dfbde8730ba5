"""Looks, at a trial's first report, for the trial's parameters in the code that trains.

A parameter has arrived if any live object holds the trial's value under the parameter's name: a parsed command line, a
variable, or an entry of a configuration object that a variable leads to. The trial sends what it has seen with its
report; `tuner.tuning.arrivals` compares the trials.
"""

from __future__ import annotations

import argparse
import dataclasses
import decimal
import enum
import functools
import numbers
import os
import sys
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from tuner.errors.users_code import is_foreign

LONGEST_S = 0.015  # maximum CPU seconds of a look; one that is cut off does not tell that a parameter is missing
DEPTH = 4  # `trainer.config.optimizer.lr` is an entry at depth 4
MAX_DICT_ENTRIES = 300  # of a larger dictionary, such as a vocabulary, only the entries named as parameters are read
MAX_LIST_ITEMS = 32  # maximum length of a list that is read
MOST_TEXT = 200  # maximum characters of a value's text
# Package -> the attribute in which its configuration objects keep their entries.
KEPT_IN = {"wandb": "_items", "ml_collections": "_fields"}
SETTINGS = {"__attrs_attrs__", "__pydantic_fields__"}  # attributes of classes whose objects hold settings


class Seen(NamedTuple):
    """What a trial saw of one parameter, as texts that are equal for equal values.

    `own` is the trial's value. `arrived` says whether a live object has it. `live` has the other values that live
    objects have under the parameter's name: value -> the place, such as `args.lr`.
    """

    own: str
    arrived: bool
    live: dict[str, str]


def look(own: Mapping[str, Any], held: Mapping[str, Any], parsed: Sequence[Any] = ()) -> dict[str, Seen]:
    """Returns what this trial sees of its parameters, by name, with `/` in the names of nested parameters.

    Args:
        own: the trial's parameters, as `by_path` yields them.
        held: name -> object that tuner has given to the user's code, such as the config of a function.
        parsed: the results of the script's command-line parsers.
    """
    walk = Walk(own)
    walk.through(held, parsed)
    return walk.seen()


def by_path(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each parameter as (`outer/inner`, value); also whole dictionaries, which may be values of a choice."""
    for name, value in config.items():
        yield f"{path}{name}", value
        if isinstance(value, dict):
            yield from by_path(value, f"{path}{name}/")


class Walk:
    """A walk through live objects, the nearest to a variable first, which stops after LONGEST_S seconds."""

    def __init__(self, own: Mapping[str, Any]) -> None:
        self.own = dict(own)
        self.paths: dict[str, list[str]] = {}  # the name of a live object -> the parameters that it may be
        for path in self.own:
            self.paths.setdefault(key_of(path.rpartition("/")[2]), []).append(path)
        self.arrived: set[str] = set()
        self.live: dict[str, dict[str, str]] = {path: {} for path in self.own}
        self.replaced: set[str] = set()  # parameters that a namespace or dataclass has
        self.names: list[set[str]] = []  # of each visited object that holds settings
        self.objects: dict[int, Any] = {}  # keeps visited objects alive, so that no other object gets their id
        self.is_cut = False

    def seen(self) -> dict[str, Seen]:
        own = {path: (text_of(value) or type(value).__name__)[:MOST_TEXT] for path, value in self.own.items()}
        return {p: Seen(own[p], p in self.arrived, {} if self.is_cut else self.live[p]) for p in self.own}

    def through(self, held: Mapping[str, Any], parsed: Sequence[Any]) -> None:
        until = time.thread_time() + LONGEST_S
        todo = deque((variables, "", 0, True) for variables in scopes())
        todo.extend((each, name, 1, True) for name, each in held.items())
        while todo and not self.is_cut:
            thing, place, depth, counts = todo.popleft()
            if id(thing) not in self.objects:
                self.objects[id(thing)] = thing
                try:
                    todo.extend(self.visit(thing, place, depth, counts))
                except Exception:  # users' objects may raise anything
                    self.is_cut = True
            self.is_cut = self.is_cut or time.thread_time() > until
        for namespace in parsed:
            own = {key_of(name): value for name, value in getattr(namespace, "__dict__", {}).items()}
            # One that the code has dropped counts, too, unless another object has taken its place.
            is_replaced = len(own) > 1 and any(own.keys() <= names for names in self.names)
            if id(namespace) not in self.objects and not is_replaced:
                for name in own.keys() & self.paths.keys():
                    self.note(name, own[name], "", counts=False, unless=self.replaced)

    def visit(self, thing: Any, place: str, depth: int, counts: bool) -> Iterator[tuple[Any, str, int, bool]]:
        """Notes the entries of an object; yields those to visit. `counts`: whether other values tell against one."""
        if isinstance(thing, (list, tuple)) and not hasattr(thing, "_fields"):
            if len(thing) <= MAX_LIST_ITEMS:
                yield from ((each, place, depth + 1, counts) for each in thing if is_container(each))
            return
        is_scope = depth == 0
        entries, are_settings = (list(thing.items()), True) if is_scope else entries_of(thing, self.paths)
        is_config = are_settings and not isinstance(thing, (type, ModuleType)) and not is_scope
        if is_config and any(is_array(value) for _, value in entries[:MAX_LIST_ITEMS]):
            counts = are_settings = is_config = False  # a checkpoint or a batch
        for name, value in entries:
            if not isinstance(name, str) or name.startswith("__"):  # such as CONFIG in the globals of a script
                continue
            at = f"{place}[{name!r}]" if isinstance(thing, dict) and place else f"{place}.{name}" if place else name
            if (key := key_of(name)) in self.paths:
                self.note(key, value, at, counts and are_settings)
                if is_config and not isinstance(thing, dict):
                    self.replaced.update(self.paths[key])
            if depth < DEPTH and is_container(value):
                yield value, at, depth + 1, counts
        groups = getattr(thing, "__dict__", {}).get("param_groups")
        for group in groups if isinstance(groups, list) else ():  # its momentum or weight decay may be derived
            for key in self.paths.keys() & group.keys():
                self.note(key, group[key], place, counts=False)
        if is_config:
            self.names.append({key_of(name) for name, _ in entries if isinstance(name, str)})

    def note(self, key: str, value: Any, at: str, counts: bool, unless: Collection[str] = ()) -> None:
        for path in set(self.paths[key]).difference(unless):
            if is_same(self.own[path], value):
                self.arrived.add(path)
            elif counts and is_other(key, self.own[path], value):
                self.live[path].setdefault(str(text_of(value))[:MOST_TEXT], at)


def scopes() -> Iterator[Mapping[str, Any]]:
    """Yields the variables of users' functions that run in any thread, the innermost first, and of `__main__`."""
    here, main = sys._getframe(), sys.modules["__main__"]
    frames: list[FrameType | None] = [here, *(each for each in sys._current_frames().values() if each is not here)]
    for frame in frames:
        while frame is not None:
            if is_users(frame.f_code.co_filename):
                yield frame.f_locals
            frame = frame.f_back
    if is_users(getattr(main, "__file__", None)):
        yield vars(main)


def is_users(file: Any) -> bool:
    """Whether a file is the user's: not Python's, not tuner's, and not in a folder into which pip installs packages."""
    if not isinstance(file, str) or file.startswith(("<stdin", "<string", "<ipython")):
        return isinstance(file, str)
    return not (is_foreign(file) or file.startswith(_installed(tuple(sys.path))))


@functools.cache
def _installed(path: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the folders of `sys.path` with installed packages, without those whose name says so."""
    folders = [each for each in path if "-packages" not in each and os.path.isdir(each)]
    return tuple(each for each in folders if any(name.endswith(".dist-info") for name in os.listdir(each)))


def entries_of(thing: Any, names: Iterable[str]) -> tuple[list[tuple[Any, Any]], bool]:
    """Returns an object's entries, and whether they are settings: an object with other entries may be anything."""
    kind, own = type(thing), getattr(thing, "__dict__", {})
    package = kind.__module__.partition(".")[0]
    if isinstance(thing, dict):
        is_small = len(thing) <= MAX_DICT_ENTRIES
        return list(dict.items(thing)) if is_small else [(n, thing[n]) for n in names if n in thing], is_small
    if isinstance(thing, ModuleType):
        return (list(own.items()), True) if is_users(getattr(thing, "__file__", None)) else ([], False)
    if isinstance(thing, type):
        # A dataclass has the defaults of its fields, which are no live values.
        is_plain = is_of_user(thing) and not dataclasses.is_dataclass(thing)
        return list(own.items()) if is_plain else [], True
    if package == "omegaconf":
        return _of_omegaconf(thing), True
    if package in KEPT_IN:
        return list((own.get(KEPT_IN[package]) or {}).items()), True
    if isinstance(own.get("param_groups"), list):
        return _of_optimizer(own["param_groups"]), True
    if isinstance(thing, tuple):  # a named tuple
        return list(zip(thing._fields, thing, strict=False)), True  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(thing):
        fields = (field.name for field in dataclasses.fields(thing))
        return [(name, getattr(thing, name)) for name in fields if hasattr(thing, name)], True
    if isinstance(thing, (argparse.Namespace, SimpleNamespace)) or not SETTINGS.isdisjoint(dir(kind)):
        return list(own.items()), True
    if any(map(is_of_user, kind.__mro__[:-1])):
        entries = [each for each in own.items() if each[0] not in ("_parameters", "_buffers", "_modules")]
        return entries, all(value is None or text_of(value) is not None for _, value in entries)
    # Of a library's object, such as a DataLoader, only what is named as a parameter: its values never tell against one.
    return [(name, own[name]) for name in names if name in own], False


def _of_omegaconf(thing: Any) -> list[tuple[Any, Any]]:
    convert = sys.modules["omegaconf"].OmegaConf.to_container
    try:
        made = convert(thing, resolve=True)
    except Exception:  # a reference that does not resolve, or a missing value
        made = convert(thing, resolve=False)
    return list(made.items()) if isinstance(made, dict) else []


def _of_optimizer(groups: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Returns the learning rates of an optimizer's groups, and those from which its schedule started."""
    rates = [group[name] for group in groups[:MAX_LIST_ITEMS] for name in ("lr", "initial_lr") if name in group]
    return [(name, rate) for rate in rates for name in ("lr", "learning_rate")]


def is_container(value: Any) -> bool:
    """Whether a value may have entries: a quick test, since a scope has hundreds of values."""
    return value is not None and not isinstance(value, (str, bytes, numbers.Number, enum.Enum)) and not is_array(value)


def is_of_user(kind: type) -> bool:
    """Whether a user's module defines a class; one of a module that is not imported was sent by value, so it is."""
    module = sys.modules.get(kind.__module__)
    return module is None or is_users(getattr(module, "__file__", None))


def is_array(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("numpy", "torch", "jaxlib") and hasattr(value, "tolist")


def key_of(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def text_of(value: Any) -> str | None:
    """Returns the text of a number, text, path, enum or list of these, equal for equal values; None for others."""
    if isinstance(value, enum.Enum):
        return text_of(value.value) or value.name
    if isinstance(value, bool):
        return str(value)
    if is_array(value):
        is_plain = str(getattr(value, "device", "cpu")) == "cpu" and not getattr(value, "requires_grad", False)
        return text_of(value.tolist()) if is_plain and sum(value.shape) <= MAX_LIST_ITEMS else None
    if isinstance(value, (numbers.Real, decimal.Decimal)):
        return _written(float(value))
    if isinstance(value, (str, PurePath)):
        words = str(value).strip()
        try:
            return _written(float(words))
        except ValueError:
            return words
    if isinstance(value, (list, tuple)) and len(value) <= MAX_LIST_ITEMS:
        items = [text_of(each) for each in value]
        return None if None in items else f"[{', '.join(map(str, items))}]"
    return None


def _written(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.6g}"


def _number(text: str) -> float | None:
    """Returns the number that a text or a truth value stands for."""
    try:
        return float(text)
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get(text.lower())


def is_same(own: Any, live: Any) -> bool:
    """Whether a live value is the trial's: 0.01, "0.01" and a tensor of 0.01 are the same, and so are their lists."""
    if own is live:
        return True
    mine, theirs = text_of(own), text_of(live)
    if mine is None or theirs is None:
        if isinstance(own, dict):
            return isinstance(live, dict) and live == own
        names = [getattr(each, "__qualname__", None) or getattr(each, "__name__", None) for each in (own, live)]
        return names[0] is not None and (names[0] == names[1] or names[0] == live)
    is_equal = mine == theirs or (isinstance(live, enum.Enum) and mine in (live.name, str(live)))
    return is_equal or (_number(mine) is not None and _number(mine) == _number(theirs)) or _is_rounded(own, live)


def _is_rounded(own: Any, live: Any) -> bool:
    """Whether `live` is the trial's number rounded to a whole one."""
    are_numbers = isinstance(own, numbers.Real) and isinstance(live, numbers.Integral)
    return are_numbers and abs(float(own)) >= 1 and abs(float(own) - float(live)) < 1


def is_other(key: str, own: Any, live: Any) -> bool:
    """Whether a live value under a parameter's name tells against it: another value of the same kind.

    None, an empty text and a learning rate of 0 are placeholders. A parameter whose value is None is never missing.
    """
    mine, theirs = text_of(own), text_of(live)
    if (
        not mine
        or not theirs
        or theirs == "[]"
        or (theirs == "0" and ("lr" in key.split("_") or "learning_rate" in key))
    ):
        return False
    kinds = {"list" if text[0] == "[" else "text" if _number(text) is None else "number" for text in (mine, theirs)}
    return len(kinds) == 1
