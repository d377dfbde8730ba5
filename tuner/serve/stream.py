"""A journal as server-sent events: each line is one event whose id is its number, so a reconnect goes on after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tuner.record.files import open_in
from tuner.serve.guard import refusal

MOST_STREAMS = 100  # followed at a time: each is a look at a file twice a second
PAUSE_S = 0.5  # between two looks; polling, because inotify does not see what another host writes
HEARTBEAT_S = 10.0  # a comment now and then: a connection whose reader has gone is noticed
CHUNK_BYTES = 4 << 20  # read at a time, and the longest line that is sent
MOST_LINES = 20_000  # at a time: 10 ms for whoever else is answered; a journal may be nothing but line ends


class Stream(StreamingResponse):
    """Server-sent events; refused where MOST_STREAMS are `running`, to which it belongs until it ends, however that be.

    It joins them in the step that looks: answers are sent in one thread, while routes are called in many.
    """

    def __init__(self, frames: AsyncIterator[bytes], running: set[Stream]) -> None:
        super().__init__(frames, media_type="text/event-stream")
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self._running) >= MOST_STREAMS:
            await refusal(503, f"{MOST_STREAMS} streams are open already; close one")(scope, receive, send)
            return
        self._running.add(self)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._running.remove(self)


class Place(NamedTuple):
    """How far a journal has been read: `offset` bytes, which are `number` complete lines."""

    offset: int
    number: int


async def follow(
    journal: Path, after: int, stopping: Callable[[], bool], pause_s: float = PAUSE_S
) -> AsyncIterator[bytes]:
    """Frames of the lines behind the first `after`, then of new ones until `stopping()`.

    It goes on after `experiment_finished`, since a search may be resumed; it ends where the journal shrinks or a
    line is longer than CHUNK_BYTES, so that the reader connects anew.
    """
    yield b"retry: 2000\n\n"
    place, quiet_s = Place(0, 0), 0.0
    while not stopping():
        read = await asyncio.to_thread(read_on, journal, place)
        if read is None:
            return
        frames, place = await asyncio.to_thread(framed, read, place, after)
        if frames or quiet_s >= HEARTBEAT_S:
            quiet_s = 0.0
            yield frames or b": still here\n\n"
        if not read:
            quiet_s += pause_s
            await asyncio.sleep(pause_s)


def read_on(journal: Path, place: Place) -> list[bytes] | None:
    """The next complete lines behind `place`, of CHUNK_BYTES at most; None where going on there makes no sense."""
    try:
        with open_in(journal.parent, journal.name) as file:
            if file.seek(0, 2) < place.offset:
                return None
            file.seek(place.offset)
            data = file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return [] if place.offset == 0 else None
    except OSError:  # no regular file, or not to be read
        return None
    # What follows the last line's end stays for the next look: it may be half of a line.
    *lines, rest = data.split(b"\n", MOST_LINES)
    return None if len(rest) == CHUNK_BYTES else lines


def framed(lines: list[bytes], place: Place, after: int) -> tuple[bytes, Place]:
    """The frames of those lines from `place` on that are behind the first `after`, and the place behind them all."""
    frames = b"".join(frame(number, line) for number, line in enumerate(lines, place.number + 1) if number > after)
    return frames, Place(place.offset + sum(len(line) + 1 for line in lines), place.number + len(lines))


def frame(number: int, line: bytes) -> bytes:
    """One event. A carriage return would end its line early; JSON has none, a damaged journal may."""
    text = line.decode(errors="replace").replace("\r", " ")
    return f"id: {number}\ndata: {text}\n\n".encode()
