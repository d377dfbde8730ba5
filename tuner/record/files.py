"""Files: written so that a reader never meets half of one, and read as data that anybody may have put there.

Every reader of an experiment's folder opens its files by `open_in`, and parses JSON by `parsed`. A file may be a pipe,
a link to somewhere else, endless, nested too deeply, or no text: each of these is an OSError or a ValueError.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pydantic_core import from_json

MOST_BYTES = (
    16 << 20
)  # of a file that is read whole, and of a journal's line; experiment.json has 5 kB, a line 200 bytes
CHUNK_BYTES = 1 << 20  # read at a time: 6,000 lines, 40 ms until other threads and a deadline are looked at
SWELL = 8  # bytes of memory that a byte of text may take; a journal takes 4 to 6, `[],` takes 43
MOST_DEPTH = 320  # levels of nesting; Python's own limit of 1,000 frames is met at 450 by what walks a value
MOST_NUMBER = 10**300  # larger integers are no floats, which is what metrics are compared as
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY  # O_PATH: a folder that may be entered but not listed
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY  # without O_NONBLOCK a pipe waits for its writer
_LONG_NUMBER = re.compile(rb"\d{300}")
_shared: set[Path] = set()  # folders in which others may rename


def share(root: Path) -> None:
    """From now on `open_in` follows no link at a folder directly below `root`.

    A look at the folder before opening its files is not enough: whoever may rename in `root` can put a link there
    between the two.
    """
    _shared.add(root)


def open_in(folder: Path, name: str) -> BinaryIO:
    """Opens a regular file of a folder for reading, without waiting for anybody.

    The folder itself may be reached by links, unless its parent is one of `share`. Nothing below it is: whoever wrote
    `name` chooses no file elsewhere.

    Raises:
        OSError: there is none, it cannot be read, or it is a link, a pipe, a device or a folder.
        ValueError: the name holds a zero byte.
    """
    *folders, last = PurePosixPath(name).parts or ("",)
    if not last or {"..", "/"} & {*folders, last}:
        raise OSError(errno.EINVAL, "the name leads out of its folder", name)
    root = folder
    if folder.parent in _shared:
        root, folders = folder.parent, [folder.name, *folders]
    place = os.open(root, _FOLDER)
    try:
        for part in folders:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
            os.close(place)
            place = inner
        file = os.open(last, _FILE, dir_fd=place)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise _not_regular(folder / name) from None
        raise OSError(error.errno, error.strerror, str(folder / name)) from None
    finally:
        os.close(place)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _not_regular(folder / name)
    return os.fdopen(file, "rb")


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "is no regular file (links are not followed)", str(path))


def is_file_in(folder: Path, name: str) -> bool:
    """Whether `open_in` opens it."""
    try:
        open_in(folder, name).close()
        return True
    except (OSError, ValueError):
        return False


def bytes_in(folder: Path, name: str, most: int = MOST_BYTES) -> bytes:
    """A file's content; OSError as `open_in`, ValueError where it is longer than `most`."""
    with open_in(folder, name) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"longer than {most:,} bytes")
    return content


def json_in(folder: Path, name: str) -> Any:
    """A file's JSON; OSError as `open_in`, ValueError where it is none, or more than memory or `parsed` takes."""
    content = bytes_in(folder, name)
    if weight(content) > SWELL * MOST_BYTES:
        raise ValueError("it holds too many values")
    return parsed(content)


def weight(text: bytes) -> int:
    """About how many bytes of memory the values of a JSON text take: each is an object, each dict a table."""
    return len(text) + 64 * (text.count(b",") + text.count(b"[")) + 200 * text.count(b"{")


def parsed(text: bytes) -> Any:
    """JSON that anybody may have written, NaN and Infinity taken as the floats they name.

    pydantic's reader takes 1 us a line of a journal where the standard library's takes 5. It refuses what the other
    reads: halves of surrogate pairs, which a file's name may hold, and 200 levels of nesting.

    Raises:
        ValueError: it is no JSON, is nested more than MOST_DEPTH levels, or holds an integer beyond MOST_NUMBER.
    """
    try:
        value = from_json(text, cache_strings="keys")
    except ValueError:
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError(f"nested more than {MOST_DEPTH} levels") from None
        _check(value)
    else:
        if _LONG_NUMBER.search(text):
            _check(value)
    return value


def _check(value: Any) -> None:
    """Level by level: a value that is nested deeply is not walked by calls."""
    level, depth = [value], 0
    while level:
        if depth > MOST_DEPTH:
            raise ValueError(f"nested more than {MOST_DEPTH} levels")
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
            elif type(each) is int and abs(each) > MOST_NUMBER:
                raise ValueError("an integer of more than 300 digits")
        level, depth = inner, depth + 1


def lines_of(file: BinaryIO) -> Iterator[list[bytes]]:
    """The complete lines from where a file stands, a slice of CHUNK_BYTES at a time; a last one without its end is not.

    Raises:
        ValueError: a line is longer than MOST_BYTES; those before it have been given.
    """
    parts: list[bytes] = []  # of a line that several slices hold, joined once
    length = 0
    while chunk := file.read(CHUNK_BYTES):
        whole, end, rest = chunk.rpartition(b"\n")
        if end:
            lines = b"".join([*parts, whole]).split(b"\n")
            parts, length = [], 0
            yield lines
        parts.append(rest)
        length += len(rest)
        if length > MOST_BYTES:
            raise ValueError(f"longer than {MOST_BYTES:,} bytes")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes beside `path`, syncs, and renames: `path` holds the old content or the new, never a part.

    The folder is synced too, or a lost machine could forget the new name. OSError leaves the old content.
    A link at either name is replaced and not followed.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.unlink(missing_ok=True)
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):  # a read-only disk refuses that too
            aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Waits until the names in `folder` are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
