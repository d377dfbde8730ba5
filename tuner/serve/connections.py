"""Connections to the service: a time to ask and a time to read, and room for the next where all are taken.

Without them a client that opens sockets and sends nothing, or takes no answer, keeps everybody else out.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tuner.serve.bounds import READER_S

# Of an answer that the kernel takes before its reader does. Its own 4 MB hide a reader that does not read: 400 of them
# were found out after 7 s, and after 2 s with this. It sends 5 MB/s to a reader 100 ms away.
SEND_BYTES = 256 << 10
ENDS_S = 0.5  # without a byte read, where the service ends; uvicorn cancels what is left after 3, with a traceback each
HEAD_BYTES = 64 << 10  # of a request's head
# Of a body. uvicorn parses all that it has read, 256 kB, before anybody else is answered: 40 us for each chunk, and
# 600 kB of chunks of one byte took 5 s. A body of 16 kB has one or two parts.
MOST_PARTS = 500
CLOSED, UNASKED, IDLE, UNREAD, OWED = range(5)


class Requests(h11.Connection):
    """h11's reader of requests, which refuses a body in more than MOST_PARTS parts."""

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
    """uvicorn's HTTP connection, whose client must ask in time, read in time, and make room while it does neither.

    `timeout_keep_alive` seconds are for a whole request head, from the connection's start or its last answer on;
    uvicorn's own clock stops at any byte. At `limit_concurrency` connections a new one closes an older one.
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
            self.handle_events()  # stops the clock once a head is whole
        except h11.LocalProtocolError:  # what follows a refused body is no HTTP, and there is an answer already
            self.transport.abort()

    def handle_events(self) -> None:
        """Makes room for a request where there is none, and lets uvicorn answer it with 503 where none can be made.

        uvicorn refuses all at a limit of 0. Its own rule counts tasks too: that of a connection which was just closed
        runs on for a moment, and its place was refused to whoever it was made for.
        """
        if not self._has_room():
            self._make_room()
        self.limit_concurrency = None if self._has_room() else 0
        super().handle_events()

    def send_400_response(self, msg: str) -> None:
        """Answers instead of the app, whose own answer would be a traceback now."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        super().send_400_response(msg)

    def shutdown(self) -> None:
        """Closes at once where the answer is not being read, and else after ENDS_S in which nothing was read."""
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
        """Whether a request is answered now. Twice the tasks: a thread that works for a closed connection runs on."""
        return len(self.connections) < self._most and len(self.tasks) < 2 * self._most

    def _make_room(self) -> None:
        """Closes the other connection that comes first by `_claim`; none where each waits for an answer."""
        others: set[Any] = self.connections - {self}
        oldest = min(others, key=Connection._claim, default=self)
        if oldest is not self and oldest._claim() < (OWED,):
            oldest.transport.abort()
            self.connections.discard(oldest)

    def _claim(self) -> tuple[int, float]:
        """What is closed first, the oldest of each: closed already but not read to its end, no whole request yet, idle,
        an answer that is not read."""
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
        """Ends the connection if nothing was read since the last look: closing it would wait for its reader."""
        if self.transport.get_write_buffer_size() < left:
            self._look_again()
        else:
            self.transport.abort()

    def _reads_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
