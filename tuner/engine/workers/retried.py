"""Repeats a write to the results while it fails for a reason that may pass."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PASSING = errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE  # full disk or quota, read-only, stale
RETRY_INTERVAL_S = 1.0


def patiently(write: Callable[[], T], tell: Callable[[str], None] | None = None, folder: Path = Path()) -> T:
    """Return what a write returns, repeated each second while its disk is full or its experiment's folder is gone.

    Ray delivers a report only after it has copied the checkpoint, so a failed report can be sent again.

    Args:
        tell: gets the reason before each retry. The driver then prints it, and can stop the trial.
        folder: the experiment's.
    """
    while True:
        try:
            return write()
        except (OSError, RuntimeError) as error:
            is_gone = isinstance(error, RuntimeError) and "Unable to set up cluster storage" in str(error)  # Ray's
            is_gone |= isinstance(error, FileNotFoundError) and not folder.exists()
            if not is_gone and getattr(error, "errno", 0) not in PASSING:
                raise
            with suppress(OSError):  # stderr may be a file on the same disk
                print(f"cannot write to the results ({error}); trying again", file=sys.stderr, flush=True)
            if tell:
                why = "its experiment's folder is gone" if is_gone else getattr(error, "strerror", None)
                tell(f"a checkpoint cannot be saved ({why})")
            time.sleep(RETRY_INTERVAL_S)
