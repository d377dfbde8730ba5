"""Sends a journal as server-sent events, one per line; an event's id, the line's number, tells where to continue.

FastAPI's own event routes take 100 us of the event loop for each event; this module takes 5 us.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from tuner.record.storage.files import open_in

# The journal is polled, because inotify does not report what another host writes. A check takes 0.2 ms of a processor.
POLL_INTERVAL_S = 0.04  # seconds between two checks of a journal
CALM_S = 0.2  # the same after QUIET_S seconds without news: a search that has ended costs less
QUIET_S = 60.0
HEARTBEAT_S = 10.0  # seconds between two comments in a quiet stream, which detect clients that have disconnected
CHUNK_BYTES = 4 << 20  # bytes read at once, and the longest line that is sent
MAX_SENT_LINES = 20_000  # lines sent per read, because CHUNK_BYTES of a damaged journal may have 4 million empty lines


class Place(NamedTuple):
    """How far a journal has been read: `offset` bytes, which are `number` complete lines."""

    offset: int = 0
    number: int = 0


async def event_frames(
    journal: Path, after: int, stopping: Callable[[], bool], pause_s: float = POLL_INTERVAL_S
) -> AsyncIterator[bytes]:
    """Yields events for the journal's lines except the first `after`, then for new lines until `stopping()` is True.

    It continues after `experiment_finished`, because a search may be resumed. It ends when `read_on` returns None.
    """
    yield format_sse_event(retry=2000)
    place, quiet_s, silent_s = Place(), 0.0, 0.0  # seconds without a journal's line, and without any frame
    while not stopping():
        read = await asyncio.to_thread(read_on, journal, place, after)
        if read is None:
            return
        frames, reached = read
        quiet_s = 0.0 if frames else quiet_s
        if frames or silent_s >= HEARTBEAT_S:
            silent_s = 0.0
            yield frames or KEEPALIVE_COMMENT
        if reached == place:
            pause = max(pause_s, CALM_S) if quiet_s > QUIET_S else pause_s
            quiet_s, silent_s = quiet_s + pause, silent_s + pause
            await asyncio.sleep(pause)
        place = reached


def read_on(journal: Path, place: Place, after: int = 0) -> tuple[bytes, Place] | None:
    """Reads complete lines from `place` on; returns the events of those after line `after`, and the place reached.

    Returns None if the journal shrank, is unreadable, or has a line of CHUNK_BYTES: the client must then reconnect.
    """
    try:
        with open_in(journal.parent, journal.name) as file:
            if file.seek(0, 2) < place.offset:
                return None
            file.seek(place.offset)
            data = file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return (b"", place) if place.offset == 0 else None
    except OSError:  # not a regular file, or not readable
        return None
    # Bytes after the last line end are read again at the next check, because they may be half of a line.
    *lines, rest = data.split(b"\n", MAX_SENT_LINES)
    if len(rest) == CHUNK_BYTES:
        return None
    numbered = enumerate(lines, place.number + 1)
    # A carriage return, which only a damaged journal contains, would split the event's data.
    texts = ((number, line.decode(errors="replace").replace("\r", " ")) for number, line in numbered if number > after)
    frames = b"".join(format_sse_event(data_str=text, id=str(number)) for number, text in texts)
    return frames, Place(place.offset + len(data) - len(rest), place.number + len(lines))
