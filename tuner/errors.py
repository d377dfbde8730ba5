"""The one exception for a user's mistake: it becomes a line on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RequestError(Exception):
    """What was asked for cannot be done; the text says what was given, what is allowed and what to do.

    It is one line, whatever was given.
    """

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


def nearest(given: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known name is near."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
