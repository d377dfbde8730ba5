"""Imports, once, the queue that an older version of the service kept in `<results>/.service`.

The creator of the results folder may have written these files, whoever owns them now, so they are not trusted. A search
that waited there is listed but not started. Its token and command lines are never used; a process id is only printed.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.files import bytes_in, parsed
from tuner.serve.jobs.options import SETTABLE, Start
from tuner.serve.jobs.queue import Queue, Search
from tuner.spec.experiment import Experiment

FOLDER = ".service"
HEAD = b"tuner.serve.head"  # the module with which an older version of the service ran the head of its Ray cluster
MOST_BYTES = 64 << 10  # bytes of a file of the older queue; the older service wrote 3 kB
MOST_FILES = 1000
MESSAGE = "waited in the queue of an older tuner.serve; start it again"
WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, RequestError)


def import_older_queue(results: Path, queue: Path) -> None:
    """Creates a new queue and puts into it, as failed, the searches that an older service had not begun.

    It does nothing if the queue exists. The user must start the listed searches again. It prints a line if the older
    service left a folder.
    """
    if queue.exists():
        return
    queue.mkdir(mode=0o700)
    folder = results / FOLDER
    if not os.path.isdir(folder):
        return
    left = [search for path in _files(folder / "queue") if (search := _search(path, results))]
    mine = Queue(queue)
    for search in left:
        mine.put(search)
    waited = f"; the page lists {len(left)} that waited there, so that you can start them again" if left else ""
    print(f"{folder} is from an older version and no longer used{waited}{_head(folder)}", file=sys.stderr, flush=True)


def _files(folder: Path) -> list[Path]:
    """Returns the files of the older queue; none if anybody but this user may write to their folders."""
    if not (_is_own(folder, stat.S_ISDIR) and _is_own(folder.parent, stat.S_ISDIR)):
        return []
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry, _ in zip(entries, range(MOST_FILES), strict=False)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if name.endswith(".json")]


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _json(path: Path) -> Any:
    if not _is_own(path, stat.S_ISREG):
        raise ValueError(f"{path} is not a file that the service wrote")
    return parsed(bytes_in(path.parent, path.name, MOST_BYTES))


def _search(path: Path, results: Path) -> Search | None:
    """Reads a search that waited in the older queue; None if the file is something else or the search has a folder.

    Only the options that a request may set are read, and not its command line.
    """
    try:
        document = dict(_json(path))  # raises TypeError or ValueError unless it is an object
        fields = {name: value for name, value in document["options"].items() if name in (*SETTABLE, "space")}
        asked = Start.model_validate(fields).model_dump(exclude_none=True)
        options = dataclasses.asdict(Experiment(**asked, results=str(results)))
        search = Search(asked["name"], options, asked, time.time(), phase="failed", message=MESSAGE)
        search.arguments()
        waits = document["phase"] == "queued" and search.name == path.stem and not (results / search.name).exists()
    except WRONG:
        return None
    return search if waits else None


def _head(folder: Path) -> str:
    """Returns how to end the Ray cluster of an older version of the service; an empty text if none still runs.

    The process counts as that cluster only if /proc shows that it was started for this folder.
    """
    try:
        process = Path(f"/proc/{dict(_json(folder / 'cluster.json'))['pid']:d}")
        words, variables = ((process / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
    except WRONG:
        return ""
    if HEAD not in words or b"RAY_AUTH_TOKEN_PATH=" + os.fsencode(folder / "ray_token") not in variables:
        return ""
    return f"; its Ray cluster still runs: end it with kill {process.name} once its searches have ended"
