"""Declares options, a row each, and checks their values, which may come from a file or an HTTP request."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import Any, Literal, get_args, get_origin, get_type_hints

from tuner.errors import RequestError, nearest
from tuner.spec.methods import NAMES

MAX_OPTION_CHARS = 4096  # maximum length of an option's text, in characters
MOST_WORDS = 1000  # maximum number of points, of words (name=value) in one point, and of words in --stop
KINDS = {  # class of an option's value -> how an error text names it
    int: "a whole number",
    float: "a number",
    str: f"a text of {MAX_OPTION_CHARS} characters at most",
    bool: "yes or no",
    tuple: f"at most {MOST_WORDS} texts of {MAX_OPTION_CHARS} characters at most",
}
MOST_SAMPLES = 1_000_000  # maximum number of trials, also if only a budget ends the search
# Allowed ranges of options. Values may come from an HTTP request or a stranger's file; huge ones would slow the checks.
MOST_EPOCHS = 1_000_000
MOST_RUNGS = 100  # --reduction-factor 1.1 gives 100 rungs at 12,500 epochs; a rung costs memory, and time per report
MOST_SECONDS = 1e9  # maximum of an option that is a time, in seconds: 31 years
MOST_NUMBER = 1e6  # maximum number of CPUs, and of GPUs, of a trial; maximum reduction factor
# The groups of `--help`, in its order.
MOST_USED = "most used"
SETTINGS = "which settings are tried"
RULE = "which trials are stopped"
TRIAL = "how a trial runs"
LIMITS = "what ends a search, and what confirms its answer"
PLACES = "where it runs and writes"
OUTPUT = "what is printed and logged"
CHECKS = "before the first trial"
GROUPS = MOST_USED, SETTINGS, RULE, TRIAL, LIMITS, PLACES, OUTPUT, CHECKS


@dataclass(frozen=True)
class Row:
    """What is known of an option beside its name, type and default.

    Args:
        group: of `--help`.
        bounds: the least and the greatest value of a number.
        is_time: the value is a text such as 30m.
        pattern: a regular expression that the whole value must match; `asks` says so in an error text.
        metavar: in `--help`, if the type does not say enough.
        on_resume: `--resume` may change it.
        http: a request to the service may set it: always, or when it starts a search.
        several: the values that work with several metrics; () = only the default, None = all.
    """

    group: str
    bounds: tuple[int, int] | None = None
    is_time: bool = False
    pattern: str = ""
    asks: str = ""
    metavar: str = ""
    on_resume: bool = False
    http: Literal["", "start", "always"] = ""
    several: tuple[str, ...] | None = None


def row(default: Any, group: str, **known: Any) -> Any:
    """Returns a dataclass field for an option; `known` are the arguments of its `Row`."""
    return dataclasses.field(default=default, metadata={"row": Row(group, **known)})


@functools.cache
def rows_of(options: type[Any]) -> Mapping[str, Row]:
    """Returns the rows of the options that a dataclass and its bases declare, by name."""
    fields = [field for each in reversed(options.__mro__[:-1]) for field in dataclasses.fields(each)]
    return {field.name: field.metadata["row"] for field in fields if field.metadata}  # a subclass may have new defaults


def helps_of(options: type[Any]) -> Mapping[str, str]:
    """Returns what the text below each field of a dataclass and its bases says of the option."""
    declared = [ast.parse(inspect.getsource(each)).body[0].body for each in options.__mro__[:-1]]  # type: ignore[attr-defined]
    pairs = [pair for each in declared for pair in itertools.pairwise(each) if isinstance(pair[0], ast.AnnAssign)]
    texts = {field.target.id: " ".join(text.value.value.split()) for field, text in pairs}
    return {name: Template(text).safe_substitute(NAMES) for name, text in texts.items()}


def check_value(options: Any, name: str) -> None:
    """Checks class, length, choice and range of an option's value, because a value from a file may be anything."""
    allowed, value = allowed_in(type(options))[name], getattr(options, name)  # type: ignore[arg-type]
    row = rows_of(type(options)).get(name, Row(""))  # type: ignore[arg-type]
    choices = [each for each in allowed if isinstance(each, str)]
    is_huge = isinstance(value, int) and abs(value) >= 10**18  # Python refuses to print more than 4300 digits
    fits = not is_huge and (type(value) in allowed or (float in allowed and type(value) is int))
    if isinstance(value, str):
        fits = value in choices or (fits and len(value) <= MAX_OPTION_CHARS)
    elif isinstance(value, tuple):
        fits = fits and _are_words(value, depth=2 if name == "point" else 1)
    if fits:
        if row.bounds and not isinstance(value, str) and not row.bounds[0] <= value <= row.bounds[1]:
            raise RequestError(f"{option(name)} {value}: must be {row.bounds[0]:,} or more, at most {row.bounds[1]:,}")
        if row.pattern and not re.fullmatch(row.pattern, value, re.ASCII):
            raise RequestError(f"{option(name)} {value!r}: {row.asks}")
        return
    short = isinstance(value, (str, float, int, type(None))) and not is_huge
    shown = (repr if str in allowed else str)(value)[:50] if short else f"({type(value).__name__})"
    texts = [
        "a text such as 90s, 30m or 2h" if row.is_time else KINDS[each]
        for each in allowed
        if each in KINDS and (each is not tuple or len(allowed) == 1)
    ]
    if choices:
        listed = ", ".join(choices) + (nearest(value, choices) if isinstance(value, str) else "")
        texts += [f"one of {listed}" if len(choices) > 1 else listed]
    raise RequestError(f"{option(name)} {shown}: must be {' or '.join(texts)}")


def tuples(value: Any) -> Any:
    return tuple(map(tuples, value)) if isinstance(value, (list, tuple)) else value


def _are_words(value: Any, depth: int) -> bool:
    if depth == 0:
        return isinstance(value, str) and len(value) <= MAX_OPTION_CHARS
    return isinstance(value, tuple) and len(value) <= MOST_WORDS and all(_are_words(each, depth - 1) for each in value)


def option(field: str) -> str:
    """The command-line option of a field: `--num-samples` for `num_samples`."""
    return "--" + field.replace("_", "-")


@functools.cache
def allowed_in(options: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Returns, for each field of `Options` or a subclass, its allowed classes and texts, such as `(float, "auto")`."""
    return {name: _allowed(kind) for name, kind in get_type_hints(options).items()}


def _allowed(kind: Any) -> tuple[Any, ...]:
    parts = () if get_origin(kind) is tuple else get_args(kind)
    return tuple(each for part in parts for each in _allowed(part)) or (get_origin(kind) or kind,)
