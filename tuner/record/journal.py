"""Writes and reads the journal: one JSON event per line, append only. Everything else is derived from the journal.

Each line ends with the CRC-32 of the text before it, so that an altered line is detected. Non-finite floats are written
as the strings "nan", "inf" and "-inf", since JSON has none and browsers refuse Python's spelling.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tuner.errors import RequestError
from tuner.record.events import Event, check_event
from tuner.record.files import MOST_BYTES, MOST_NUMBER, lines_of, open_in, parsed, write_atomically

BEGINNINGS = ("experiment_started", "experiment_resumed")  # the first event of a session
SEAL = b', "crc": "%08x"}'
SEAL_BYTES = len(SEAL % 0)
LONG = 10_000  # characters; if a report is too long for a line, notes replace metrics of this length
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Journal:
    """Appends events, each as one line in one write call, so that a crash can damage only the last line.

    Opening the journal cuts off what `scan` cannot read: an incomplete last line, or everything from a damaged line
    on. Before it cuts off damaged lines, it copies the whole journal to another file.

    Attributes:
        blocked: called when the disk is full, read-only or gone; waits and returns whether to retry the write.
            Without it the caller gets the OSError.
        lost: whether `blocked` returned False. Nothing is written afterwards, so that the journal has no gap.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.blocked: Callable[[OSError, Path], bool] | None = None
        self.lost = False
        self._file = _appended(path)
        content = content_of(path)
        scanned = scan(content)
        if scanned.damage:
            copy = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
            write_atomically(copy, content)
        if scanned.size < len(content):
            self._file.truncate(scanned.size)
        self._size = scanned.size

    def write(self, event: str, trial: str | None = None, **fields: Any) -> None:
        """Appends one event with the current time; `trial` is the id of the trial that the event concerns, if any."""
        line: Event = {"time": round(time.time(), 3), "event": event}
        if trial is not None:
            line["trial"] = trial
        # The order of keys is fixed: `tail -f` shows time, event and trial first.
        text = _line({**line, **fields})
        if len(text) > MOST_BYTES:  # readers refuse longer lines
            text = _line({**line, **_shortened(event, trial, fields, len(text))})
        while not self.lost:
            try:
                self._append(text)
                return
            except OSError as error:
                if self.blocked is None:
                    raise
                self.lost = not self.blocked(error, self._path)

    def _append(self, line: bytes) -> None:
        # An open file accepts lines even after its folder was moved or deleted, but `--resume` would not find them.
        # The check takes 2 us.
        here, there = os.fstat(self._file.fileno()), os.stat(self._path)
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise FileNotFoundError(errno.ENOENT, "another file lies there now", str(self._path))
        if self._file.write(line) != len(line):
            self._file.truncate(self._size)  # a full disk took only part of the line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += len(line)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles its Tuner with all callbacks, but tuner never reads that file

    def close(self) -> None:
        """Syncs the journal to disk and closes it."""
        with contextlib.suppress(OSError):  # a failed sync must not keep the file open
            os.fsync(self._file.fileno())
        self._file.close()


def _appended(path: Path) -> io.FileIO:
    """Opens a file for appending; raises OSError for a link, or for a pipe, which would wait for a reader."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return open(handle, "ab", buffering=0)


def _line(fields: Event) -> bytes:
    return sealed(json.dumps(strict(plain(fields)), allow_nan=False).encode())


def _shortened(event: str, trial: str | None, fields: dict[str, Any], size: int) -> dict[str, Any]:
    """Replaces a report's long metrics by notes; raises RequestError for other events, which a resume needs whole."""
    if event != "report":
        raise RequestError(
            f"trial {trial}: {event} takes {size:,} bytes in the journal, at most {MOST_BYTES:,}; give large values a "
            f"name in the space's params, and look them up in its code"
        )
    kept = {name: value if len(str(value)) < LONG else f"left out: {type(value).__name__} of {len(str(value)):,} "
            f"characters" for name, value in fields["metrics"].items()}  # fmt: skip
    return {**fields, "metrics": kept}


def content_of(path: Path) -> bytes:
    """Returns a journal's bytes; raises FileNotFoundError, or another OSError if it is not a regular file."""
    with open_in(path.parent, path.name) as file:
        return file.read()


@dataclass(frozen=True)
class Scan:
    """The readable part of a journal: its events before the first damaged line.

    `size` is the number of bytes of these events. `damage` names the damaged line and what is wrong with it. It is
    empty if no line is damaged, or if only the last line is incomplete.
    """

    events: list[Event]
    size: int
    damage: str


