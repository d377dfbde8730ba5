"""The journal: one JSON event a line, append only. What is written here is the experiment; the rest is derived.

Each line ends with the CRC-32 of what is before it, so that an altered one is seen and not believed.
Non-finite floats are written as the strings "nan", "inf" and "-inf", since JSON has none and browsers refuse Python's.
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
from tuner.record.events import Event, check
from tuner.record.files import MOST_BYTES, lines_of, open_in, parsed, write_atomically

BEGINNINGS = ("experiment_started", "experiment_resumed")  # of a session
SEAL = b', "crc": "%08x"}'
SEAL_BYTES = len(SEAL % 0)
LONG = 10_000  # characters of a metric: the first to be left out of a report that is too long for a line
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Journal:
    """Appends events; each is one write call of one line, so a crash can tear the last line only.

    Opening cuts off what `scan` cannot read: a torn last line, which no one has read, and everything from a damaged
    line on, of which a copy is kept.

    Attributes:
        blocked: asked when the disk is full, read-only or gone; waits and says whether to try again. Without it the
            OSError goes to the caller.
        lost: whether it said no; from then on nothing is written, so that what there is stays a beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.blocked: Callable[[OSError, Path], bool] | None = None
        self.lost = False
        self._file = _appended(path)
        content = content_of(path)
        found = scan(content)
        if found.damage:
            copy = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
            write_atomically(copy, content)
        if found.size < len(content):
            self._file.truncate(found.size)
        self._size = found.size

    def write(self, event: str, trial: str | None = None, **fields: Any) -> None:
        """Appends one event with the time; `trial` is the trial's id where one is meant."""
        line: Event = {"time": round(time.time(), 3), "event": event}
        if trial is not None:
            line["trial"] = trial
        # Keys keep their order: a reader with `tail -f` sees time, event, trial first.
        text = _line({**line, **fields})
        if len(text) > MOST_BYTES:  # no reader would take it
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
        # An open file takes lines after its folder was moved or deleted: no `--resume` would find them. 2 us.
        here, there = os.fstat(self._file.fileno()), os.stat(self._path)
        if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
            raise FileNotFoundError(errno.ENOENT, "another file lies there now", str(self._path))
        if self._file.write(line) != len(line):
            self._file.truncate(self._size)  # a full disk took a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._size += len(line)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles its Tuner when built, callbacks and all; that file is never read here

    def close(self) -> None:
        """Syncs to disk and closes."""
        with contextlib.suppress(OSError):  # what can be kept is
            os.fsync(self._file.fileno())
        self._file.close()


def _appended(path: Path) -> io.FileIO:
    """The file opened to append to; OSError where it is a pipe, which would wait for a reader, or a link."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return open(handle, "ab", buffering=0)


def _line(fields: Event) -> bytes:
    return sealed(json.dumps(strict(plain(fields)), allow_nan=False).encode())


def _shortened(event: str, trial: str | None, fields: dict[str, Any], size: int) -> dict[str, Any]:
    """A report without the metrics that are too long; RequestError for a setting, which a resumed search needs."""
    if event != "report":
        raise RequestError(
            f"trial {trial}: {event} takes {size:,} bytes in the journal, at most {MOST_BYTES:,}; give large values a "
            f"name in the space's params, and look them up in its code"
        )
    kept = {name: value if len(str(value)) < LONG else f"left out: {type(value).__name__} of {len(str(value)):,} "
            f"characters" for name, value in fields["metrics"].items()}  # fmt: skip
    return {**fields, "metrics": kept}


def content_of(path: Path) -> bytes:
    """The whole of a journal; FileNotFoundError, or another OSError where it is no regular file."""
    with open_in(path.parent, path.name) as file:
        return file.read()


@dataclass(frozen=True)
class Scan:
    """What can be read of a journal: its events up to the first damaged line.

    `size` is their bytes; `damage` says where and why the reading ended, and is empty for a whole journal and one
    whose last line is torn.
    """

    events: list[Event]
    size: int
    damage: str


def scan(content: bytes) -> Scan:
    """Reads a journal's bytes as far as they are what was written."""
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
    """All complete events; a torn last line is left out, a missing file has none."""
    return list(follow(path, once=True))


def follow(
    path: Path, *, once: bool = False, pause_s: float = 0.5, gone: Callable[[], bool] = lambda: False
) -> Iterator[Event]:
    """Events as they are appended, until the last is `experiment_finished` (or the end of the file, with `once`).

    Whoever writes it may be killed: when `gone` says so, what there is then is the rest.
    A line without its end is left for the next look. Polling, because inotify does not see what another host
    writes to a shared file system.
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
                raise damaged(path, number + 1, error) from None
            if once or event.get("event") == "experiment_finished":
                return  # one with events behind it ended an earlier session
            time.sleep(pause_s)


def _opened(path: Path) -> BinaryIO:
    try:
        return open_in(path.parent, path.name)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from None


def damaged(path: Path, line: int, error: Exception) -> RequestError:
    """What is said of a journal that cannot be read from that line on."""
    return RequestError(f"{path} is damaged at line {line} ({error}); --resume goes on from the lines before it")


def sealed(text: bytes) -> bytes:
    """A JSON object as a journal's line: with the CRC-32 of itself as its last field."""
    return text[:-1] + SEAL % zlib.crc32(text) + b"\n"


def has_seal(line: bytes) -> bool:
    """Whether a line ends as `sealed` ends one, its newline left out."""
    return line[-SEAL_BYTES:-10] == SEAL[:10] and line[-2:] == SEAL[-2:]


def opened(line: bytes, is_sealed: bool) -> Event:
    """The event of a line without its CRC; ValueError, KeyError or TypeError where it is none that was written.

    Args:
        is_sealed: whether a line must have one, as all have in a journal whose first line has.
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
    check(event)
    return event


def plain(value: Any) -> Any:
    """The value in JSON's types: numpy and torch scalars as Python numbers, anything else unknown as its repr."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return str(value)  # numpy.str_ is one too
    if isinstance(value, float):
        return float(value)  # numpy.float64 is one too
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if (shape := getattr(value, "shape", None)) is None:
        return repr(value)
    return plain(value.item()) if math.prod(shape) == 1 else f"{type(value).__name__} of shape {tuple(shape)}"


def strict(value: Any) -> Any:
    """Plain values with non-finite floats as strings, since JSON has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [strict(item) for item in value]
    return value


def _replace_words(fields: dict[str, Any], names: tuple[str, ...]) -> None:
    """Numbers in the place of the words for those that JSON has not."""
    for name in names:
        if isinstance(fields.get(name), str):
            fields[name] = _NON_FINITE.get(fields[name], fields[name])
