"""Writes files so that readers never see a half-written one; reads any file, or raises an OSError or a ValueError."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pydantic_core import from_json

from tuner.errors import RequestError
from tuner.errors.gate import MAX_INTEGER
from tuner.record.storage.made import RECORD, MadeFolder, replacing_file

MOST_BYTES = 16 << 20  # maximum bytes of a journal's line (usual: 200), and of a file that is read whole (usual: 5,000)
CHUNK_BYTES = 1 << 20  # bytes per read: 6,000 lines of a journal; parsing them delays other threads by 40 ms
SWELL = 8  # maximum bytes of memory for values, per byte of a file's limit; journals take 4 to 6, a text of `[],` 43
MOST_DEPTH = 320  # maximum nesting levels in JSON: recursive code reaches Python's limit of 1,000 frames at 450 levels
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY  # O_PATH also opens folders without read permission
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY  # O_NONBLOCK: opening a pipe waits for no writer
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # errors of a sync on a file system that has none
_LONG_NUMBER = re.compile(rb"\d{300}")
_shared: set[Path] = set()  # folders in which other users may rename files


def share(root: Path) -> None:
    """Makes `open_in` refuse a link directly below `root`, because another user may put one there after any check."""
    _shared.add(root)


def open_in(folder: Path, name: str) -> BinaryIO:
    """Opens a regular file below a folder; follows no link there, waits for no pipe. Raises OSError or ValueError."""
    *folders, last = PurePosixPath(name).parts or ("",)
    if not last or {"..", "/"} & {*folders, last}:
        raise OSError(errno.EINVAL, "the name leads out of its folder", name)
    root = folder
    if folder.parent in _shared:
        root, folders = folder.parent, [folder.name, *folders]
    fd = os.open(root, _FOLDER)
    try:
        for part in folders:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = inner
        file = os.open(last, _FILE, dir_fd=fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # ELOOP for a link, ENXIO for a socket
            raise _not_regular(folder / name) from None
        raise OSError(error.errno, error.strerror, str(folder / name)) from None
    finally:
        os.close(fd)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _not_regular(folder / name)
    return os.fdopen(file, "rb")


def _not_regular(path: Path) -> OSError:
    return OSError(errno.EINVAL, "is no regular file (links are not followed)", str(path))


def is_file_in(folder: Path, name: str) -> bool:
    try:
        open_in(folder, name).close()
        return True
    except (OSError, ValueError):
        return False


def bytes_in(folder: Path, name: str, most: int = MOST_BYTES) -> bytes:
    """Returns a file's content; raises OSError as `open_in` does, ValueError if it has more than `most` bytes."""
    with open_in(folder, name) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"the file is longer than {most:,} bytes")
    return content


def json_in(folder: Path, name: str) -> Any:
    """Returns a file's JSON value; raises OSError as `open_in` does, ValueError if it is too large or not JSON."""
    content = bytes_in(folder, name)
    if weight(content) > SWELL * MOST_BYTES:
        raise ValueError("the file holds too many values")
    return parsed(content)


def weight(text: bytes) -> int:
    """Estimates the memory of a JSON text's values, in bytes: the text's length, 64 per value and 200 per dict."""
    return len(text) + 64 * (text.count(b",") + text.count(b"[")) + 200 * text.count(b"{")


def parsed(text: bytes) -> Any:
    """Parses JSON, also NaN and Infinity; ValueError for other text, or above MOST_DEPTH levels or MAX_INTEGER."""
    try:  # 1 us per line (`json`: 5 us), but from_json refuses 202 levels or more, and lone surrogates (file names)
        value = from_json(text, cache_strings="keys")
    except ValueError:
        try:
            value = json.loads(text)
        except RecursionError:
            raise ValueError(f"its JSON has more than {MOST_DEPTH} levels of nesting") from None
        _check(value)
    else:
        if _LONG_NUMBER.search(text):
            _check(value)
    return value


def _check(value: Any) -> None:
    """Raises ValueError above MOST_DEPTH levels or for an integer above +-MAX_INTEGER; loops instead of recursing."""
    level, depth = [value], 0
    while level:
        if depth > MOST_DEPTH:
            raise ValueError(f"its JSON has more than {MOST_DEPTH} levels of nesting")
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
            elif type(each) is int and abs(each) > MAX_INTEGER:
                raise ValueError("its JSON has an integer of more than 300 digits")
        level, depth = inner, depth + 1


def lines_of(file: BinaryIO) -> Iterator[list[bytes]]:
    """Yields the complete lines from a file's position on, a list per read; ValueError for a line above MOST_BYTES."""
    parts: list[bytes] = []  # pieces of a line that spans several reads; they are joined only once
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
            raise ValueError(f"the line is longer than {MOST_BYTES:,} bytes")


