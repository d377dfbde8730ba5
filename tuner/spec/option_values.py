"""Checks the class, length and choice of an option's value, which may come from a file or an HTTP request."""

from __future__ import annotations

import functools
from typing import Any, get_args, get_origin, get_type_hints

from tuner.errors import RequestError, nearest

MOST_CHARS = 4096  # maximum length of an option's text, in characters
MOST_WORDS = 1000  # maximum number of points, of words (name=value) in one point, and of words in --stop
KINDS = {  # class of an option's value -> how an error text names it
    int: "a whole number",
    float: "a number",
    str: f"a text of {MOST_CHARS} characters at most",
    bool: "yes or no",
    tuple: f"at most {MOST_WORDS} texts of {MOST_CHARS} characters at most",
}
TIMES = ("time_budget", "trial_timeout")


def check_value(options: Any, name: str) -> None:
    """Checks the class, length and choice of an option's value, because a value from a file may be anything."""
    allowed, value = allowed_in(type(options))[name], getattr(options, name)  # type: ignore[arg-type]
    choices = [each for each in allowed if isinstance(each, str)]
    is_huge = isinstance(value, int) and abs(value) >= 10**18  # Python refuses to print more than 4300 digits
    fits = not is_huge and (type(value) in allowed or (float in allowed and type(value) is int))
    if isinstance(value, str):
        fits = value in choices or (fits and len(value) <= MOST_CHARS)
    elif isinstance(value, tuple):
        fits = fits and _are_words(value, depth=2 if name == "point" else 1)
    if fits:
        return
    short = isinstance(value, (str, float, int, type(None))) and not is_huge
    shown = (repr if str in allowed else str)(value)[:50] if short else f"({type(value).__name__})"
    texts = ["a text such as 90s, 30m or 2h" if name in TIMES else KINDS[each] for each in allowed if each in KINDS]
    if choices:
        listed = ", ".join(choices) + (nearest(value, choices) if isinstance(value, str) else "")
        texts += [f"one of {listed}" if len(choices) > 1 else listed]
    raise RequestError(f"{option(name)} {shown}: must be {' or '.join(texts)}")


def tuples(value: Any) -> Any:
    return tuple(map(tuples, value)) if isinstance(value, (list, tuple)) else value


def _are_words(value: Any, depth: int) -> bool:
    if depth == 0:
        return isinstance(value, str) and len(value) <= MOST_CHARS
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
