"""Checks and describes Ray's search domains, and lists their grid values and the neighbours of a value."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import getitem
from typing import Any

from tuner.errors import RequestError
from tuner.errors.gate import fingerprint, plain, text_of
from tuner.errors.users_code import place_of
from tuner.spec.metrics import is_number

LISTED, UNBOUNDED = ("choice", "grid_search"), ("normal", "sample_from")  # kinds; all others are ranges
CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
GRID_POINTS = 5  # maximum values of a numeric range in a grid search; examples of W&B and scikit-learn have 3 to 6
NEIGHBOUR_SHARE = 0.1  # distance of a neighbour, as a share of the range's width; both in logarithms for a log range


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


def flattened(params: Mapping[str, Any], setting: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a setting's values by the names of `leaves(params)`; a choice's value stays whole, even a dictionary."""
    return {name: functools.reduce(getitem, name.split("/"), setting) for name, _ in leaves(params)}


def literal(text: str) -> Any:
    """Returns the number, True, False or None that a text spells; else the text itself."""
    for read in (int, float, CONSTANTS.__getitem__):
        with contextlib.suppress(ValueError, KeyError):
            return read(text)
    return text


def words(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Writes values as the words of `--point`: `{"a": {"b": 1}}` -> `("a/b=1",)`."""
    return tuple(f"{name}={value}" for name, value in leaves(values))


def metric_words(limits: Mapping[str, Any], prefix: str = "") -> tuple[str, ...]:
    """Writes metrics' values as the words of `--stop`, as `words` does; a metric's name may itself contain `/`."""
    each = ((f"{prefix}{name}", value) for name, value in limits.items())
    nested = (metric_words(v, f"{n}/") if isinstance(v, Mapping) else (f"{n}={v}",) for n, v in each)
    return tuple(word for words in nested for word in words)


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
    return isinstance(value, Mapping) and set(value) == {"grid_search"}


def is_constant(value: Any) -> bool:
    """Whether the value is a constant, which every trial gets as it is."""
    return value is None or isinstance(value, (bool, int, float, str))


def kind(domain: Any) -> str:
    """Returns a domain's kind, such as `choice` or `lograndint`; raises ValueError for a value that is no domain."""
    from ray.tune.search import sample

    if is_grid(domain):
        return "grid_search"
    kinds = {sample.Categorical: "choice", sample.Function: "sample_from", sample.Integer: "randint"}
    base = {**kinds, sample.Float: "uniform"}.get(type(domain))
    if base is None:
        raise ValueError(_no_domain(domain))
    if isinstance(sampler_of(domain), sample.Normal):
        return "normal"
    return f"log{base}" if isinstance(sampler_of(domain), sample.LogUniform) else base


def sampler_of(domain: Any) -> Any:
    """Returns the sampler of a domain, such as `Normal` with `mean` and `sd`; with a step `q`, Ray wraps it."""
    return getattr(domain.sampler, "sampler", domain.sampler)


def is_choice(value: Any) -> bool:
    from ray.tune.search.sample import Categorical

    return isinstance(value, Categorical)


def check_domain(domain: Any) -> None:
    """Raises ValueError if the value is no domain, has no values, has lower >= upper, or lower <= 0 in a log range.

    Likewise if its step `q` is not above 0, or if no multiple of `q` lies between the bounds.
    """
    name = kind(domain)
    if name in LISTED and not values_of(domain):
        raise ValueError(f"tune.{name}([]) has no values; give at least one")
    if name not in (*LISTED, *UNBOUNDED):
        if not domain.lower < domain.upper:
            raise ValueError(f"range {domain.lower}..{domain.upper} is reversed or empty; lower must be below upper")
        if name.startswith("log") and domain.lower <= 0:
            raise ValueError(f"log range {domain.lower}..{domain.upper} must lie above zero")
    if name not in LISTED and (step := _step(domain)) is not None:
        if not step > 0 or ("randint" in name and step != int(step)):
            raise ValueError(f"step q={step}: must be above 0, and a whole number for integers")
        if name not in UNBOUNDED and (span := Range(domain)).low > span.high:
            raise ValueError(f"range {domain.lower}..{domain.upper} has no multiple of q={step}; widen it or lower q")


def describe(domain: Any) -> dict[str, Any]:
    """Returns a domain as JSON: its kind, and its values or bounds. An integer range without `q` excludes `upper`."""
    name = kind(domain)
    if name in LISTED:
        weights = getattr(getattr(domain, "sampler", None), "probabilities", None)  # of a W&B sweep
        values = [described(value) for value in values_of(domain)]
        return {"kind": name, "values": values, **({"probabilities": weights} if weights else {})}
    if name == "sample_from":
        return {"kind": name}
    bounds = {"lower": domain.lower, "upper": domain.upper, "q": _step(domain)}
    return {"kind": name, **{key: v for key, v in bounds.items() if v is not None and math.isfinite(v)}}


def described(value: Any) -> Any:
    """Returns a value of a choice as JSON: one that is no constant, or not finite, as the text of its plain value."""
    value = plain(value)
    return value if is_constant(value) and not (isinstance(value, float) and not math.isfinite(value)) else str(value)


def checked_value(domain: Any, value: Any, name: str) -> Any:
    """Checks that a domain contains a value, ignoring the step `q`; returns the value as a trial gets it.

    For a choice or a grid, the value may also be a text, or come from JSON: "8" becomes 8, and [1, 2] becomes (1, 2). A
    value outside the domain raises ValueError.
    """
    if (known := kind(domain)) in LISTED:
        values = values_of(domain)
        tests: tuple[Callable[[Any], bool], ...] = (
            lambda each: type(each) is type(value) and equal(each, value),
            lambda each: equal(each, value),
            lambda each: text_of(value) in (text_of(each), described(each), _as_json(each)),
            lambda each: _as_json(each) == _as_json(value),
        )
        if found := [each for fits in tests for each in values if fits(each)][:1]:
            return found[0]
        known_ones = (repr(each) if is_constant(each) else described(each) for each in values)
        raise ValueError(f"{name}={value!r}: must be one of {', '.join(known_ones)}")
    if not is_number(value):
        raise ValueError(f"{name}={value!r}: must be a number")
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{name}={value!r}: must be finite")
    if known == "normal":
        return float(value)
    span = Range(domain)
    if span.whole and value != int(value):
        raise ValueError(f"{name}={value!r}: must be a whole number")
    if not span.low <= value <= span.high:
        raise ValueError(f"{name}={value!r}: must be {span.low}..{span.high}")
    return int(value) if span.whole else float(value)


def within(domain: Any, value: Any) -> Any:
    """Returns the value of a domain that is nearest to a number; any other value stays as it is."""
    if (name := kind(domain)) in (*LISTED, "sample_from"):
        return value
    if name != "normal":
        return Range(domain).nearest(value)
    step = _step(domain)
    return round(value / step) * step + 0.0 if step else float(value)  # + 0.0, or -0.0 would be a value of its own


def index_of(values: Sequence[Any], value: Any) -> int:
    """Returns the index of a value: True, 1 and 1.0 are different values; ValueError if it is not there."""
    same = (number for number, each in enumerate(values) if each is value)
    same_value = (number for number, each in enumerate(values) if type(each) is type(value) and equal(each, value))
    if (found := next(same, None)) is None and (found := next(same_value, None)) is None:
        raise ValueError(f"{value!r} is none of the values")
    return found


def equal(one: Any, other: Any) -> bool:
    """Whether two values of a choice are equal; arrays are, if they are one object or have equal plain values."""
    try:
        return one is other or bool(one == other)
    except Exception:  # arrays and tables compare each of their values
        return type(one) is type(other) and _as_json(one) == _as_json(other)


def _as_json(value: Any) -> str:
    return fingerprint(plain(value))


def values_of(domain: Any) -> list[Any]:
    """The values of a `choice` or `grid_search`."""
    return list(domain["grid_search"] if is_grid(domain) else domain.categories)


def grid_values(domain: Any) -> list[Any]:
    """The values that a grid search tries: those of a choice, or `GRID_POINTS` at evenly spaced positions of a `Range`.

    The points include both ends, rounded to `q`; equal points count once. A domain without bounds raises ValueError.
    """
    name = kind(domain)
    if name in LISTED:
        return values_of(domain)
    if name in UNBOUNDED:
        raise ValueError(f"{name} has no bounds, so it has no grid; use tune.choice or a range, or --searcher random")
    return sorted({Range(domain).value_at(i / (GRID_POINTS - 1)) for i in range(GRID_POINTS)})


def neighbours(domain: Any, value: Any, radius: int = 1) -> list[Any]:
    """The values around `value` in a domain, without `value` itself; numbers fewer steps away come first.

    In a choice of numbers, the neighbours are the `radius` next smaller and `radius` next larger numbers. In another
    choice, all other values are neighbours. In a range, they lie up to `radius` steps to either side; a step is
    `NEIGHBOUR_SHARE` of the width, or the range's own step if that is larger. A domain without bounds has none.
    """
    steps = [sign * distance for distance in range(1, radius + 1) for sign in (-1, 1)]
    if (name := kind(domain)) in LISTED:
        values = values_of(domain)
        if not all(map(is_number, values)):
            return [v for v in values if not equal(v, value)]
        ordered = sorted(set(values))
        at = ordered.index(value)
        return [ordered[at + step] for step in steps if 0 <= at + step < len(ordered)]
    if name in UNBOUNDED:
        return []
    span = Range(domain)
    least = span.step or (1 if span.whole else 0)
    share = NEIGHBOUR_SHARE if span.log else max(NEIGHBOUR_SHARE, least / (span.high - span.low or 1))
    picked = [span.value_at(min(1.0, max(0.0, span.position(value) + step * share))) for step in steps]
    if all(v == value for v in picked):  # each one was rounded back to `value`
        picked = [v for step in steps if span.low <= (v := value + step * (least or 1)) <= span.high]
    return [v for v in dict.fromkeys(picked) if v != value]


class Range:
    """A numeric domain with two ends; a position is a number from 0 (low) to 1 (high), logarithmic in a log range."""

    def __init__(self, domain: Any) -> None:
        self.log, self.whole = (name := kind(domain)).startswith("log"), "randint" in name
        self.low, self.high, self.step = domain.lower, domain.upper, _step(domain)
        # As in Ray, an integer range excludes its upper end, also with the step 1; with a larger step, its values are
        # the multiples of the step from the lower to the upper end. (The ends of a float range are multiples.)
        if self.whole and self.step in (None, 1):
            self.high -= 1
        elif self.whole:
            self.low, self.high = -(-self.low // self.step) * self.step, self.high // self.step * self.step

    def position(self, value: float) -> float:
        low, high, here = map(math.log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return float((here - low) / (high - low or 1))

    def value_at(self, position: float) -> Any:
        """The value at a position, rounded to the domain's `q`; an int for integer domains."""
        if position in (0.0, 1.0):
            value = self.high if position else self.low  # the ends are exact
        elif self.log:
            value = self.low * (self.high / self.low) ** position
        else:
            value = self.low + position * (self.high - self.low)
        return self.nearest(value)

    def nearest(self, value: float) -> Any:
        """The range's value that is nearest to a number: between the ends, rounded to `q`, an int in integer ranges."""
        if self.step:
            value = round(value / self.step) * self.step + 0.0
        value = min(self.high, max(self.low, value))
        return int(round(value)) if self.whole else float(value)


def _step(domain: Any) -> Any:
    return getattr(domain.sampler, "q", None)


def _no_domain(value: Any) -> str:
    if isinstance(value, (list, tuple, set, frozenset, range)):
        values = list(value)
        if any(type(each).__module__ == "ray.tune.search.sample" or is_grid(each) for each in values):
            return (
                f"a {type(value).__name__} with domains; write a dictionary of them, and make the list in the function"
            )
        shown = text_of(values if len(values) <= 10 else [*values[:9], "..."])
        return f"{type(value).__name__} {shown}; did you mean tune.choice({shown})?"
    if hasattr(value, "__code__"):
        what = f"{value.__name__} is a function{place_of(value)}"
        return f"{what}; to compute a value for each trial, write tune.sample_from(lambda spec: ...)"
    return (
        f"a {type(value).__name__} is neither a domain, such as tune.choice, tune.uniform, tune.loguniform, "
        f"tune.randint, tune.grid_search or tune.sample_from, nor a constant: a number, a text, True, False or None"
    )
