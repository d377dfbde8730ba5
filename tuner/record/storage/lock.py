"""Allows only one driver per experiment; two would write to one journal and train every trial twice.

An audit takes the same lock, so that nobody deletes, renames or resumes the experiment meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tuner.errors import RequestError
from tuner.record.storage.files import bytes_in, open_in, write_atomically

LOCK, HOLDER = ".lock", ".driver"  # the lock, and the driver's name: two files, as FileLock empties its file
AUDIT = "an audit in "  # before the process in HOLDER, if it audits
MOST_HOLDER = 1000  # maximum size of HOLDER in bytes; a larger file is ignored
LOOK_S = 0.5  # seconds that a driver waits for the lock, because `driver_of` takes it for a moment too


@contextmanager
def only_driver(folder: Path, what: str = "") -> Iterator[None]:
    """Locks the experiment's existing folder for this driver while the `with` block runs.

    The operating system's lock (flock) is released when the process ends, even if it is killed. On a shared file
    system the lock works between hosts if the file system's flock does (NFS 4 does, and Lustre mounted with flock).

    Args:
        what: AUDIT for an audit, else empty.

    Raises:
        RequestError: another driver has the lock, or the folder cannot be written to.
    """
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=LOOK_S, poll_interval=LOOK_S / 10)
    except Timeout:
        raise RequestError(
            f"{folder}: {_holder(folder)} is running this experiment; wait until it ends, or press Ctrl-C where it runs"
        ) from None
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        # HOLDER is replaced, not opened, because it may be a link to a file that must not change.
        try:
            write_atomically(folder / HOLDER, f"{what}process {os.getpid()} on {socket.gethostname()}\n")
        except OSError as error:
            raise _unwritable(folder, error) from None
        yield
    finally:
        lock.release()


def _unwritable(folder: Path, error: OSError) -> RequestError:
    return RequestError(f"{folder}: cannot be written to ({error.strerror}); give another --results")


def driver_of(folder: Path) -> str:
    """Returns a text that names the process which runs an experiment; empty if none does. Writes nothing.

    Raises:
        RequestError: the lock cannot be read, or is not a regular file.
    """
    try:
        with open_in(folder, LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: readers do not look like drivers
            return ""
    except FileNotFoundError:
        return ""
    except BlockingIOError:
        return _holder(folder)
    except OSError as error:
        raise RequestError(f"{folder / LOCK} cannot be read ({error.strerror}); remove it if no search runs") from None


def abandoned(folder: Path) -> bool:
    """Whether the experiment's last driver ran on this host and has ended; False if that is unknown.

    If an audit has the lock, the driver has ended: an audit locks only a search that has ended.
    """
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
