"""Allows only one driver or audit per experiment, because two drivers would write to one journal."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.storage.files import bytes_in, open_in, write_atomically

LOCK, HOLDER = ".lock", ".driver"  # the file that is locked, and the file that names the last driver or audit
AUDIT = "an audit in "  # beginning of the text in HOLDER if the process is an audit
MOST_HOLDER = 1000  # maximum size of HOLDER in bytes; a larger file is ignored
WAIT_S = 0.5  # seconds to wait for the lock, because `driver_of` takes it for a moment too


@contextmanager
def only_driver(folder: Path, what: str = "") -> Iterator[None]:
    """Locks the experiment's folder for a driver, or for an audit if `what` is AUDIT, while the `with` block runs.

    The lock (flock) ends with the process, and works between hosts on NFS 4 and Lustre mounted with flock. Raises
    RequestError if another driver or audit has the lock, or the folder cannot be written to.
    """
    with ExitStack() as stack:
        try:
            is_free = stack.enter_context(locked(folder / LOCK))
            if is_free:  # HOLDER is replaced, not opened, because it may be a link to a file that must not change
                write_atomically(folder / HOLDER, f"{what}process {os.getpid()} on {socket.gethostname()}\n")
        except OSError as error:
            what = f"cannot be written to ({error.strerror}); give another --results"
            raise RequestError(f"{folder}: {what}") from None
        if not is_free:
            what = f"{_holder(folder)} is running this experiment; wait until it ends, or press Ctrl-C where it runs"
            raise RequestError(f"{folder}: {what}")
        yield


@contextmanager
def locked(path: str | Path, dir_fd: int | None = None) -> Iterator[bool]:
    """Creates and locks a file, not a link, for the `with` block; yields False if others keep the lock for WAIT_S."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=dir_fd)
    is_free = False
    try:
        for _ in range(10):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_free = True
                break
            time.sleep(WAIT_S / 10)
        yield is_free
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)  # closing is not enough: a forked process may still have the file open
        os.close(lock)


def driver_of(folder: Path) -> str:
    """Names the process that runs or audits an experiment; empty if none does. RequestError for an unreadable lock."""
    try:
        with open_in(folder, LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two readers do not take each other for a driver
            return ""
    except FileNotFoundError:
        return ""
    except BlockingIOError:
        return _holder(folder)
    except OSError as error:
        raise RequestError(f"{folder / LOCK} cannot be read ({error.strerror}); remove it if no search runs") from None


def abandoned(folder: Path) -> bool:
    """Whether the last driver or audit ran on this host, and no driver runs now (an audit may); False if unknown."""
    try:
        holder = _holder(folder)
        return holder.endswith(f" on {socket.gethostname()}") and (holder.startswith(AUDIT) or not driver_of(folder))
    except RequestError:  # for example, the lock belongs to another user
        return False


def _holder(folder: Path) -> str:
    try:
        return bytes_in(folder, HOLDER, MOST_HOLDER).decode(errors="replace").strip()
    except (OSError, ValueError):
        return "another process"
