"""Checks and describes Ray's search domains, and lists their grid values and the neighbours of a value.

Functions that need `ray.tune` import it themselves: a caller that has a domain has already imported it, and `--help`
calls none of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.errors import RequestError
from tuner.errors.users_code import place_of

CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
GRID_POINTS = 5  # a grid has at most this many values of a numeric range: W&B's and scikit-learn's examples use 3 to 6
NEIGHBOUR_SHARE = 0.1  # a neighbour's distance, as a share of the range's width; a log range is measured in logarithms


def leaves(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each domain or constant as (`"outer/inner"`, value); walks nested dictionaries as Ray does.

    Raises ValueError for a name that is not a string, is empty, or contains the `/` that joins nested names.
    """
    for name, value in params.items():
        if name == "":
            raise ValueError("a parameter has the empty name ''; give it a name")
        if not isinstance(name, str) or "/" in name:
            raise ValueError(f"parameter {name!r}: a name is a string without '/'; nest dictionaries instead")
        if isinstance(value, Mapping) and not is_grid(value):
            yield from leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def literal(text: str) -> Any:
    """Returns the number, True, False or None that a text spells; else the text itself."""
    for read in (int, float, CONSTANTS.__getitem__):
        with contextlib.suppress(ValueError, KeyError):
            return read(text)
    return text


def words(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes values as the words of `--point` and `--stop`: `{"a": {"b": 1}}` -> `("a/b=1",)`."""
    return tuple(f"{name}={value}" for name, value in leaves(values))


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nests values by their flattened names: `{"a/b": 1}` -> `{"a": {"b": 1}}`; the inverse of `leaves`."""
    result: dict[str, Any] = {}
    for path, value in flat.items():
        *outer, last = path.split("/")
        inside = result
        for name in outer:
            inside = inside.setdefault(name, {})
            if not isinstance(inside, dict):
                raise RequestError(f"{path}: {name!r} has both a value and parameters inside it; leave out one of them")
        inside[last] = value
    return result


def is_grid(value: Any) -> bool:
    """Whether the value is what `tune.grid_search` returns."""
    return isinstance(value, Mapping) and set(value) == {"grid_search"}


def is_constant(value: Any) -> bool:
    """Whether the value is a constant, which every trial gets as it is."""
    return value is None or isinstance(value, (bool, int, float, str))


def kind(domain: Any) -> str:
    """Returns a domain's kind; raises ValueError if the value is no domain.

    Kinds: `choice`, `uniform`, `loguniform`, `randint`, `lograndint`, `normal`, `grid_search` and `sample_from`.
    """
    from ray.tune.search import sample

    kinds = {sample.Categorical: "choice", sample.Function: "sample_from", sample.Float: "uniform"}
    base = "grid_search" if is_grid(domain) else {**kinds, sample.Integer: "randint"}.get(type(domain))
    if base is None:
        raise ValueError(_no_domain(domain))
    if base not in ("uniform", "randint"):
        return base
    drawn_by = domain.get_sampler()
    drawn_by = drawn_by.get_sampler() if isinstance(drawn_by, sample.Quantized) else drawn_by
    if isinstance(drawn_by, sample.LogUniform):
        return f"log{base}"
    return "normal" if isinstance(drawn_by, sample.Normal) else base


def is_choice(value: Any) -> bool:
    """Whether the value is what `tune.choice` returns."""
    from ray.tune.search.sample import Categorical

    return isinstance(value, Categorical)


def check_domain(domain: Any) -> None:
    """Raises ValueError if the value is no domain, or an invalid one.

    A domain is invalid with no values, a reversed or empty range, or a log range that begins at 0 or below.
    """
    name = kind(domain)
    if name in ("choice", "grid_search") and not values_of(domain):
        raise ValueError(f"tune.{name}([]) has no values; give at least one")
    if name in ("uniform", "loguniform", "randint", "lograndint"):
        if not domain.lower < domain.upper:
            raise ValueError(f"range {domain.lower}..{domain.upper} is reversed or empty; lower must be below upper")
        if name.startswith("log") and domain.lower <= 0:
            raise ValueError(f"log range {domain.lower}..{domain.upper} must lie above zero")


def describe(domain: Any) -> dict[str, Any]:
    """Returns a domain as JSON: its kind, and its values or bounds. An integer range without `q` excludes `upper`."""
    name = kind(domain)
    if name in ("choice", "grid_search"):
        return {"kind": name, "values": [v if is_constant(v) else repr(v) for v in values_of(domain)]}
    if name == "sample_from":
        return {"kind": name}
    bounds = {"kind": name, "lower": domain.lower, "upper": domain.upper, "q": _step(domain)}
    return {key: value for key, value in bounds.items() if value is not None and value not in (math.inf, -math.inf)}


def checked_value(domain: Any, value: Any, name: str) -> Any:
    """Checks a value against a domain's values or bounds, not its `q`; returns it with the type that a trial gets.

    For a choice or a grid, the value may also be given as text: "8" becomes 8. A `sample_from` must not be passed.
    Raises ValueError for another value, with the parameter's name and what is allowed.
    """
    described = kind(domain)
    if described in ("choice", "grid_search"):
        values = values_of(domain)
        for each in values:
            if (each == value and type(each) is type(value)) or str(each) == value:
                return each
        if value in values:
            return values[values.index(value)]
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, values))}")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be a number")
    if "randint" in described and value != int(value):
        raise ValueError(f"{name}={value!r}: must be a whole number")
    if described != "normal" and not domain.lower <= value <= _top(domain):
        raise ValueError(f"{name}={value!r}: must be {domain.lower}..{_top(domain)}")
    return int(value) if "randint" in described else float(value)


