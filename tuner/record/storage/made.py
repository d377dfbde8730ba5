"""Removes, renames, replaces and shortens what tuner has made; no other module does, and this one touches nothing else.

Each function works below open folders (`dir_fd`), follows no link there and enters no mount. A name proves nothing:
what is removed lies in a folder with a record of ours, or the caller has a record that names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, Literal, Self

RECORD = ".tuner-made"  # file in a folder of ours, with the folder's inode: a copy of the folder has another one
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_LOOK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW  # O_PATH needs no read permission


class MadeFolder:
    """A folder that tuner has made, with its record locked; `fd` is its descriptor. Leaving a `with` block removes it.

    Args:
        kind: `made` opens a folder with a true record. `aside` also takes an empty folder, and a record of another
            inode: an experiment may be copied with what a killed process has left beside `best/`. `new` makes the
            folder, or takes an empty one. `ours` writes the record into a folder that the caller knows to be ours.

    Raises:
        OSError: the folder is missing, a link, or not ours; its process runs; or it cannot be written.
    """

    def __init__(self, base: Path, name: str, kind: Literal["made", "aside", "new", "ours"] = "made") -> None:
        self.path, self._pid = base / name, os.getpid()
        # After an error or Ctrl-C, nobody else would remove what was made: `undo` does.
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as undo:
            stack.callback(os.close, parent := os.open(base, os.O_RDONLY | os.O_DIRECTORY))
            if kind == "new":
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=parent)
                    undo.callback(os.rmdir, name, dir_fd=parent)
            stack.callback(os.close, fd := os.open(name, _FOLDER, dir_fd=parent))
            self.fd, self._parent = fd, parent
            is_empty = set(os.listdir(fd)) <= {RECORD}
            if kind == "new":
                if not is_empty:
                    raise FileExistsError(errno.EEXIST, "tuner has not made this folder; rename it", str(self.path))
                undo.callback(remove_files, fd, [RECORD])
            creates = os.O_CREAT if kind in ("new", "ours") or kind == "aside" and is_empty else 0
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | creates
            stack.callback(os.close, record := os.open(RECORD, flags, 0o600, dir_fd=fd))
            self._record = record
            self._write(record) if creates else self._check(record, any_inode=kind == "aside")
            undo.pop_all()
            self._open = stack.pop_all()

    def _truth(self) -> bytes:
        status = os.fstat(self.fd)
        return json.dumps({"made_by": "tuner", "device": status.st_dev, "inode": status.st_ino}).encode()

    def _write(self, record: int) -> None:
        with contextlib.suppress(OSError):  # where nothing can be locked, `stale_folders` finds nothing
            fcntl.flock(record, fcntl.LOCK_EX)  # before the content: a complete record without a lock is stale
        shorten(record, 0)
        if os.write(record, truth := self._truth()) != len(truth):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def _check(self, record: int, any_inode: bool) -> None:
        fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status, truth = os.fstat(record), self._truth()
        content = os.read(record, 200) if stat.S_ISREG(status.st_mode) and status.st_nlink else b""
        content = content.partition(b"\n")[0]  # a note may follow
        is_true = content == truth or any_inode and content.startswith(truth.partition(b",")[0])
        if not is_true or os.fstat(self.fd).st_uid != os.getuid():
            raise OSError(errno.EPERM, "tuner has not made this folder", str(self.path))

    def note(self, text: str) -> None:
        """Write a text into the record, for `noted` in another process."""
        content = b"\n" + text.encode()
        if os.pwrite(self._record, content, len(self._truth())) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def noted(self) -> str:
        return os.pread(self._record, os.fstat(self._record).st_size, len(self._truth())).decode()

    def remove(self) -> None:
        """Remove the folder and its contents, the record last; leave what cannot be removed."""
        if self.fd < 0 or os.getpid() != self._pid:
            return  # removed or kept before; or in a forked process, whose parent has made the folder
        with contextlib.suppress(OSError):
            _unlink_below(self.fd, lambda *_: None, {RECORD})
            if os.listdir(self.fd) == [RECORD] and _is_at(self.fd, self.path.name, self._parent):
                os.unlink(RECORD, dir_fd=self.fd)
                os.rmdir(self.path.name, dir_fd=self._parent)
        self.keep()

    def clear(self, name: str) -> None:
        """Remove the folder `name` in this one; leave what cannot be removed."""
        with contextlib.suppress(OSError):
            remove_folder(self.fd, name)

    def take_place(self, name: str, before: MadeFolder | None = None, aside: str = "") -> None:
        """Rename the folder; if `before` has the name, swap the two, or rename `before` to `aside` first."""
        old = self.path.name
        if before and exchanged(old, name, self._parent):
            before.path, self.path = self.path, before.path
            return
        if before:
            renamed(before.fd, name, aside, self._parent)
            before.path = before.path.with_name(aside)
        renamed(self.fd, old, name, self._parent)
        self.path = self.path.with_name(name)

    def keep(self, *, forget: bool = False) -> None:
        """Close the folder instead of removing it. With `forget`, first remove the record that tuner has made it."""
        if forget:
            os.unlink(RECORD, dir_fd=self.fd)
        self.fd = -1
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.keep()


def temporary_folder(prefix: str, base: Path | None = None) -> MadeFolder:
    """Make a folder that only this user may enter, below `base` or the folder of temporary files."""
    return MadeFolder(base or Path(tempfile.gettempdir()), prefix + secrets.token_hex(4), "new")


def stale_folders(base: Path, prefix: str) -> Iterator[MadeFolder]:
    """Yield this user's temporary folders below `base` whose process has ended; the caller may save files first."""
    for name in os.listdir(base):
        if name.startswith(prefix):
            with contextlib.suppress(OSError):  # no folder, no record of ours in it, or its process runs
                yield MadeFolder(base, name)


