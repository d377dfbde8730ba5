"""Deletes an experiment's folder, writes a file into it, or lists its files.

Each function works on open folders (`dir_fd`) and follows no link below the folder of results, because another user
may replace an experiment by a link between a check and an action.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tuner.errors import RequestError
from tuner.record.format import JOURNAL
from tuner.record.saved_experiment import COPY, why_foreign
from tuner.record.saved_experiment import FILE as EXPERIMENT
from tuner.record.storage.files import write_atomically
from tuner.record.storage.lock import LOCK, driver_of, locked
from tuner.record.storage.made import remove_experiment, remove_files, renamed

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
MAX_DEPTH = 40  # deeper folders are not listed; each level needs an open file descriptor
MAX_FILES = 100  # maximum number of files that `files_in` returns


class OpenFolder(NamedTuple):
    """An experiment's open folder: `fd` is its file descriptor, `results_fd` the descriptor of its parent folder."""

    path: Path
    results_fd: int
    fd: int


@contextlib.contextmanager
def opened(path: Path) -> Iterator[OpenFolder]:
    """Opens an experiment's folder; raises RequestError if it is missing, a link, or cannot be opened."""
    with contextlib.ExitStack() as stack:
        try:
            stack.callback(os.close, results := os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
            stack.callback(os.close, fd := os.open(path.name, _FOLDER, dir_fd=results))
        except OSError as error:
            raise RequestError(f"{path} cannot be opened: {error.strerror}") from None
        yield OpenFolder(path, results, fd)


@contextlib.contextmanager
def without_driver(folder: OpenFolder) -> Iterator[None]:
    """Locks drivers and audits out; RequestError if one runs, or if the folder is not an experiment of tuner's."""
    path = folder.path
    if why := why_foreign(Path(f"/dev/fd/{folder.fd}")):
        raise RequestError(f"{path} is not an experiment of tuner ({why}); nothing was changed; change it yourself")
    with contextlib.ExitStack() as stack:
        try:
            is_free = stack.enter_context(locked(LOCK, folder.fd))
        except OSError as error:
            raise RequestError(f"{path / LOCK} cannot be opened ({error.strerror}); nothing was changed") from None
        if not is_free:
            raise RequestError(f"{path.name} is run by {driver_of(path) or 'another process'}; stop it first")
        yield


def set_aside(folder: OpenFolder) -> str:
    """Renames the folder to a hidden name, which it returns; deletes experiment.json, its copy and the journal."""
    aside = f".deleted-{secrets.token_hex(4)}-{folder.path.name}"
    _move(folder, folder.path.name, aside)
    if why := remove_files(folder.fd, (EXPERIMENT, COPY, JOURNAL)):
        _move(folder, aside, folder.path.name)
        raise RequestError(f"{folder.path} cannot be deleted ({why}); nothing was changed") from None
    return aside


def remove(folder: OpenFolder, aside: str) -> str:
    """Deletes a folder that `set_aside` renamed; returns an empty text, or what could not be deleted and why."""
    if not (problems := remove_experiment(folder.fd, aside, folder.results_fd)):
        return ""
    return f"{folder.path.parent / aside} could not be deleted completely ({problems[0][:300]}); delete it yourself"


def _move(folder: OpenFolder, old: str, new: str) -> None:
    """Renames the open folder, or raises RequestError; undoes the renaming if another process replaced the folder."""
    try:
        renamed(folder.fd, old, new, folder.results_fd)
    except OSError as error:
        raise RequestError(f"{folder.path} cannot be deleted ({error.strerror}); nothing was changed") from None
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        os.fsync(folder.results_fd)


def write_in(folder: OpenFolder, name: str, content: str) -> None:
    """Replaces a file of the folder atomically, as `write_atomically` does; raises RequestError if it cannot."""
    try:
        write_atomically(Path(name), content, folder.fd)
    except OSError as error:
        raise RequestError(f"{folder.path / name} cannot be written: {error.strerror}") from None


def files_in(folder: OpenFolder, name: str) -> list[tuple[str, int]]:
    """Lists (path, bytes) of the first MAX_FILES regular files below the folder `name`, at most MAX_DEPTH deep.

    The list is empty if the folder is missing or a link.
    """
    try:
        root_fd = os.open(name, _FOLDER, dir_fd=folder.fd)
    except OSError:
        return []
    try:
        return list(islice(_files_below(root_fd), MAX_FILES))
    finally:
        os.close(root_fd)


def _files_below(root_fd: int) -> Iterator[tuple[str, int]]:
    for below, folders, names, fd in os.fwalk(".", dir_fd=root_fd, follow_symlinks=False):
        for name in sorted(names):
            with contextlib.suppress(OSError):
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    yield str(Path(below) / name), status.st_size
        folders.sort()
        if len(Path(below).parts) >= MAX_DEPTH:
            folders.clear()
