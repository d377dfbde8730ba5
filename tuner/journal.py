"""The journal: one JSON event a line, append only. What is written here is the experiment; the rest is derived.

Non-finite floats are written as the strings "nan", "inf" and "-inf", since JSON has none and browsers refuse Python's.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.errors import RequestError

Event = dict[str, Any]
BEGINNINGS = ("experiment_started", "experiment_resumed")  # of a session
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Journal:
    """Appends events; each is one write call of one line, so a crash can tear the last line only.

    Opening cuts a torn last line off: it was never read by anyone, and the next event must not be glued to it.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)
        size = self._file.tell()
        if size:
            tail = path.read_bytes()
            complete = tail.rfind(b"\n") + 1
            if complete < size:
                self._file.truncate(complete)

    def write(self, event: str, trial: str | None = None, **fields: Any) -> None:
        """Appends one event with the time; `trial` is the trial's id where one is meant."""
        line: Event = {"time": round(time.time(), 3), "event": event}
        if trial is not None:
            line["trial"] = trial
        # Keys keep their order: a reader with `tail -f` sees time, event, trial first.
        self._file.write((json.dumps(strict(plain({**line, **fields})), allow_nan=False) + "\n").encode())

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles its Tuner when built, callbacks and all; that file is never read here

    def close(self) -> None:
        """Syncs to disk and closes."""
        os.fsync(self._file.fileno())
        self._file.close()


def read(path: Path) -> list[Event]:
    """All complete events; a torn last line is left out, a missing file has none."""
    return list(follow(path, once=True))


def follow(path: Path, *, once: bool = False, pause_s: float = 0.5) -> Iterator[Event]:
    """Events as they are appended, until the last is `experiment_finished` (or the end of the file, with `once`).

    A line without its end is left for the next look. Polling, because inotify does not see what another host
    writes to a shared file system.
    """
    rest, number = b"", 0
    if once and not path.exists():
        return
    with open(path, "rb") as file:
        while True:
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                number += 1
                try:
                    event = parsed(line)
                except (ValueError, KeyError, TypeError) as error:
                    what = f"{path} is damaged at line {number} ({error}); mend or remove that line"
                    raise RequestError(what) from None
                yield event
            if once or (lines and event["event"] == "experiment_finished"):
                return  # one with events behind it ended an earlier session
            time.sleep(pause_s)


def parsed(line: bytes) -> Event:
    """One line's event; ValueError, KeyError or TypeError for what is none."""
    return _decode(json.loads(line))


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


def _decode(event: Event) -> Event:
    for name in ("value", "cutoff"):
        if isinstance(event.get(name), str):
            event[name] = _NON_FINITE.get(event[name], event[name])
    if event["event"] == "report":
        event["metrics"] = {k: _NON_FINITE.get(v, v) if isinstance(v, str) else v for k, v in event["metrics"].items()}
    return event
