"""Converts an event to a line of the journal and back; checks its fields when its line is read.

The last two fields of a line are its number and a CRC-32, which continues from that of the line before. A mismatch
shows that lines were altered, removed, repeated, moved or are of another journal, except lines missing at the end.
Non-finite floats are the strings "nan", "inf" and "-inf", because JSON has no such numbers and browsers refuse Python's
`NaN` and `Infinity`. A parameter may also be such a text: `non_finite` beside a `config` says where a float was.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from typing import Any

from tuner.core.events import KINDS, OPTIONAL, STATES, Event, kind_of, trial_of
from tuner.errors.gate import plain
from tuner.record.storage.files import MOST_BYTES, is_inside, parsed
from tuner.spec.metrics import MOST_INTEGER
from tuner.spec.option_values import MOST_EPOCHS, MOST_RUNGS

Document = dict[str, Any]  # a line as an object of JSON
SHARED = ("time", "trial", "order")  # fields of most events that `document_of` does not put at its end
ALWAYS = {"decision": ("rung", "bracket", "cutoff", "recorded")}  # fields with a default that each line has
MOST_TIME = 1e11  # maximum time of an event, in unix seconds: the year 5138
MOST_ID = 200  # maximum length of a trial's id, in characters
SEAL = b', "line": %d, "crc": "%08x"}'
MOST_SEAL = len(SEAL % (10**12, 0))
_SEAL = re.compile(rb', "line": (\d{1,12}), "crc": "[0-9a-f]{8}"}$')
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def document_of(event: Event, **more: Any) -> Document:
    """Returns what an event's line has: time, kind and trial, then `more`, then the event's own fields."""
    trial = {} if (id_ := trial_of(event)) is None else {"trial": id_}
    own = {name: value for name, value in zip(event._fields, event, strict=True) if name not in SHARED}
    own = {name: value for name, value in own.items() if value is not None or name not in OPTIONAL}
    return {"time": event.time, "event": kind_of(event), **trial, **more, **own}


def text_of(event: Event, **more: Any) -> bytes:
    """Returns an event as JSON; `Chain.line_of` makes a line of it."""
    document = document_of(event, **more)
    if "config" in document:
        document |= with_words({name: plain(value) for name, value in document["config"].items()})
    return json_of(document)


def json_of(document: Document) -> bytes:
    return json.dumps(strict(document), allow_nan=False, default=plain).encode()


def event_of(document: Document, order: int = 0) -> Event:
    """Returns the event of a line's document, which it uses up; ValueError or TypeError if it is none."""
    kind = KINDS.get(name := document.pop("event", None))
    if kind is None:
        raise ValueError("field `event` names no kind of event")
    if "trial" in kind._fields and document.get("trial") is None:
        raise ValueError("field `trial` is missing")
    if missing := {"time", *ALWAYS.get(name, ())} - document.keys():
        raise ValueError(f"field `{min(missing)}` is missing")
    for field, value in document.items():
        if (fits := _FITS.get(field)) and not fits(value) and not (value is None and field in _MAY_BE_NULL):
            raise ValueError(f"field `{field}` has a wrong type or value")
    try:
        return kind(**document, order=order)
    except TypeError as error:
        raise ValueError(f"{name}: {str(error).partition(' ')[2]}") from None


