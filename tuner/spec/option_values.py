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
MOST_SAMPLES = 1_000_000  # maximum number of trials, also if only a budget ends the search
# Allowed ranges of options. Values may come from an HTTP request or a stranger's file; huge ones would slow the checks.
MOST_EPOCHS = 1_000_000
MOST_RUNGS = 100  # --reduction-factor 1.1 gives 100 rungs at 12,500 epochs; a rung costs memory, and time per report
BOUNDS = {
    "num_samples": (0, MOST_SAMPLES),
    "max_epochs": (1, MOST_EPOCHS),
    "grace_period": (1, MOST_EPOCHS),
    "brackets": (1, MOST_RUNGS),
    "perturbation_interval": (0, MOST_EPOCHS),
    "workers_per_trial": (1, 10_000),
    "max_failures": (0, 1_000_000),
    "gpu_hours": (0, 1_000_000_000),
    "cpu_hours": (0, 1_000_000_000),
    "epoch_budget": (0, 1_000_000_000),
    "max_concurrent_trials": (0, 1_000_000),
    "confirm": (0, 100),
    "confirm_seeds": (2, 100),
    "seed": (0, 2**32 - 1),
    "priority": (-100, 100),
}
MOST_SECONDS = 1e9  # maximum of an option that is a time, in seconds: 31 years
MOST_NUMBER = 1e6  # maximum number of CPUs, and of GPUs, of a trial; maximum reduction factor


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
        least, most = BOUNDS.get(name, (0, 0))
        if name in BOUNDS and not isinstance(value, str) and not least <= value <= most:
            raise RequestError(f"{option(name)} {value}: must be {least:,} or more, at most {most:,}")
        return
    short = isinstance(value, (str, float, int, type(None))) and not is_huge
    shown = (repr if str in allowed else str)(value)[:50] if short else f"({type(value).__name__})"
    texts = [
        "a text such as 90s, 30m or 2h" if name in TIMES else KINDS[each]
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