def write_atomically(path: Path, content: str | bytes, dir_fd: int | None = None) -> None:
    """Replaces a file's content atomically, by `replacing`: a reader sees the old or the new content, never a part."""
    with replacing(path, dir_fd) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)


def secret_file(path: Path) -> Path:
    """Gives a secret's file mode 0600, creates it if missing, and returns `path`; raises RequestError if that fails."""
    try:
        if not path.exists():
            write_atomically(path, secrets.token_hex(32))
        path.chmod(0o600)
    except OSError as error:
        raise RequestError(f"{path} cannot be created ({error.strerror})") from None
    return path


@contextlib.contextmanager
def replacing(path: Path, dir_fd: int | None = None) -> Iterator[BinaryIO]:
    """Opens a new file for writing, which replaces `path` or a link there when the `with` block ends without an error.

    `path` has the old or the new content, also after a power failure. With `dir_fd`, `path` is a name in that folder.
    """
    with replacing_file(path, dir_fd) as file:
        yield file
        file.flush()
        sync_open(file.fileno())
    if dir_fd is None:
        sync(path.parent)  # otherwise a power failure could undo the rename
    else:
        sync_open(dir_fd)


@contextlib.contextmanager
def replacing_folder(path: Path, rescue: Callable[[Path, Path], None] = lambda old, new: None) -> Iterator[Path]:
    """Creates an empty folder, which replaces the folder `path` as a whole when the `with` block ends without an error.

    `rescue`, called with the old folder at its new place and with `path`, may keep what is in the old folder by then.
    A crash leaves the old or new folder; where `exchanged` fails (NFS), maybe neither. `tidy` restores the old.
    Only one process at a time may call this function for a path. The caller knows that all of the old folder is ours.
    """
    new, old = asides_of(path)
    tidy(path)
    with MadeFolder(path.parent, new.name, "new") as made:
        sync_all(new)  # its record: without it, nobody would remove what a power failure leaves
        yield new
        os.chmod(made.fd, stat.S_IMODE(path.parent.stat().st_mode))
        sync_all(new)
        before = MadeFolder(path.parent, path.name, "ours") if os.path.lexists(path) else None
        if before:
            sync(path / RECORD)
            sync(path)
        made.take_place(path.name, before, old.name)
        sync(path.parent)
        if before:
            rescue(before.path, path)
            before.remove()
        made.keep(forget=True)


def asides_of(path: Path) -> tuple[Path, Path]:
    """Returns the two folders beside `path` that `replacing_folder` uses: for the new content, and for the old."""
    return path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")


def tidy(path: Path) -> None:
    """Removes the two folders beside `path`; if `path` is missing after a crash, first moves the old folder back."""
    new, old = asides_of(path)
    for aside in (old, new):
        with contextlib.suppress(OSError):  # it is missing, or not ours
            made = MadeFolder(path.parent, aside.name, "aside")
            if aside == old and not os.path.lexists(path):
                made.take_place(path.name)
                made.keep(forget=True)
            else:
                made.remove()


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Gives a file a second name; copies the file if a hard link fails, for example to another file system."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def sync(path: Path) -> None:
    """Syncs a file, or the names of a folder's files: waits until they are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        sync_open(handle)
    finally:
        os.close(handle)


def sync_open(handle: int) -> None:
    """Syncs an open file or folder; ignores the error of a file system that cannot sync; `why_unsafe` names it."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise


def sync_all(folder: Path) -> None:
    """Syncs a folder and all files and folders in it, except links."""
    for each in (*folder.rglob("*"), folder):
        if not each.is_symlink() and (each.is_file() or each.is_dir()):
            sync(each)


def why_unsafe(folder: Path) -> str:
    """Returns a known reason why a power failure may lose synced files of a folder; empty if none is known."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        return f"its file system cannot sync ({error.strerror})"
    finally:
        os.close(handle)
    device = folder.stat().st_dev
    with contextlib.suppress(OSError):  # only Linux has this list of mounts
        for line in bytes_in(Path("/proc/self"), "mountinfo").decode(errors="replace").splitlines():
            mount, _, system = line.partition(" - ")
            if mount.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                kind, _, options = system.split(" ", 2)
                if kind in ("tmpfs", "ramfs"):
                    return f"its file system ({kind}) keeps files in memory"
                if "volatile" in options.split(","):
                    return f"its file system ({kind}, mounted volatile) ignores syncs"
    return ""


def is_inside(path: Any) -> bool:
    """Whether the value is a relative path of less than 1,000 characters without parts `.` and `..`; ignores links."""
    parts = path.split("/") if isinstance(path, str) and 0 < len(path) < 1000 else [""]
    return not {"", "..", "."} & {*parts} and "\0" not in path