@contextlib.contextmanager
def replacing_file(path: Path, dir_fd: int | None = None) -> Iterator[BinaryIO]:
    """Open a new file, which replaces the file or link `path` when the `with` block ends without an error.

    With `dir_fd`, `path` is a name in that folder.
    """
    name, aside = path.name, f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY, dir_fd=dir_fd)
        stack.callback(os.close, parent)
        file = open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=parent), "wb")
        try:
            with file:
                yield file
            os.replace(aside, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):  # on a read-only disk the clean-up fails too; the first error is raised
                os.unlink(aside, dir_fd=parent)
            raise


@contextlib.contextmanager
def below(root: Path, *folders: str, make: bool = False) -> Iterator[int]:
    """Open a folder below `root`, following no link there; with `make`, make missing folders. OSError if it cannot."""
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


def move_into(fd: int, source: str, name: str) -> None:
    """Move a file, link or folder that a trial has made into an open folder, where a file may have the name.

    From another disk it is copied, and the caller removes `source` with the temporary folder around it.
    """
    try:
        os.rename(source, name, dst_dir_fd=fd)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        aside, is_folder = f".{secrets.token_hex(8)}", stat.S_ISDIR(os.lstat(source).st_mode)
        target = f"/proc/self/fd/{fd}/{aside}"  # as safe as `fd`, because nobody else knows the name
        try:
            if is_folder:
                shutil.copytree(source, target, symlinks=True)
            else:
                shutil.copy2(source, target, follow_symlinks=False)
            os.rename(aside, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_folder(fd, aside) if is_folder else os.unlink(aside, dir_fd=fd)
            raise


def remove_made(root: Path, relative: str) -> None:
    """Remove a file or an empty folder that tuner has made below `root`; OSError if it cannot, or behind a link."""
    *folders, name = PurePosixPath(relative).parts
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd := os.open(root, os.O_RDONLY | os.O_DIRECTORY))
        for folder in folders:
            fd = stack.enter_context(_entered(folder, fd))
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=fd)
        else:
            os.unlink(name, dir_fd=fd)


def remove_folder(fd: int, name: str) -> None:
    """Remove a folder that tuner has made in an open folder, with all in it; OSError if it is a link or a mount."""
    with _entered(name, fd) as inner:
        _unlink_below(inner, lambda *_: None)
    os.rmdir(name, dir_fd=fd)


def remove_files(fd: int, names: Sequence[str]) -> str:
    """Remove files of an open folder. If the first cannot be removed, return why; otherwise return an empty text."""
    for name in names:
        try:
            os.unlink(name, dir_fd=fd)
        except (FileNotFoundError, IsADirectoryError):
            continue
        except OSError as error:
            return str(error.strerror) if name == names[0] else ""
    return ""


def remove_experiment(fd: int, name: str, parent: int) -> list[str]:
    """Remove an experiment's open folder, which the caller has checked and renamed; list what stays, and why."""
    problems: list[str] = []
    try:
        _unlink_below(fd, lambda name, error: problems.append(f"{name}: {error.strerror}"))
        if not problems and _is_at(fd, name, parent):
            os.rmdir(name, dir_fd=parent)
    except OSError as error:
        problems.append(f"{name}: {error.strerror}")
    except RecursionError:
        problems.append("its folders are nested too deeply")
    return problems


def renamed(fd: int, old: str, new: str, parent: int) -> None:
    """Rename the open folder `old` in the open folder `parent`; OSError if it is not there, or `new` is taken."""
    if not _is_at(fd, old, parent):
        raise OSError(errno.ESTALE, "was replaced meanwhile", old)
    with contextlib.suppress(FileNotFoundError):  # a race can then only replace an empty folder
        os.stat(new, dir_fd=parent, follow_symlinks=False)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
    os.rename(old, new, src_dir_fd=parent, dst_dir_fd=parent)
    if not _is_at(fd, new, parent):
        with contextlib.suppress(OSError):
            os.rename(new, old, src_dir_fd=parent, dst_dir_fd=parent)
        raise OSError(errno.ESTALE, "was replaced meanwhile", old)


def exchanged(one: str, other: str, fd: int) -> bool:
    """Swap two folders of an open folder in one step; False if the operating or the file system cannot do it."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)  # Linux only; Python has no function for it
    return renameat2 is not None and renameat2(fd, os.fsencode(one), fd, os.fsencode(other), 2) == 0  # RENAME_EXCHANGE


def shorten(fd: int, size: int) -> None:
    """Cut an open file of ours to `size` bytes; OSError if it is no regular file."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "is no regular file")
    os.ftruncate(fd, size)


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
    """Open a folder in an open folder, and make it writable if it is this user's; OSError for a link or a mount."""
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, look := os.open(name, _LOOK, dir_fd=fd))
        if _mount_of(look) != _mount_of(fd):
            raise OSError(errno.EXDEV, "is a mount", name)
        status = os.fstat(look)
        if status.st_uid == os.getuid() and status.st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{look}", status.st_mode | 0o700)
        stack.callback(os.close, inner := os.open(".", _FOLDER, dir_fd=look))
        yield inner
