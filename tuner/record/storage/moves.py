"""Moves files and folders below open folders, without following links. (Part of `made`.)"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from tuner.record.storage.made import _FOLDER, _entered, _unlink_below


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
