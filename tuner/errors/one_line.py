"""Shows a user's mistake, in scripts and notebooks, as one line that names the line of code, without a traceback."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tuner.errors import RequestError, printable, say
from tuner.errors.users_code import place_raised

logger = logging.getLogger(__name__)
RENDER = "_render_traceback_"  # IPython calls this attribute of an error, and shows the returned lines, no traceback


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Re-raises the block's errors; shows a user's mistake or explained interrupt in one line if nothing catches it."""
    try:
        yield
    except (RequestError, ValueError, KeyboardInterrupt) as error:
        if str(error):  # Python's own KeyboardInterrupt has no text
            setattr(error, RENDER, rendered)
            if getattr(sys.excepthook, "func", None) is not _show:
                sys.excepthook = functools.partial(_show, sys.excepthook)
        raise


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Logs an unexpected error of the `with` block in one line that begins with `what`: it must not cost an answer."""
    try:
        yield
    except (RequestError, OSError):
        raise
    except Exception as error:
        logger.debug("%s", what, exc_info=True)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error}{place_raised(error) or f' ({frame.filename}, line {frame.lineno})'}"
        logger.warning("NOTE: %s: %s", what, " ".join(why.split()))


def rendered() -> list[str]:
    """Returns the lines that IPython shows for a cell's error. A bound method here would make the error unpicklable."""
    return [line_of(sys.last_value)]  # type: ignore[arg-type]


def line_of(error: BaseException) -> str:
    """Returns an error as one line of text, with the last line of the user's code in its traceback, if there is one."""
    text, place = " ".join(str(error).split()), place_raised(error).strip()
    return printable(f"{type(error).__name__}: {text}{'' if place in text else f' {place}'}")


def _show(before: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an error that `in_one_line` marked, as one line; passes other errors to `before`, the old excepthook."""
    if hasattr(error, RENDER):
        say(line_of(error), to=sys.stderr)
    else:
        before(kind, error, trace)
