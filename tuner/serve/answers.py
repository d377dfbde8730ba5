"""Writes the API's responses as JSON of at most about MOST_BYTES each, and limits the memory of unsent ones.

A response that is too long is shortened and says so. A list loses its last rows, and `left_out` counts them. A row
loses the ends of its long values. A figure is replaced by an empty one that shows the reason.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tuner.errors import RequestError, printable
from tuner.record.events import strict
from tuner.record.reading import NotYet

MOST_BYTES = 32 << 20  # bytes of a response; 10,000 trials of ten parameters take 5 MB, figures of 12 parameters 8 MB
MOST_ROW = 64 << 10  # bytes of one row of a list; a longer row is shortened
MOST_SENT = 256 << 20  # bytes of all unsent responses together; those of at most PIECE_BYTES do not count
MOST_WRITTEN = 4  # responses encoded at once; the GIL encodes one at a time, and each is in memory twice meanwhile
RETRY_S = 1  # seconds after which a client should repeat a request that got 503
LEAST_ITEM, LONGEST_NAME = 100, 1000  # bytes: the space that a further item of a cut list needs; the longest key
PIECE_BYTES = 64 << 10  # bytes sent at once, so that a client that does not read costs no larger copy
_encode = json.JSONEncoder(default=vars, allow_nan=False).encode
# _ESCAPED matches each escape in JSON text. Group 1 is the hex code if the character changes the direction of writing.
_ESCAPED = re.compile(r"\\(?:u(20(?:2[a-e]|6[6-9]))|.)")
_writing = threading.Semaphore(MOST_WRITTEN)


class Refused(RequestError):
    """Raised for a request that the service cannot fulfil now; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BoundedResponse(Response):
    """A JSON response, sent in pieces; above PIECE_BYTES it counts against MOST_SENT until it is sent or dropped.

    Raises:
        NotYet: this response and the other unsent ones together would exceed MOST_SENT.
    """

    _lock = threading.Lock()
    _sent = 0

    def __init__(self, content: str | bytes, status: int = 200) -> None:
        super().__init__(content, status, media_type="application/json")
        size = len(self.body) if len(self.body) > PIECE_BYTES else 0
        with BoundedResponse._lock:
            if size and BoundedResponse._sent and BoundedResponse._sent + size > MOST_SENT:
                raise NotYet(f"responses of {BoundedResponse._sent >> 20} MiB are being sent; send the request again")
            BoundedResponse._sent += size
        self._end = weakref.finalize(self, BoundedResponse._forget, size)  # runs even if the response is never sent

    @staticmethod
    def _forget(size: int) -> None:
        with BoundedResponse._lock:
            BoundedResponse._sent -= size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, len(self.body), PIECE_BYTES):
                piece = self.body[start : start + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._end()


def answer(row: Any, status: int = 200, **rows: Iterable[Any]) -> BoundedResponse:
    """Returns a response with the JSON that `text_of` writes."""
    return BoundedResponse(text_of(row, **rows), status)


def refusal(status: int, message: str, more: Mapping[str, str] | None = None) -> Response:
    """Returns an error response of the API, `{"error": message}`; `more` are additional headers."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"error": message}, status, headers | dict(more or {}))


# The words for a kind of error of pydantic; the names in braces are those of its context.
WRONG = {
    "greater_than_equal": "must be {ge} or more",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be {le} or less",
    "less_than": "must be below {lt}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "string_too_long": "must have at most {max_length} characters",
    "too_long": "must have at most {max_length} items",
    "string_type": "must be a text",
    "list_type": "must be a list",
    "missing": "is missing; give it",
    "extra_forbidden": "is unknown here; leave it out",
}
WRONG |= dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number")
WRONG |= dict.fromkeys(("float_type", "float_parsing", "finite_number"), "must be a number")


def wrong_field(error: Mapping[str, Any]) -> str:
    """Says in plain words what pydantic found wrong: the field, its value, and what is allowed."""
    name, given, kind = error["loc"][:2][-1], error.get("input"), error["type"]
    value = (
        f" {printable(str(given)[:50])}" if isinstance(given, (str, int, float)) and kind != "extra_forbidden" else ""
    )
    words = WRONG.get(kind)
    return f"{name}{value}: {words.format(**error.get('ctx', {})) if words else error['msg']}"


def later(message: str) -> Response:
    """Returns a 503 response that asks the client to retry after RETRY_S."""
    answer = refusal(503, message)
    answer.headers["Retry-After"] = str(RETRY_S)
    return answer


def text_of(row: Any, **rows: Iterable[Any]) -> str:
    """Encodes a dataclass as JSON; nan and infinity become the strings that the journal uses.

    Args:
        rows: name of a field -> its rows, an iterable that may be lazy; it replaces the field's value. The dataclass
            must have a field `left_out` if rows may be left out.
    """
    with _writing:
        fields = {name: "" if name in rows else _json_text(_fitted(value)) for name, value in vars(row).items()}
        left = MOST_BYTES - sum(map(len, fields.values()))
        left_out = 0
        for name, each in rows.items():
            texts, number = _texts(each, left)
            left -= sum(map(len, texts))
            left_out += number
            fields[name] = f"[{', '.join(texts)}]"
        if left_out:
            fields["left_out"] = str(row.left_out + left_out)
        return "{" + ", ".join(f"{json.dumps(name)}: {text}" for name, text in fields.items()) + "}"


def figure_text(figure: dict[str, Any] | None) -> bytes:
    """Encodes a figure as JSON; the text is empty if there is no figure."""
    with _writing:
        return _within(to_json(figure), MOST_BYTES) if figure else b""


def figures_text(figures: Mapping[str, bytes], most: int | None = None) -> bytes:
    """Combines the texts of figures by name to one JSON object of at most about `most` bytes (None = MOST_BYTES).

    It leaves out empty texts. An empty figure that shows the reason takes the place of a figure that does not fit.
    """
    left, texts = MOST_BYTES if most is None else most, []
    for name, text in figures.items():
        if text:
            fitted = _within(text, left)
            texts.append(to_json(name) + b":" + fitted)
            left -= len(fitted)
    return b"{" + b",".join(texts) + b"}"


def _within(text: bytes, most: int) -> bytes:
    return text if len(text) <= most else to_json(_empty(len(text)))


def _texts(rows: Iterable[Any], most: int) -> tuple[list[str], int]:
    """Encodes the first rows, at most `most` bytes in all; returns their texts and the number of rows left out."""
    texts: list[str] = []
    rows = iter(rows)
    for row in rows:
        text = _json_text(shortened(row, MOST_ROW))
        most -= len(text) + 2
        if most < 0:
            return texts, 1 + sum(1 for _ in rows)
        texts.append(text)
    return texts, 0


def _json_text(value: Any) -> str:
    try:
        # Encoded without a copy: copying 10,000 rows by `asdict` and then by `strict` takes four times as long.
        text = _encode(value)
    except ValueError:
        text = _encode(strict(dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value))  # type: ignore[arg-type]
    return _left_to_right(text)


def _left_to_right(text: str) -> str:
    """Replaces, in JSON, characters that change the direction of writing by their escapes as visible text."""
    if "\\u20" not in text:
        return text
    return _ESCAPED.sub(lambda match: f"\\\\u{match[1]}" if match[1] else match[0], text)


def _fitted(value: Any) -> Any:
    """Shortens the value of a response's field if it is too large; replaces a too large figure by an empty one."""
    if isinstance(value, dict) and "data" in value and "layout" in value:
        size = len(to_json(value))
        return value if size <= MOST_BYTES // 2 else _empty(size)
    return shortened(value, MOST_BYTES // 8)


def _empty(size: int) -> dict[str, Any]:
    """Returns a Plotly figure without data whose text says why it is empty."""
    text = f"left out: this figure has {size:,} bytes; a response has at most {MOST_BYTES:,}"
    note = {"text": text, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    axis = {"visible": False}
    return {"data": [], "layout": {"annotations": [note], "xaxis": axis, "yaxis": axis}}


def shortened(value: Any, most: int) -> Any:
    """Returns the value if its JSON has at most about `most` bytes, otherwise a copy with long texts and lists cut.

    The copy marks each cut: a text ends with its full length, a list or dict with the number of missing items.
    """
    return value if _measured(value, most) >= 0 else _cut_to(value, most)[0]


def _measured(value: Any, left: int) -> int:
    """Returns `left` minus the value's approximate size in JSON; stops measuring as soon as the result is below 0."""
    if isinstance(value, str):
        return left - 2 - (len(value) if value.isascii() else 6 * len(value))
    if isinstance(value, dict):
        for name, item in value.items():
            left = _measured(item, left - 6 - len(name))
            if left < 0:
                return left
        return left - 2
    if isinstance(value, (list, tuple)):
        for item in value:
            left = _measured(item, left - 2)
            if left < 0:
                return left
        return left - 2
    if dataclasses.is_dataclass(value):
        return _measured(vars(value), left)
    return left - (20 if isinstance(value, (float, int)) else 5)


def _cut_to(value: Any, left: int) -> tuple[Any, int]:
    """Returns a copy of at most about `left` bytes, and the number of bytes that remain.

    No item takes more than half of the bytes that remain before it.
    """
    if isinstance(value, str):
        after = _measured(value, left)
        if after >= 0:
            return value, after
        return f"{value[: max(0, left) // 6]}... ({len(value):,} characters)", 0
    if dataclasses.is_dataclass(value):
        fields = {}
        for name, item in vars(value).items():
            fields[name], rest = _cut_to(item, left // 2)
            left -= left // 2 - rest
        return fields, left
    if isinstance(value, dict):
        items: dict[str, Any] = {}
        for name, item in value.items():
            if left <= LEAST_ITEM:
                items["left out"] = f"{len(value) - len(items):,} more"
                break
            short, _ = _cut_to(name, LONGEST_NAME)
            items[short], rest = _cut_to(item, left // 2)
            left -= left // 2 - rest + len(short) + 6
        return items, left
    if isinstance(value, (list, tuple)):
        rows: list[Any] = []
        for item in value:
            if left <= LEAST_ITEM:
                rows.append(f"left out: {len(value) - len(rows):,} more")
                break
            row, rest = _cut_to(item, left // 2)
            rows.append(row)
            left -= left // 2 - rest + 4
        return rows, left
    return value, _measured(value, left)
