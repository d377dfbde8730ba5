"""The gate: turns what users' code hands over into plain values and clean text, and never raises an error of its own.

Metrics and their names, parameters, and errors pass it before they are sent, journaled, compared or shown. A plain
value is None, a bool, an int, a float, a text, or a list or dictionary of plain values; JSON can hold it. A clean text
can be encoded as UTF-8. What stands for an object depends only on its code and values, so that it is the same in each
process: a resumed search compares it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import linecache
import math
import pickle
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from functools import partial
from numbers import Real
from types import CodeType, NoneType
from typing import Any

MAX_INTEGER = 10**300  # maximum absolute value of an integer: metrics are compared as floats, which end at 1.8e308
MAX_NESTING = 100  # maximum nesting of a value
MAX_VALUES = 20_000  # maximum number of values in a value
MAX_ARRAY_VALUES = 1_000  # maximum number of values of an array that is kept as lists
MAX_NAME_CHARS = 1_000  # maximum characters of a metric's name
MAX_METRIC_CHARS = 100_000  # maximum characters of a metric as JSON; Python's csv reads cells of 131,072
MOST_REPORT = 1_000_000  # maximum characters of a report as JSON, of which the journal may make 12 bytes each
MOST_ERROR = 4_096  # maximum characters of an error's line
MAX_TEXT_CHARS = 200  # longer texts of functions and objects are cut, and end with a digest of the whole
# What differs from process to process in a `repr`: an address, and the name under which a space's file is imported.
_PASSING = re.compile(r" at 0x[0-9a-fA-F]+|\b(?:builtins|__main__|tuner_space_.+?_[0-9a-f]{8})\.")
_SIMPLE = (NoneType, bool, int, float, str)


class TooLargeError(ValueError):
    """A value has too many values in it, or contains itself."""


def plain(value: Any) -> Any:
    """Return a value as the first of `RULES` that fits makes it; its class in angle brackets if this is impossible."""
    return _Pass().inner(value, MAX_NESTING)


def clean(text: str) -> str:
    """Return a text as Python's own `str`, in which escapes such as `\\udce9` replace what UTF-8 cannot encode."""
    text = str.__str__(text)  # of a subclass, too, whatever methods it overrides
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def text_of(value: Any, most: int = MOST_ERROR) -> str:
    """Return `str(value)`, such as the text of an error, clean and cut after `most` characters."""
    try:
        text = clean(str(value))
    except (Exception, SystemExit) as error:
        text = f"({_class_of(value)} has no text: str() raises {_class_of(error)})"
    return text if len(text) <= most else f"{text[:most]} [{len(text) - most:,} more characters]"


def fingerprint(value: Any) -> str:
    """Return a text that is equal for plain values that are equal, NaN included."""
    return json.dumps(value, sort_keys=True)


