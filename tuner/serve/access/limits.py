"""Limits on clients: how many connect, how long they take to send or read, and how large a request is.

Without these limits, a client that opens connections and sends nothing, or reads no response, would block all other
clients. When all connections are in use, a new one closes an idle or stalled one.

FastAPI's `max_body_size` cannot replace `Bounds`: it limits no time. Its 413 lacks `HEADERS`, and may precede the
guard's 401.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tuner.serve.access.guard import READS
from tuner.serve.answers import refusal

MOST_BYTES = 16 << 10  # bytes of a request body; a search's options take 1 kB
BODY_S = 10.0  # seconds in which the whole body must arrive
READER_S = 30.0  # seconds; a client that reads nothing of its response for this time is disconnected
# SEND_BYTES is the kernel's send buffer for one connection. The default of 4 MB hides clients that do not read: 400 of
# them were detected after 7 s, with 256 kB after 2 s. With it, a client 100 ms away still gets 5 MB/s.
SEND_BYTES = 256 << 10
# At shutdown, a connection whose client reads nothing for ENDS_S seconds is closed. Otherwise it would delay the end of
# the service by GRACE_S (3 s).
ENDS_S = 0.5
HEAD_BYTES = 64 << 10  # bytes of a request line and its headers together
# MOST_PARTS limits the chunks of a body. uvicorn parses all 256 kB that it has read before it serves another client. A
# chunk takes 40 us, and 600 kB in chunks of one byte took 5 s. A normal body of 16 kB has one or two chunks.
MOST_PARTS = 500
CLOSED, UNASKED, IDLE, UNREAD, OWED = range(5)  # states of connections; the lowest are closed first (`_claim`)


class Bounds:
    """Middleware that reads the body of a POST request before the app runs, and drops clients that read no response."""

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
            problem = refusal(408, f"the body did not arrive within {self._body_s:g} s; send the request again")
            await problem(scope, receive, send)
            return
        if body is None:
            problem = refusal(413, f"the body has more than {MOST_BYTES:,} bytes, which is the limit; send less")
            await problem(scope, receive, send)
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
    """Reads the whole body; returns None if it exceeds MOST_BYTES or the client disconnected."""
    body = b""
    while len(body) <= MOST_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body if len(body) <= MOST_BYTES else None
    return None


class Requests(h11.Connection):
    """h11's parser of requests, which also refuses a body in more than MOST_PARTS chunks."""

    _parts = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._parts = 0
        self._parts += isinstance(event, h11.Data)
        if self._parts > MOST_PARTS:
            raise h11.RemoteProtocolError(f"a body in more than {MOST_PARTS} parts")
        return event


class Connection(H11Protocol):
    """uvicorn's HTTP connection, with time limits for sending the head of a request and for reading the response.

    A client has `timeout_keep_alive` seconds for a whole request head, from the start of the connection or from its
    last response; uvicorn itself stops that timer at the first byte. `Bounds` limits the time for the body. At
    `limit_concurrency` connections, a new connection closes an older one whose client waits for no response.
    """

    reader_s = READER_S
    _stalled: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = Requests(h11.SERVER, HEAD_BYTES)
        self._most = self.limit_concurrency or sys.maxsize

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        if not self._has_room():
            self._make_room()
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        self._reads_again()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            self.conn.receive_data(data)
            self.handle_events()  # uvicorn stops the timer of the head once it is complete
        except h11.LocalProtocolError:  # the rest of a refused body is not HTTP, and the refusal is already sent
            self.transport.abort()

    def handle_events(self) -> None:
        """Makes room for a request if all connections are in use; if that fails, uvicorn answers it with 503.

        uvicorn's own limit also counts tasks, and the task of a connection that was just closed runs on for a moment.
        The request for which it was closed would be refused. So uvicorn gets no limit if there is room, and otherwise a
        `limit_concurrency` of 0, which makes it refuse the request.
        """
        if not self._has_room():
            self._make_room()
        self.limit_concurrency = None if self._has_room() else 0
        super().handle_events()

    def send_400_response(self, msg: str) -> None:
        """Sends status 400 for wrong HTTP, and drops the app's response, which would now fail with a traceback."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def shutdown(self) -> None:
        """Closes the connection at shutdown.

        It closes at once if its client has stopped reading. Otherwise it closes after the response, or as soon as the
        client reads nothing for ENDS_S.
        """
        self.reader_s = ENDS_S
        if self._stalled is not None:
            self.transport.abort()
        else:
            super().shutdown()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._look_again()

    def resume_writing(self) -> None:
        self._reads_again()
        super().resume_writing()

    def _wait_for_request(self) -> None:
        self._since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _has_room(self) -> bool:
        """Returns whether the numbers of connections and of tasks (requests in progress) allow another request.

        Twice as many tasks as connections are allowed: the task of a closed connection runs until its thread is done.
        """
        return len(self.connections) < self._most and len(self.tasks) < 2 * self._most

    def _make_room(self) -> None:
        """Closes another connection to make room for this one: the first in the order of `_claim`.

        Closes none if every other client waits for its response.
        """
        others: set[Any] = self.connections - {self}
        oldest = min(others, key=Connection._claim, default=self)
        if oldest is not self and oldest._claim() < (OWED,):
            oldest.transport.abort()
            self.connections.discard(oldest)

    def _claim(self) -> tuple[int, float]:
        """Returns the sort key by which connections are closed; the oldest of the lowest state is closed first.

        The states in order: the connection is closing; it has no complete request yet; it is idle; its client does not
        read a response; its client waits for a response.
        """
        asks = self.cycle is not None and not self.cycle.response_complete
        if self.transport.is_closing():
            return CLOSED, self._since
        if self.cycle is None or (asks and self.cycle.more_body):
            return UNASKED, self._since
        if self._stalled is not None:
            return UNREAD, self._since
        return OWED if asks else IDLE, self._since

    def _look_again(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self.reader_s, self._give_up, left)

    def _give_up(self, left: int) -> None:
        """Aborts the connection if its client has read nothing since the last check; otherwise checks again later.

        It aborts, because a normal close would wait for the client to read.
        """
        if self.transport.get_write_buffer_size() < left:
            self._look_again()
        else:
            self.transport.abort()

    def _reads_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
