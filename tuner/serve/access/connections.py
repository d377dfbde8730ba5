"""uvicorn's connections with limits, so that a client which sends slowly, or reads nothing, blocks no other client.

The socket option TCP_USER_TIMEOUT ends the connections of clients that read nothing (`tuner.serve.__main__`).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_BYTES = 64 << 10  # maximum bytes of a request's first line and headers together
# MOST_PARTS limits the chunks of a request body. uvicorn parses all 256 kB of a read before it serves another client.
# Each chunk takes 40 us: 600 kB in one-byte chunks took 5 s. A normal body of 16 kB has one or two chunks.
MOST_PARTS = 500


class RequestParser(h11.Connection):
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
    """An HTTP connection that is closed if a request's head takes too long, or if it is idle among many connections.

    A client has `timeout_keep_alive` seconds for a request's head; uvicorn itself stops that timer at the first byte.
    Above half of `limit_concurrency` connections, a new connection closes the oldest one whose client does not wait for
    a response. If all clients wait, uvicorn answers 503 at its own limit, which also counts tasks that still run.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = RequestParser(h11.SERVER, HEAD_BYTES)
        self._since = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if self.limit_concurrency and len(self.connections) > self.limit_concurrency // 2:
            others = cast(set[Connection], self.connections - {self})
            idle = [each for each in others if not each._is_waiting()]
            if idle:
                oldest = min(idle, key=lambda each: each._since)
                oldest.transport.abort()
                self.connections.discard(oldest)

    def data_received(self, data: bytes) -> None:
        try:
            self.conn.receive_data(data)
            self.handle_events()  # uvicorn stops the timer of the head once it is complete
        except h11.LocalProtocolError:  # the refusal is sent, and the rest of the refused body is not valid HTTP
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Sends status 400 for wrong HTTP, and drops the app's response, which would now fail with a traceback."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def _is_waiting(self) -> bool:
        """Whether the client waits for a response to a complete request, and has read everything sent so far."""
        if self.cycle is None or self.cycle.more_body or self.cycle.response_complete:
            return False
        return not self.transport.is_closing() and not self.transport.get_write_buffer_size()