def metrics_of(
    report: Mapping[Any, Any], refused: Mapping[str, str], needed: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a report's metrics as plain values, and for each metric that cannot be kept its name and the reason.

    Nested dictionaries stay nested; in the reasons, `/` joins their names. `refused` has names that no metric may have,
    with the reason. The size of the report is no reason to leave out a metric that is `needed`.
    """
    room, lost = MOST_REPORT, dict[str, str]()
    too_large = f"its report has more than {MOST_REPORT:,} characters"

    def kept(report: Mapping[Any, Any], above: str, levels: int) -> dict[str, Any]:
        nonlocal room
        found: dict[str, Any] = {}
        for given, value in _items(report):
            name = given if type(given) is str and given.isascii() else str(plain(given))
            path = f"{above}{name}"
            try:
                reason = "another metric has this name" if name in found else refused.get(path, "")
                if len(path) > MAX_NAME_CHARS:
                    reason = f"its name has more than {MAX_NAME_CHARS:,} characters"
                elif isinstance(value, Mapping) and not reason:
                    if levels and (room := room - len(path)) > 0:
                        found[name] = kept(value, f"{path}/", levels - 1)
                        continue
                    reason = too_large if levels else "it is nested more than 100 levels deep, or contains itself"
                elif not reason:
                    value = _Pass().kept(value, MAX_NESTING)
                    size = 24 if type(value) is float else len(value if type(value) is str else json.dumps(value))
                    if size > MAX_METRIC_CHARS:
                        reason = f"it has more than {MAX_METRIC_CHARS:,} characters"
                    elif (room := room - size - len(name)) < 0 and path not in needed:
                        reason = too_large
            except (Exception, SystemExit) as error:
                kind = "" if isinstance(error, TooLargeError) else f"{_class_of(error)}: "
                reason = f"its {_class_of(value)} cannot be read ({kind}{text_of(error, 100)})"
            if reason:
                lost.setdefault(path[:MAX_TEXT_CHARS], reason)
            else:
                found[name] = value
        return found

    return kept(report, "", MAX_NESTING), lost


class _Pass:
    """One value's way through the gate, which counts the values in it."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def inner(self, value: Any, levels: int) -> Any:
        """Return a value, or a value inside another, as a plain one; one that cannot be kept as `<its class>`."""
        try:
            return self.kept(value, levels)
        except TooLargeError:
            if levels < MAX_NESTING:
                raise
            with contextlib.suppress(Exception, SystemExit):
                return f"<{_class_of(value)}> sha256 {hashlib.sha256(pickle.dumps(value)).hexdigest()[:8]}"
        except (Exception, SystemExit):
            pass
        return f"<{_class_of(value)}>"

    def kept(self, value: Any, levels: int) -> Any:
        """Return a value as a plain one; raises any error if it cannot be kept."""
        if type(value) is float or type(value) is str and value.isascii():
            return value
        self._left -= 1
        if levels <= 0 or self._left < 0:
            much = "is nested more than 100 levels deep" if levels <= 0 else f"has more than {MAX_VALUES:,} values"
            raise TooLargeError(f"it {much}, or contains itself")
        return next(rule for fits, rule in RULES if fits(value))(self, value, levels - 1)


def _integer(gate: _Pass, value: Any, levels: int) -> Any:
    number = int.__int__(value)
    return number if abs(number) <= MAX_INTEGER else math.copysign(math.inf, number > 0 or -1)


def _dictionary(gate: _Pass, value: Any, levels: int) -> Any:
    pairs = ((gate.inner(key, levels), gate.inner(each, levels)) for key, each in _items(value))
    return {key if type(key) is str else str(key): each for key, each in pairs}


def _sorted(gate: _Pass, value: Any, levels: int) -> Any:
    return sorted((gate.inner(each, levels) for each in value), key=fingerprint)


def _array(gate: _Pass, value: Any, levels: int) -> Any:
    size, shape = math.prod(value.shape), tuple(map(int, value.shape))
    if size > MAX_ARRAY_VALUES:
        return f"{_class_of(value)} of shape {shape}, sha256 {_digest(value)}"
    listed: Any = _listed(value)
    while size == 1 and isinstance(listed, list):
        (listed,) = listed
    return gate.kept(listed, levels)


def _function(gate: _Pass, value: Any, levels: int) -> Any:
    module = getattr(value, "__module__", None)
    name = _PASSING.sub("", f"{module}.{value.__qualname__}" if isinstance(module, str) else value.__qualname__)
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType) and "<" in name:  # of a lambda, or defined in a function: others may have its name
        name = _source_of(code) if code.co_name == "<lambda>" else name
        cells = (cell.cell_contents for cell in getattr(value, "__closure__", None) or ())
        defaults = [*(getattr(value, "__defaults__", None) or ()), *cells]
        if own := [str(gate.inner(each, levels)) for each in defaults if isinstance(each, _SIMPLE)]:
            name += f" with {', '.join(own)}"
    return _cut(name)


