"""Changes an experiment's folder as a whole: renames it, deletes it, or writes a file into it.

Another user who may write to the folder of results could replace an experiment by a link between a check and an action.
So each function works on open folders (`dir_fd`), and follows no link below the folder of results.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.saved_experiment import COPY
from tuner.record.saved_experiment import FILE as EXPERIMENT
from tuner.record.storage.lock import LOCK, LOOK_S, driver_of

JOURNAL = "journal.jsonl"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
MOST_ENTRIES, MOST_S = 500_000, 5.0  # of a folder that is measured; listing 100,000 entries takes 0.5 s
MOST_LEVELS = 40  # of folders within folders; each takes a file descriptor while it is measured
MOST_NAMED = 100  # files of a subfolder that are named


@dataclass(frozen=True)
class OpenFolder:
    """An experiment's folder that is open: `place` and `results` are file descriptors of it and of its parent."""

    path: Path
    results: int
    place: int

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.path.name

    def is_at(self, name: str) -> bool:
        """Whether `name` in the folder of results is this folder, and not another one or a link."""
        try:
            there = os.stat(name, dir_fd=self.results, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self.place))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[OpenFolder]:
    """Opens an experiment's folder.

    Raises:
        RequestError: the folder is missing, a link, or cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        try:
            results = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, results)
            place = os.open(path.name, _FOLDER, dir_fd=results)
            stack.callback(os.close, place)
        except OSError as error:
            raise RequestError(f"{path} cannot be opened: {error.strerror}") from None
        yield OpenFolder(path, results, place)


@contextlib.contextmanager
def without_driver(folder: OpenFolder) -> Iterator[None]:
    """Locks out drivers while the `with` block runs; the name of the last driver stays recorded.

    Raises:
        RequestError: the folder has no experiment of tuner, a process runs it, or the lock cannot be taken.
    """
    path = folder.path
    try:
        if stat.S_ISLNK(os.stat(EXPERIMENT, dir_fd=folder.place, follow_symlinks=False).st_mode):
            raise RequestError(f"{path / EXPERIMENT} is a link; remove it yourself")
    except OSError:
        raise RequestError(
            f"{path} has no {EXPERIMENT}, so tuner cannot know whether a process runs it; change the folder yourself"
        ) from None
    try:
        lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=folder.place)
    except OSError as error:
        raise RequestError(f"{path / LOCK} cannot be opened ({error.strerror}); nothing was changed") from None
    try:
        if not _locked(lock):
            raise RequestError(f"{folder.name} is run by {driver_of(path) or 'another process'}; stop it first")
        yield
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    """Locks an open file; waits LOOK_S, because readers take the lock for a moment too."""
    until = time.monotonic() + LOOK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(LOOK_S / 10)


def rename(folder: OpenFolder, new: str) -> None:
    """Renames the folder; its files stay as they are, because every reader takes the name of the folder.

    Raises:
        RequestError: `new` is taken, or the folder cannot be renamed. The folder then has its old name.
    """
    try:
        os.mkdir(new, dir_fd=folder.results)  # reserves the name: a rename replaces only an empty folder
    except FileExistsError:
        raise RequestError(f"{folder.path.parent / new} already exists; give another name") from None
    except OSError as error:
        raise RequestError(f"{folder.path} cannot be renamed: {error.strerror}") from None
    try:
        _move(folder, folder.name, new)
    except RequestError:
        with contextlib.suppress(OSError):
            os.rmdir(new, dir_fd=folder.results)
        raise


def set_aside(folder: OpenFolder) -> str:
    """Begins to delete the folder: it gets a name that no list shows, and loses the files that make it an experiment.

    So an error or a crash midway leaves no half of an experiment. Returns the name; `remove` deletes the rest.

    Raises:
        RequestError: the folder cannot be deleted; nothing was changed.
    """
    aside = f".deleted-{secrets.token_hex(4)}-{folder.name}"
    _move(folder, folder.name, aside)
    for name in (EXPERIMENT, COPY, JOURNAL):
        try:
            os.unlink(name, dir_fd=folder.place)
        except (FileNotFoundError, IsADirectoryError):
            continue
        except OSError as error:
            if name != EXPERIMENT:
                break
            _move(folder, aside, folder.name)
            raise RequestError(f"{folder.path} cannot be deleted ({error.strerror}); nothing was changed") from None
    return aside


def remove(folder: OpenFolder, aside: str) -> str:
    """Deletes the files of a folder that was set aside; returns an empty text, or what was left and why."""
    problems: list[str] = []

    def note(_: object, path: str, error: object) -> None:
        problems.append(f"{path}: {getattr(error[1], 'strerror', None) or error[1]}")  # type: ignore[index]

    try:  # rmtree works on open folders too: it deletes links and never what they lead to
        shutil.rmtree(aside, onerror=note, dir_fd=folder.results)
    except RecursionError:
        problems.append("its folders are nested too deeply")
    if not problems:
        return ""
    return f"{folder.path.parent / aside} could not be deleted completely ({problems[0][:300]}); delete it yourself"


def _move(folder: OpenFolder, old: str, new: str) -> None:
    """Renames the open folder; puts back what another process has exchanged for it meanwhile."""
    path = folder.path
    if not folder.is_at(old):
        raise RequestError(f"{path} was replaced meanwhile; nothing was changed")
    try:
        os.rename(old, new, src_dir_fd=folder.results, dst_dir_fd=folder.results)
    except OSError as error:
        raise RequestError(f"{path} cannot be renamed ({error.strerror}); nothing was changed") from None
    if not folder.is_at(new):
        with contextlib.suppress(OSError):
            os.rename(new, old, src_dir_fd=folder.results, dst_dir_fd=folder.results)
        raise RequestError(f"{path} was replaced meanwhile; nothing was changed")
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder
        os.fsync(folder.results)


def write_in(folder: OpenFolder, name: str, content: str) -> None:
    """Replaces a file of the folder atomically; a link is replaced itself.

    Raises:
        RequestError: the file cannot be written; it keeps its old content.
    """
    aside = f".{name}.{secrets.token_hex(4)}"
    try:
        try:
            file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder.place)
            with open(file, "w", encoding="utf-8") as opened_file:
                opened_file.write(content)
                opened_file.flush()
                os.fsync(file)
            os.replace(aside, name, src_dir_fd=folder.place, dst_dir_fd=folder.place)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=folder.place)
            raise
        with contextlib.suppress(OSError):
            os.fsync(folder.place)
    except OSError as error:
        raise RequestError(f"{folder.path / name} cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class Size:
    """The regular files below a folder: their number, their bytes, and whether all of them were counted.

    `checkpoints` counts folders of checkpoints.
    """

    files: int
    size_bytes: int
    is_whole: bool
    checkpoints: int


def size_of(folder: OpenFolder) -> Size:
    """Counts the files of the folder, for at most MOST_S seconds; follows no link."""
    files = size_bytes = entries = checkpoints = 0
    until, is_whole = time.monotonic() + MOST_S, True
    for place, folders, names, fd in os.fwalk(".", dir_fd=folder.place, follow_symlinks=False):
        entries += len(folders) + len(names)
        checkpoints += sum(each.startswith("checkpoint_") for each in folders)
        if len(Path(place).parts) >= MOST_LEVELS and folders:
            folders.clear()
            is_whole = False
        for name in names:
            if (size := _bytes_of(name, fd)) is not None:
                files, size_bytes = files + 1, size_bytes + size
        if entries > MOST_ENTRIES or time.monotonic() > until:
            is_whole = False
            break
    return Size(files, size_bytes, is_whole, checkpoints)


def files_in(folder: OpenFolder, name: str) -> list[tuple[str, int]]:
    """Returns path and bytes of the first MOST_NAMED regular files below a subfolder; none if it is missing or a link.

    The paths start below the subfolder.
    """
    found: list[tuple[str, int]] = []
    try:
        place = os.open(name, _FOLDER, dir_fd=folder.place)
    except OSError:
        return found
    try:
        for below, folders, names, fd in os.fwalk(".", dir_fd=place, follow_symlinks=False):
            sizes = {each: _bytes_of(each, fd) for each in sorted(names)[:MOST_NAMED]}
            found += [(str(Path(below, each)), size) for each, size in sizes.items() if size is not None]
            if len(found) >= MOST_NAMED:
                break
            folders[:] = sorted(folders)[:MOST_NAMED] if len(Path(below).parts) < MOST_LEVELS else []
    finally:
        os.close(place)
    return found[:MOST_NAMED]


def _bytes_of(name: str, place: int) -> int | None:
    """Returns the size of a regular file in an open folder; None for anything else."""
    try:
        status = os.stat(name, dir_fd=place, follow_symlinks=False)
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
