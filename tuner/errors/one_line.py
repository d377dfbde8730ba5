"""Shows a user's mistake as one line with its place, in a script and in a notebook, instead of a traceback."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tuner.errors import RequestError, printable, say
from tuner.errors.users_code import place_raised

RENDER = "_render_traceback_"  # IPython shows what this attribute of an error returns, instead of the traceback


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Context manager: an uncaught error about a user's mistake that leaves it is shown as one line."""
    try:
        yield
    except (RequestError, ValueError, KeyboardInterrupt) as error:
        if str(error):  # Python's own KeyboardInterrupt has no text
            setattr(error, RENDER, rendered)
            if getattr(sys.excepthook, "func", None) is not _show:
                sys.excepthook = functools.partial(_show, sys.excepthook)
        raise


def rendered() -> list[str]:
    """Returns what IPython shows of the error that a cell has raised; a method of the error could not be pickled."""
    return [line_of(sys.last_value)]  # type: ignore[arg-type]


def line_of(error: BaseException) -> str:
    """Returns the error as one line that ends with the line of the user's code that raised it."""
    text, place = " ".join(str(error).split()), place_raised(error).strip()
    return printable(f"{type(error).__name__}: {text}{'' if place in text else f' {place}'}")


def _show(before: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an error marked by `in_one_line` on one line; passes other errors to the previous excepthook."""
    if hasattr(error, RENDER):
        say(line_of(error), to=sys.stderr)
    else:
        before(kind, error, trace)