def _partial(gate: _Pass, value: Any, levels: int) -> Any:
    given = [str(gate.inner(each, levels)) for each in (value.func, *value.args)]
    return _cut(f"partial({', '.join([*given, *(f'{n}={gate.inner(v, levels)}' for n, v in value.keywords.items())])})")


def _object(gate: _Pass, value: Any, levels: int) -> Any:
    if any("__repr__" in vars(each) for each in type(value).__mro__[:-1]):
        return clean(_PASSING.sub("", repr(value)))
    own = {name: each for name, each in getattr(value, "__dict__", {}).items() if isinstance(each, _SIMPLE)}
    return _cut(f"{_class_of(value)}({', '.join(f'{name}={gate.inner(each, levels)}' for name, each in own.items())})")


def _is_array(value: Any) -> bool:
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and not isinstance(value, type) and all(hasattr(n, "__index__") for n in shape)


def _is_named(value: Any) -> bool:
    return isinstance(getattr(value, "__qualname__", None), str)


def _is(*classes: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, classes)


# The gate's rules: the first whose test is true makes the plain value. Any error means that the value cannot be kept.
RULES: tuple[tuple[Callable[[Any], bool], Callable[[_Pass, Any, int], Any]], ...] = (
    (_is(NoneType, bool), lambda gate, value, levels: value),
    (_is(float), lambda gate, value, levels: float.__float__(value)),  # NaN and infinity, too
    (_is(int), _integer),  # exact up to +-1e300, then infinite
    (_is(str), lambda gate, value, levels: clean(value)),
    (_is(Mapping), _dictionary),  # its keys become texts
    (_is(list, tuple), lambda gate, value, levels: [gate.inner(each, levels) for each in value]),
    (_is(set, frozenset), _sorted),  # a list, ordered by its values
    (_is_array, _array),  # or a tensor, table or numpy scalar: its only value, nested lists, or its shape and a digest
    (_is(Real, Decimal), lambda gate, value, levels: float(value)),
    (_is_named, _function),  # or a class: its qualified name
    (_is(partial), _partial),
    (_is(object), _object),  # its repr without addresses; without a repr of its own, its class and attributes
)


def _items(value: Mapping[Any, Any]) -> Any:
    return dict.items(value) if isinstance(value, dict) else value.items()


def _listed(value: Any) -> Any:
    """Return the values of an array, tensor or table as nested lists, or as one value."""
    import numpy as np

    if isinstance(value, np.floating):
        return float(value)  # `tolist` of a longdouble is a longdouble
    return value.tolist() if hasattr(value, "tolist") else np.asarray(value).tolist()


def _digest(value: Any) -> str:
    import numpy as np

    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    content = str(array.tolist()).encode() if array.dtype.hasobject else np.ascontiguousarray(array).tobytes()
    return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + content).hexdigest()[:8]


def _source_of(code: CodeType) -> str:
    """Return a lambda as its source text; if that is unknown, with a digest of what Python made of it."""
    spans = [each for each in code.co_positions() if None not in each and (each[0], each[2]) < (each[1], each[3])]
    begin = min(((line, column) for line, _, column, _ in spans), default=(0, 0))
    end = max(((line, column) for _, line, _, column in spans), default=(0, 0))
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[begin[0] - 1 : end[0]] if spans]  # type: ignore[operator]
    if len(lines) != end[0] - begin[0] + 1:  # type: ignore[operator]
        own = [each for each in code.co_consts if isinstance(each, _SIMPLE)]
        return f"<lambda> {hashlib.sha256(repr((code.co_code, code.co_names, own)).encode()).hexdigest()[:8]}"
    lines[-1] = lines[-1][: end[1]]
    lines[0] = lines[0][begin[1] :]
    body = " ".join(b" ".join(lines).decode(errors="replace").split())
    return f"lambda {', '.join(code.co_varnames[: code.co_argcount])}: {body}"


def _class_of(value: Any) -> str:
    return clean(type(value).__qualname__)


def _cut(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return clean(text)
    return clean(f"{text[:MAX_TEXT_CHARS]}... sha256 {hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}")