class Chain:
    """Makes the lines of one journal in their order, or reads them: `number` and `crc` are those of its last line."""

    def __init__(self) -> None:
        self.number = self.crc = 0

    def line_of(self, text: bytes) -> bytes:
        """Returns a JSON object as the journal's next line: adds its number and its CRC."""
        self.number, self.crc = self.number + 1, zlib.crc32(text, self.crc)
        return text[:-1] + SEAL % (self.number, self.crc) + b"\n"

    def event_of(self, line: bytes, check_first: Callable[[Document], None] = lambda document: None) -> Event:
        """Returns the next line's event; ValueError, KeyError or TypeError if it is damaged or not the next line.

        `check_first` gets the document of the first line.
        """
        if len(line) > MOST_BYTES:
            raise ValueError(f"the line is longer than {MOST_BYTES:,} bytes")
        number, seal = self.number + 1, line.rfind(b', "line": ')
        text = line[:seal] + b"}"
        crc = zlib.crc32(text, self.crc)
        if line[seal:] != SEAL % (number, crc):
            found = _SEAL.search(line, max(0, len(line) - MOST_SEAL))
            if found and int(found[1]) != number:
                raise ValueError(f"it says that it is line {int(found[1])}: lines are missing, repeated or moved")
            raise ValueError("the line does not match its checksum: it was altered, or is of another journal")
        document: Document = parsed(text)
        if not isinstance(document, dict):
            raise ValueError("the line is no JSON object")
        if number == 1:
            check_first(document)
        if b'nan"' in line or b'inf"' in line:
            _replace_words(document, ("value", "cutoff", "compared"))
            if document["event"] == "report" and isinstance(document["metrics"], dict):
                _replace_words(document["metrics"], tuple(document["metrics"]))
            from_words(document)
        event = event_of(document, number)
        self.number, self.crc = number, crc
        return event


def strict(value: Any) -> Any:
    """Converts the non-finite floats in a value to strings, because JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return value


def with_words(config: Document) -> Document:
    """Returns a `config` as JSON that `from_words` reads, with the places of its non-finite floats, if it has any."""
    places = list(_non_finite_in(config))
    return {"config": strict(config)} | ({"non_finite": places} if places else {})


def from_words(document: Document) -> None:
    """Restores the non-finite floats of `document["config"]`; ValueError or TypeError if `non_finite` is wrong."""
    for *above, last in document.pop("non_finite", ()):
        try:
            inside: Any = reduce(getitem, above, document["config"])
            inside[last] = _NON_FINITE[inside[last]]
        except LookupError:
            raise ValueError("`non_finite` names no such float of `config`") from None


def _non_finite_in(value: Any) -> Iterator[list[Any]]:
    """Yields where a plain value has a non-finite float: the names and indices that lead to it."""
    if isinstance(value, float) and not math.isfinite(value):
        yield []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        yield from ([name, *place] for place in _non_finite_in(each))


def is_trial_id(value: Any) -> bool:
    """Whether the value can be a trial's id, which is also the name of the trial's folder."""
    fits = isinstance(value, str) and 0 < len(value) <= MOST_ID
    return fits and "/" not in value and "\0" not in value and value not in (".", "..")


def _replace_words(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if isinstance(fields.get(name), str):
            fields[name] = _NON_FINITE.get(fields[name], fields[name])


def _instance_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _whole_number(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


_is_text, _is_dict, _is_flag = map(_instance_of, (str, dict, bool))
_is_epoch, _is_length = _whole_number(0, MOST_EPOCHS), _whole_number(1, MOST_EPOCHS)
_is_integer = _whole_number(1 - MOST_INTEGER, MOST_INTEGER - 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_integer(value)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _are_rungs(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_RUNGS and all(map(_is_length, value))


_MAY_BE_NULL: dict[str, Callable[[Any], bool]] = {  # field of any event -> the check of its value, if it is not null
    "trial": is_trial_id, "copied": is_trial_id, "checkpoint": is_inside, "rung": _is_finite, "bracket": _is_finite,
    "band": _is_finite, "value": _is_number, "cutoff": _is_number, "compared": _is_number,
}  # fmt: skip
_FITS: dict[str, Callable[[Any], bool]] = _MAY_BE_NULL | {
    "event": _is_text, "time": lambda value: isinstance(value, (int, float)) and 0 <= value <= MOST_TIME,
    "config": _is_dict, "resources": _is_dict, "node": _is_text, "epoch": _is_epoch, "metrics": _is_dict,
    "recorded": _whole_number(0, MOST_INTEGER - 1), "action": _is_text, "reason": _is_text, "error": _is_text,
    "status": _is_text, "epochs": _is_length, "rungs": _are_rungs, "refused": _is_flag, "out_of_time": _is_flag,
    "confirms": is_trial_id, "seed": _whole_number(0, 2**32 - 1),
    "budget": _is_flag, "past": _is_dict, "left_out": _is_dict, "unchecked": _is_dict,
    "seconds": lambda value: _is_finite(value) and value >= 0,
    "state": lambda value: isinstance(value, str) and value in STATES,
}  # fmt: skip