def values_of(domain: Any) -> list[Any]:
    """The values of a `choice` or `grid_search`."""
    return list(domain["grid_search"] if is_grid(domain) else domain.categories)


def grid_values(domain: Any) -> list[Any]:
    """The values that a grid search tries: all of a choice or grid, or `GRID_POINTS` evenly spaced points of a range.

    A log range is spaced in the logarithm. Both ends are points. Points that are equal after rounding count once.
    Raises ValueError for a domain without bounds (`tune.randn`, `tune.sample_from`).
    """
    name = kind(domain)
    if name in ("choice", "grid_search"):
        return values_of(domain)
    if name in ("normal", "sample_from"):
        raise ValueError(f"{name} has no bounds, so it has no grid; use tune.choice or a range, or --searcher random")
    return sorted({from_unit(domain, i / (GRID_POINTS - 1)) for i in range(GRID_POINTS)})


def neighbours(domain: Any, value: Any, radius: int = 1) -> list[Any]:
    """The values around `value` in a domain, without `value` itself; numbers are sorted by distance, nearest first.

    In a choice of numbers the neighbours are the `radius` next smaller and larger numbers, in any other choice all
    other values. In a range they lie up to `radius` steps to either side; a step is `NEIGHBOUR_SHARE` of the range's
    width, or the range's own step if that is larger. A domain without bounds has no neighbours.
    """
    name = kind(domain)
    steps = [sign * distance for distance in range(1, radius + 1) for sign in (-1, 1)]
    if name in ("choice", "grid_search"):
        values = values_of(domain)
        if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            return [v for v in values if v != value]
        ordered = sorted(set(values))
        at = ordered.index(value)
        return [ordered[at + step] for step in steps if 0 <= at + step < len(ordered)]
    if name in ("normal", "sample_from"):
        return []
    (low, high), here = _ends(domain), to_unit(domain, value)
    least = _step(domain) or (1 if "randint" in name else 0)
    share = NEIGHBOUR_SHARE if name.startswith("log") else max(NEIGHBOUR_SHARE, least / (high - low))
    picked = [from_unit(domain, min(1.0, max(0.0, here + step * share))) for step in steps]
    if all(v == value for v in picked):  # rounding to the range's own step undid all steps
        near = [value + step * (least or 1) for step in steps]
        picked = [v for v in near if domain.lower <= v <= _top(domain)]
    return [v for v in dict.fromkeys(picked) if v != value]


def to_unit(domain: Any, value: float) -> float:
    """The position of a value in its range, from 0 to 1; a log range is measured in the logarithm."""
    low, high = _ends(domain)
    return float(((math.log(value) if kind(domain).startswith("log") else value) - low) / (high - low))


def from_unit(domain: Any, unit: float) -> Any:
    """The value at a position (0 to 1) of the range, rounded to the domain's `q`; an int for integer domains."""
    name, step = kind(domain), _step(domain)
    if unit in (0.0, 1.0):
        value = domain.lower if unit == 0.0 else _top(domain)  # the ends are exact; exp(log(x)) may differ from x
    else:
        low, high = _ends(domain)
        value = low + unit * (high - low)
        value = math.exp(value) if name.startswith("log") else value
    if step:
        value = min(_top(domain), max(domain.lower, round(value / step) * step))
    return int(round(value)) if "randint" in name else float(value)


def _no_domain(value: Any) -> str:
    """Why a value in `params` is neither a domain nor a constant, and what to write instead."""
    if isinstance(value, (list, tuple, set, frozenset, range)):
        values = list(value)
        shown = repr(values if len(values) <= 10 else [*values[:9], "..."])
        return f"{type(value).__name__} {shown}; did you mean tune.choice({shown})?"
    if hasattr(value, "__code__"):
        what = f"{value.__name__} is a function{place_of(value)}"
        return f"{what}; to compute a value for each trial, write tune.sample_from(lambda spec: ...)"
    return (
        f"a {type(value).__name__} is neither a domain, such as tune.choice, tune.uniform, tune.loguniform, "
        f"tune.randint, tune.grid_search or tune.sample_from, nor a constant: a number, a text, True, False or None"
    )


def _ends(domain: Any) -> tuple[float, float]:
    """The ends of a range, as logarithms if it is a log range."""
    ends = domain.lower, _top(domain)
    return (math.log(ends[0]), math.log(ends[1])) if kind(domain).startswith("log") else ends


def _top(domain: Any) -> Any:
    # Ray's integer ranges exclude their upper end, unless they are quantised (tune.qrandint includes it).
    return domain.upper - 1 if "randint" in kind(domain) and not _step(domain) else domain.upper


def _step(domain: Any) -> Any:
    return getattr(domain.sampler, "q", None)
