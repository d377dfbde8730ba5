"""Writes the API's responses as JSON of at most about MOST_BYTES each; limits the memory of responses not yet sent.

If a response would be too long, it leaves out the last rows of lists (`left_out` counts them) and figures; an empty
figure that shows why replaces each figure left out. A row above MOST_ROW is shortened.
"""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import islice
from typing import Any

from fastapi import Depends
from pydantic_core import to_json
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tuner.errors import RequestError, printable
from tuner.record.lines import strict
from tuner.views.figures.plot import empty_figure

MOST_BYTES = 32 << 20  # bytes of a response; 10,000 trials of ten parameters take 5 MB, figures of 12 parameters 8 MB
MOST_ROW = 64 << 10  # bytes of one row of a list; a longer row is shortened
MOST_SENT = 256 << 20  # bytes of all responses that are being sent; responses of up to PIECE_BYTES do not count
MOST_WRITTEN = 4  # responses encoded at once; each is in memory twice, and under the GIL more threads gain nothing
CUTS = (4000, 400, 40, 4)  # each limits both a text's characters and a list's items; tried in turn until a row fits
MAX_CUT_LEVELS = 6  # levels of lists and dicts in a shortened row
RETRY_AFTER_S = 1  # seconds after which a client should repeat a request that `later` answered
PIECE_BYTES = 64 << 10  # bytes sent at once; for a client that does not read, a copy of about this size waits in memory
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
    """A JSON response, sent in pieces. Above PIECE_BYTES, it becomes a 503 while MOST_SENT has no room for it."""

    _sent = 0  # bytes of the responses above PIECE_BYTES that are being sent; only the event loop's thread changes it

    def __init__(self, content: bytes, status: int = 200) -> None:
        super().__init__(content, status, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = len(self.body) if len(self.body) > PIECE_BYTES else 0
        if size and BoundedResponse._sent and BoundedResponse._sent + size > MOST_SENT:
            refused = later(f"responses of {BoundedResponse._sent >> 20} MiB are being sent; send the request again")
            return await refused(scope, receive, send)
        BoundedResponse._sent += size
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, len(self.body), PIECE_BYTES):
                piece = self.body[start : start + PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            BoundedResponse._sent -= size


def at_most(most: int, what: str) -> Any:
    """Returns a dependency for FastAPI routes: while `most` of their requests are being answered, others get a 503."""
    number = 0

    async def counted() -> AsyncIterator[None]:  # async: it runs in the event loop's one thread
        nonlocal number
        if number >= most:
            raise Refused(503, f"{most} {what}, which is the limit; try again later")
        number += 1
        try:
            yield
        finally:
            number -= 1

    return Depends(counted)


def answer(row: Any, status: int = 200, **more: Any) -> BoundedResponse:
    return BoundedResponse(text_of(row, **more), status)


def refusal(status: int, message: str, more: Mapping[str, str] | None = None) -> Response:
    """Returns an error response of the API; `more` are additional headers."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return JSONResponse({"error": message}, status, headers | dict(more or {}))


def later(message: str) -> Response:
    """Returns a 503 response that asks the client to retry after RETRY_AFTER_S."""
    return refusal(503, message, {"Retry-After": str(RETRY_AFTER_S)})


def wrong_field(error: Mapping[str, Any]) -> str:
    """Says what pydantic found wrong: the field, its value, and what is allowed."""
    name, given, kind = error["loc"][:2][-1], error.get("input"), error["type"]
    if kind == "extra_forbidden":
        return f"{name}: is unknown here; leave it out"
    value = f" {printable(str(given)[:50])}" if isinstance(given, (str, int, float)) else ""
    words = "is missing; give it" if kind == "missing" else re.sub(r"^\w+ should ", "must ", error["msg"])
    return f"{name}{value}: {words}"


def text_of(row: Any, figures: Mapping[str, bytes] | None = None, **rows: Iterable[Any]) -> bytes:
    """Encodes a dataclass as JSON; nan and infinity become the strings that the journal uses.

    Args:
        figures: name -> JSON from `figure_text`; replaces the field `figures`.
        rows: name of a field -> rows, maybe lazy, that replace its value. `left_out` counts rows that did not fit.
    """
    with _writing:
        fields = {name: _field_text(value) for name, value in vars(row).items() if name not in rows}
        left, left_out = MOST_BYTES - sum(map(len, fields.values())), 0
        for name, each in rows.items():
            texts: list[bytes] = []
            for one in each:
                text = _short_text(one, MOST_ROW) if left >= 0 else b""
                left -= len(text) + 2
                if left < 0:
                    left_out += 1
                else:
                    texts.append(text)
            fields[name] = b"[" + b", ".join(texts) + b"]"
        if left_out:
            fields["left_out"] = b"%d" % (row.left_out + left_out)
        if figures is not None:
            fields["figures"] = figures_text(figures, left)
        return _object(fields)


def figure_text(figure: dict[str, Any] | None) -> bytes:
    """Encodes a figure as JSON; an empty one replaces a figure above MOST_BYTES. Returns empty bytes for None."""
    with _writing:
        return _within(to_json(figure), MOST_BYTES) if figure else b""


def figures_text(figures: Mapping[str, bytes], most: int) -> bytes:
    """Returns one JSON object of at most about `most` bytes; omits empty texts, and empties figures that do not fit."""
    texts = {}
    for name, text in figures.items():
        if text:
            texts[name] = _within(text, most)
            most -= len(texts[name])
    return _object(texts)


def _object(texts: Mapping[str, bytes]) -> bytes:
    return b"{" + b", ".join(to_json(name) + b": " + text for name, text in texts.items()) + b"}"


def _within(text: bytes, most: int) -> bytes:
    """Returns a figure's text, or an empty figure that says why if the text has more than `most` bytes."""
    if len(text) <= most:
        return text
    reason = f"left out: this figure of {len(text):,} bytes does not fit; a response has at most {MOST_BYTES:,} bytes"
    return to_json(empty_figure(reason))


def _field_text(value: Any) -> bytes:
    if isinstance(value, dict) and "data" in value and "layout" in value:
        return _within(to_json(value), MOST_BYTES // 2)
    return _short_text(value, MOST_BYTES // 8)


def _short_text(value: Any, most: int) -> bytes:
    """Encodes a value as JSON; if that has more than `most` bytes, cuts the value's long texts, lists and dicts."""
    text = _json_text(value)
    for cut in CUTS:
        if len(text) <= most:
            break
        text = _json_text(_cut(value, cut))
    return text


def _json_text(value: Any) -> bytes:
    try:
        # Encoded without a copy: copying 10,000 rows by `asdict` and then by `strict` takes four times as long.
        text = _encode(value)
    except ValueError:
        text = _encode(strict(dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value))  # type: ignore[arg-type]
    if "\\u20" in text:  # shows characters that change the direction of writing as their escapes
        text = _ESCAPED.sub(lambda match: f"\\\\u{match[1]}" if match[1] else match[0], text)
    return text.encode()


def _cut(value: Any, most: int, levels: int = MAX_CUT_LEVELS) -> Any:
    """Returns a copy with at most `most` characters per text, `most` items per list or dict, and `levels` levels."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}... ({len(value):,} characters)"
    if dataclasses.is_dataclass(value):
        return {name: _cut(item, most, levels) for name, item in vars(value).items()}
    if not isinstance(value, (dict, list, tuple)):
        return value
    if levels == 0:
        return f"left out: {len(value):,} more"
    more = len(value) - most
    if isinstance(value, dict):
        items = {_cut(name, most): _cut(item, most, levels - 1) for name, item in islice(value.items(), most)}
        return items | ({"left out": f"{more:,} more"} if more > 0 else {})
    rows = [_cut(item, most, levels - 1) for item in value[:most]]
    return rows + ([f"left out: {more:,} more"] if more > 0 else [])