def scan(content: bytes) -> Scan:
    """Parses a journal's bytes up to the first damaged line."""
    events: list[Event] = []
    size = 0
    is_sealed = False
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        is_sealed = is_sealed or (number == 1 and has_seal(line))
        try:
            events.append(opened(line, is_sealed))
        except (ValueError, KeyError, TypeError) as error:
            return Scan(events, size, f"line {number} ({error})")
        size += len(line) + 1
    return Scan(events, size, "")


def read(path: Path) -> list[Event]:
    """Returns all complete events; ignores an incomplete last line, and returns none for a missing file."""
    return list(follow(path, once=True))


def follow(
    path: Path, *, once: bool = False, pause_s: float = 0.5, gone: Callable[[], bool] = lambda: False
) -> Iterator[Event]:
    """Yields events as they are appended, until the last one is `experiment_finished`.

    With `once` it stops at the end of the file. If the search's process may be killed, pass `gone`: once it returns
    True, the file is read to its end a last time. An incomplete last line is read again at the next poll. It polls
    every `pause_s`, because inotify does not see what another host writes to a shared file system.
    """
    offset, number, is_sealed = 0, 0, False
    if once and not path.exists():
        return
    with _opened(path) as file:
        while True:
            once = once or gone()
            file.seek(offset)
            event: Event = {}
            try:
                for lines in lines_of(file):
                    for line in lines:
                        is_sealed = is_sealed or (number == 0 and has_seal(line))
                        event = opened(line, is_sealed)
                        number += 1
                        offset += len(line) + 1
                        yield event
            except (ValueError, KeyError, TypeError) as error:
                raise damaged_journal(path, number + 1, error) from None
            if once or event.get("event") == "experiment_finished":
                return  # the last event decides: an experiment_finished before it only ended an earlier session
            time.sleep(pause_s)


def _opened(path: Path) -> BinaryIO:
    try:
        return open_in(path.parent, path.name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None


def damaged_journal(path: Path, line: int, error: Exception) -> RequestError:
    """Returns the error for a journal that cannot be read from that line on."""
    return RequestError(f"{path} is damaged at line {line} ({error}); --resume goes on from the lines before it")


def sealed(text: bytes) -> bytes:
    """Returns a JSON object as a line of the journal: adds the CRC-32 of its text as the last field."""
    return text[:-1] + SEAL % zlib.crc32(text) + b"\n"


def has_seal(line: bytes) -> bool:
    """Whether a line, without its newline, ends with a CRC-32 as `sealed` writes it."""
    return line[-SEAL_BYTES:-10] == SEAL[:10] and line[-2:] == SEAL[-2:]


def opened(line: bytes, is_sealed: bool) -> Event:
    """Returns a line's event without its CRC; raises ValueError, KeyError or TypeError if the line is damaged.

    Args:
        is_sealed: whether the line must have a CRC. If a journal's first line has one, all its lines must.
    """
    if len(line) > MOST_BYTES:
        raise ValueError(f"longer than {MOST_BYTES:,} bytes")
    if has_seal(line):
        seal, line = line[-SEAL_BYTES:], line[:-SEAL_BYTES] + b"}"
        if seal != SEAL % zlib.crc32(line):
            raise ValueError("its checksum does not agree")
    elif is_sealed:
        raise ValueError("its checksum is missing")
    event: Event = parsed(line)
    if b'nan"' in line or b'inf"' in line:
        _replace_words(event, ("value", "cutoff"))
        if event["event"] == "report" and isinstance(event["metrics"], dict):
            _replace_words(event["metrics"], tuple(event["metrics"]))
    check_event(event)
    return event


def plain(value: Any) -> Any:
    """Converts a value to JSON's types: numpy and torch scalars to Python numbers, unknown types to their repr.

    An integer above MOST_NUMBER becomes infinite.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return (
            value if abs(value) <= MOST_NUMBER else math.inf if value > 0 else -math.inf
        )  # readers refuse larger ones
    if isinstance(value, str):
        return str(value)  # numpy.str_ is a subclass of str
    if isinstance(value, float):
        return float(value)  # numpy.float64 is a subclass of float
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if (shape := getattr(value, "shape", None)) is None:
        return repr(value)
    return plain(value.item()) if math.prod(shape) == 1 else f"{type(value).__name__} of shape {tuple(shape)}"


def strict(value: Any) -> Any:
    """Converts non-finite floats to strings, since JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    return value


def _replace_words(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    """Replaces the strings "nan", "inf" and "-inf" by floats in the named fields."""
    for name in names:
        if isinstance(fields.get(name), str):
            fields[name] = _NON_FINITE.get(fields[name], fields[name])
