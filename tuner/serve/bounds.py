"""Limits for one client: the size and duration of a request body, and how long a response waits for its reader."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.serve.guard import READS, refusal

MOST_BYTES = 16 << 10  # of a request body; a search's options take 1 kB
BODY_S = 10.0  # for the whole body
RETRY_S = 1
READER_S = 30.0  # for a client to read what was sent, before the service closes the connection


def later(message: str) -> Response:
    """Returns a 503 response that asks the client to retry after RETRY_S."""
    answer = refusal(503, message)
    answer.headers["Retry-After"] = str(RETRY_S)
    return answer


class Bounds:
    """Middleware that reads the whole request body before the app runs, and drops clients that do not read."""

    def __init__(self, app: ASGIApp, body_s: float = BODY_S, reader_s: float = READER_S) -> None:
        self._app, self._body_s, self._reader_s = app, body_s, reader_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            await asyncio.wait_for(send(message), self._reader_s)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] in READS:
            await self._app(scope, receive, send_in_time)
            return
        try:
            body = await asyncio.wait_for(_whole_body(receive), self._body_s)
        except TimeoutError:
            await refusal(408, f"the body did not come in {self._body_s:g} s")(scope, receive, send)
            return
        if body is None:
            await refusal(413, f"the body is longer than {MOST_BYTES} bytes")(scope, receive, send)
            return
        read = False

        async def receive_again() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive_again, send_in_time)


async def _whole_body(receive: Receive) -> bytes | None:
    """Reads the whole body; returns None if it is too long or the client disconnected."""
    body = b""
    while len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body if len(body) <= MOST_BYTES else None
    return None
