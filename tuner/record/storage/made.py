"""Removes, renames and replaces what tuner has made, and nothing else; no other module does any of it.

Each function works below open folders (`dir_fd`), follows no link and enters no mount. A name proves nothing: what is
removed is named in a record of ours, or lies in a folder that has one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from types import TracebackType
from typing import Self

RECORD = ".tuner-made"  # file in a temporary folder with the folder's inode: a copy of the folder has another one
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW  # O_PATH needs no read permission


class MadeFolder:
    """A folder that tuner has made, with its record locked; `fd` is its file descriptor. A `with` block removes it."""

    def __init__(self, base: Path, name: str, is_new: bool) -> None:
        self.path, self._pid = base / name, os.getpid()
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, parent := os.open(base, os.O_RDONLY | os.O_DIRECTORY))
            if is_new:
                os.mkdir(name, 0o700, dir_fd=parent)
            stack.callback(os.close, fd := os.open(name, _FOLDER, dir_fd=parent))
            self.fd, self._parent = fd, parent
            try:
                stack.callback(os.close, self._recorded(is_new))
            except OSError:
                if is_new:  # a full disk leaves no folder that nobody would remove
                    with contextlib.suppress(OSError):
                        os.unlink(RECORD, dir_fd=fd)
                    os.rmdir(name, dir_fd=parent)
                raise
            self._open = stack.pop_all()

    def _recorded(self, is_new: bool) -> int:
        """Write the record, or check it; return its descriptor, which is locked."""
        flags = os.O_CREAT | os.O_EXCL if is_new else os.O_NONBLOCK
        record, status = os.open(RECORD, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600, dir_fd=self.fd), os.fstat(self.fd)
        try:
            truth = json.dumps({"made_by": "tuner", "device": status.st_dev, "inode": status.st_ino}).encode()
            if is_new:
                with contextlib.suppress(OSError):  # where nothing can be locked, `stale_folders` finds nothing
                    fcntl.flock(record, fcntl.LOCK_EX)  # before the content: a complete record without a lock is stale
                if os.write(record, truth) != len(truth):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                return record
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_true = stat.S_ISREG(os.fstat(record).st_mode) and os.read(record, len(truth) + 1) == truth
            if not is_true or status.st_uid != os.getuid() or not os.fstat(record).st_nlink:
                raise OSError(errno.EPERM, "tuner has not made this folder", str(self.path))
            return record
        except BaseException:
            os.close(record)
            raise

    def remove(self) -> None:
        """Remove the folder with all that it has, the record last; leave what cannot be removed."""
        if os.getpid() != self._pid:
            return  # in a forked process: the folder is its parent's
        with self._open, contextlib.suppress(OSError):
            _unlink_below(self.fd, lambda *_: None, {RECORD})
            if os.listdir(self.fd) == [RECORD] and _is_at(self.fd, self.path.name, self._parent):
                os.unlink(RECORD, dir_fd=self.fd)
                os.rmdir(self.path.name, dir_fd=self._parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def __del__(self) -> None:
        if opened := getattr(self, "_open", None):
            opened.close()


def temporary_folder(prefix: str, base: Path | None = None) -> MadeFolder:
    """Make a folder that only this user may enter, below `base` or the folder of temporary files."""
    return MadeFolder(base or Path(tempfile.gettempdir()), prefix + secrets.token_hex(4), is_new=True)


def stale_folders(base: Path, prefix: str) -> Iterator[MadeFolder]:
    """Yield this user's temporary folders below `base` whose process has ended, for a rescue of files or a removal."""
    for name in os.listdir(base):
        if name.startswith(prefix):
            with contextlib.suppress(OSError):  # no folder, no record of ours in it, or its process runs
                yield MadeFolder(base, name, is_new=False)


def _is_at(fd: int, name: str, parent: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.stat(name, dir_fd=parent, follow_symlinks=False), os.fstat(fd))
    return False


def _mount_of(fd: int) -> tuple[int, str]:
    """Return an open folder's device and mount; a bind mount has its device in common with what is around it."""
    with contextlib.suppress(OSError), open(f"/proc/self/fdinfo/{fd}") as lines:  # Linux only
        return os.fstat(fd).st_dev, next((line for line in lines if line.startswith("mnt_id")), "")
    return os.fstat(fd).st_dev, ""


def _unlink_below(fd: int, failed: Callable[[str, OSError], object], kept: Set[str] = frozenset()) -> None:
    """Unlink all in an open folder, except names in `kept`; call `failed` with each name that cannot be removed."""
    with os.scandir(fd) as entries:
        listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if entry.name not in kept]
    for name, is_folder in listed:
        try:
            if is_folder:
                with _entered(name, fd) as inner:
                    _unlink_below(inner, failed)
                os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)
        except OSError as error:
            failed(name, error)


@contextlib.contextmanager
def _entered(name: str, fd: int) -> Iterator[int]:
    """Open a folder in an open folder, and make it writable; OSError for a link or a mount."""
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, look := os.open(name, _LOOK, dir_fd=fd))
        if _mount_of(look) != _mount_of(fd):
            raise OSError(errno.EXDEV, "is a mount", name)
        status = os.fstat(look)
        if status.st_uid == os.getuid() and status.st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{look}", status.st_mode | 0o700)
        stack.callback(os.close, inner := os.open(".", _FOLDER, dir_fd=look))
        yield inner


@contextlib.contextmanager
def below(root: Path, *folders: str, make: bool = False) -> Iterator[int]:
    """Open a folder below `root`; follow no link below it; with `make`, make missing folders. OSError if it cannot."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
            inner = os.open(name, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def remove_file(name: str, fd: int) -> None:
    """Remove a file or link that a record of ours names from an open folder, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=fd)


def move_file(source: str, name: str, fd: int) -> None:
    """Move a file or link into an open folder, in place of a file there; copy it if it lies on another disk."""
    try:
        os.rename(source, name, dst_dir_fd=fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        aside = f".{secrets.token_hex(8)}"
        try:
            if os.path.islink(source):
                os.symlink(os.readlink(source), aside, dir_fd=fd)
            else:
                with open(source, "rb") as whole, open(_new_file(aside, fd), "wb") as copy:
                    shutil.copyfileobj(whole, copy, 1 << 20)
                    status = os.fstat(whole.fileno())
                    os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode))
                    os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
            os.rename(aside, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            remove_file(aside, fd)
            raise


def keep_folder(source: str, name: str, content: str, files: dict[str, bytes], fd: int) -> bool:
    """Move a folder to `name/content` in an open folder, with small `files` beside it; False if `name` exists.

    Other processes see all of it or nothing.
    """
    if name in os.listdir(fd):
        return False
    aside = f".{secrets.token_hex(8)}"
    os.mkdir(aside, dir_fd=fd)
    with _entered(aside, fd) as made:
        for file, text in files.items():
            with open(_new_file(file, made), "wb") as written:
                written.write(text)
        try:
            os.rename(source, content, dst_dir_fd=made)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.copytree(source, f"/proc/self/fd/{made}/{content}", symlinks=True)
        try:
            os.rename(aside, name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError:  # another trial was earlier
            if not os.path.lexists(source):
                os.rename(content, source, src_dir_fd=made)
            _unlink_below(made, lambda *_: None)
            os.rmdir(aside, dir_fd=fd)
            return False
    return True


def _new_file(name: str, fd: int) -> int:
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=fd)
