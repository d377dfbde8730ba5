"""Sends errors between processes, of which one may be unable to import an error's class."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable


def sent(error: BaseException, dumps: Callable[[BaseException], bytes] = pickle.dumps) -> tuple[bytes, str]:
    """Pickle an error that is being handled; returns its traceback, too."""
    printed = traceback.format_exc()
    try:
        return dumps(error.with_traceback(None)), printed
    except Exception:
        return b"", printed


def error_of(pickled: bytes, printed: str) -> BaseException:
    """Return the error that `sent` has pickled, a RuntimeError if it cannot be unpickled; its note is the traceback."""
    try:
        error: BaseException = pickle.loads(pickled)
    except Exception:
        error = RuntimeError(printed.rstrip().rpartition("\n")[2])
    error.add_note(printed)  # what Ray prints then ends with the user's line
    return error
