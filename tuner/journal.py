"""The journal: one JSON event a line, append only. What is written here is the experiment; the rest is derived.

Each line ends with the CRC-32 of what is before it, so that an altered one is seen and not believed.
Non-finite floats are written as the strings "nan", "inf" and "-inf", since JSON has none and browsers refuse Python's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from tuner.errors import RequestError
from tuner.files import write_atomically

Event = dict[str, Any]
BEGINNINGS = ("experiment_started", "experiment_resumed")  # of a session
SEAL = b', "crc": "%08x"}'
SEAL_BYTES = len(SEAL % 0)
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
        self._file = open(path, "ab", buffering=0)
        content = path.read_bytes()
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
        text = sealed(json.dumps(strict(plain({**line, **fields})), allow_nan=False).encode())
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
    rest, number, is_sealed = b"", 0, False
    if once and not path.exists():
        return
    with open(path, "rb") as file:
        while True:
            once = once or gone()
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                number += 1
                is_sealed = is_sealed or (number == 1 and has_seal(line))
                try:
                    event = opened(line, is_sealed)
                except (ValueError, KeyError, TypeError) as error:
                    what = f"{path} is damaged at line {number} ({error}); --resume goes on from the lines before it"
                    raise RequestError(what) from None
                yield event
            if once or (lines and event["event"] == "experiment_finished"):
                return  # one with events behind it ended an earlier session
            time.sleep(pause_s)


def sealed(text: bytes) -> bytes:
    """A JSON object as a journal's line: with the CRC-32 of itself as its last field."""
    return text[:-1] + SEAL % zlib.crc32(text) + b"\n"


def has_seal(line: bytes) -> bool:
    """Whether a line ends as `sealed` ends one, its newline left out."""
    return line[-SEAL_BYTES:-10] == SEAL[:10] and line[-2:] == SEAL[-2:]


def opened(line: bytes, is_sealed: bool) -> Event:
    """The event of a line without its CRC; ValueError where the two do not agree.

    Args:
        is_sealed: whether a line must have one, as all have in a journal whose first line has.
    """
    if has_seal(line):
        seal, line = line[-SEAL_BYTES:], line[:-SEAL_BYTES] + b"}"
        if seal != SEAL % zlib.crc32(line):
            raise ValueError("its checksum does not agree")
    elif is_sealed:
        raise ValueError("its checksum is missing")
    event = _parsed(line)
    kind = event["event"]
    if not isinstance(kind, str) or not isinstance(event["time"], (int, float)):
        raise ValueError("its event or its time is none")
    if kind == "report" and not isinstance(event["metrics"], dict):
        raise ValueError("its metrics are none")
    if b'nan"' in line or b'inf"' in line:
        _replace_words(event, ("value", "cutoff"))
        if kind == "report":
            _replace_words(event["metrics"], tuple(event["metrics"]))
    return event


def _parsed(line: bytes) -> Event:
    """JSON by pydantic's reader, which takes 1 us a line where the standard library's takes 5.

    It refuses what the other reads: halves of surrogate pairs, which a file's name may hold, and 200 levels of nesting.
    """
    try:
        event: Event = from_json(line, cache_strings="keys")
    except ValueError:
        event = json.loads(line)
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
