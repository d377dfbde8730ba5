"""One driver an experiment: two would write one journal and train every trial twice."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tuner.errors import RequestError
from tuner.record.files import bytes_in, open_in, write_atomically

LOCK, HOLDER = ".lock", ".driver"  # two, because whoever tries the lock empties its file
MOST_HOLDER = 1000  # bytes
LOOK_S = 0.5  # `driver_of` holds it as well, for a moment


@contextmanager
def only_driver(folder: Path) -> Iterator[None]:
    """Holds the experiment's folder, which must exist, for as long as this process lives.

    The lock is the operating system's (flock): it ends with its process, however that dies. On a shared file system
    it holds between hosts as far as that one's flock does (NFS 4 and Lustre mounted with flock do).

    Raises:
        RequestError: another driver holds it; the message says which, and where.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=LOOK_S, poll_interval=LOOK_S / 10)
    except Timeout:
        raise RequestError(
            f"{folder}: {_holder(folder)} is running this experiment; wait for its end, or stop it with Ctrl-C there"
        ) from None
    except OSError as error:
        raise RequestError(f"{folder}: cannot be written to ({error.strerror}); give another --results") from None
    try:
        # By another file that takes its place: what lies there may be a link to what is not to be written to.
        write_atomically(folder / HOLDER, f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        lock.release()


def driver_of(folder: Path) -> str:
    """The process that holds an experiment's folder, as words; empty where none does. Writes nothing.

    Raises:
        RequestError: its lock cannot be read, or is no file.
    """
    try:
        with open_in(folder, LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two readers are no drivers to each other
            return ""
    except FileNotFoundError:
        return ""
    except BlockingIOError:
        return _holder(folder)
    except OSError as error:
        raise RequestError(f"{folder / LOCK} cannot be read ({error.strerror}); remove it if nothing runs") from None


def abandoned(folder: Path) -> bool:
    """Whether the experiment's last driver was on this host and is no more; of another host's it cannot be told."""
    try:
        return _holder(folder).endswith(f" on {socket.gethostname()}") and not driver_of(folder)
    except RequestError:  # another user's folder, say
        return False


def _holder(folder: Path) -> str:
    try:
        return bytes_in(folder, HOLDER, MOST_HOLDER).decode(errors="replace").strip()
    except (OSError, ValueError):
        return "another process"
