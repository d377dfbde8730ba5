"""One driver an experiment: two would write one journal and train every trial twice."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tuner.errors import RequestError


@contextmanager
def only_driver(folder: Path) -> Iterator[None]:
    """Holds the experiment's folder, which must exist, for as long as this process lives.

    The lock is the operating system's (flock): it ends with its process, however that dies. On a shared file system
    it holds between hosts as far as that one's flock does (NFS 4 and Lustre mounted with flock do).

    Raises:
        RequestError: another driver holds it; the message says which, and where.
    """
    # The name of the holder lies beside, because whoever tries the lock empties its file.
    lock, holder = FileLock(folder / ".lock"), folder / ".driver"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        who = holder.read_text().strip() if holder.exists() else "another process"
        raise RequestError(
            f"{folder}: {who} is running this experiment; wait for its end, or stop it with Ctrl-C there"
        ) from None
    except OSError as error:
        raise RequestError(f"{folder}: cannot be written to ({error.strerror}); give another --results") from None
    try:
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
    finally:
        lock.release()
