"""Breaks printed lines at a terminal's width, colours them in a terminal, and limits the output of the user's code."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TextIO

MAX_PRINTED = 10 << 20  # bytes per stream that a trial may print after a start: 100,000 lines of 100 characters
MAX_SPACE_PRINTED = 1 << 20  # bytes per stream that a space's functions may print in a `bounded_output`: 10,000 lines
# A line's start: a label with spaces (`folder      results/lenet`) or an indent. Wrapped lines are indented to its end.
LABEL = re.compile(r"\S+(?: \S+)? {2,}| *")
# A text that the user may copy: a shell command or a Python call, from a line's label or a colon to the line's end.
COMMAND = re.compile(r"(?:^|(?<=: ))(?:(?:uv run )?python -m tuner[. ]|ray job submit |tuner\.\w+\(.*\)$).*")
# A word of such a command, which a line break never splits: an option with its value, or a quoted text, is one word.
WORD = re.compile(r"""(?:-\S+ (?!-))?(?:'[^']*'|"[^"]*"|[^\s'"])+""")
GAP = "\0"  # replaces a space at which a line must not be broken; printable texts have no such character
BOLD, RED, GREEN, YELLOW, CYAN, FAINT = "1", "31", "32", "33", "36", "2"  # codes in the escape sequence (ECMA-48)
HEADS = ((r"tuner: error:|failed  +", RED), (r"NOTE:|!!!", YELLOW), (r"best  +", f"{BOLD};{GREEN}"), (r"\S+  +", BOLD))


def is_steerable(stream: TextIO) -> bool:
    """Whether a stream writes to a terminal that understands control sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; False for IPython in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def has_colours(stream: TextIO) -> bool:
    """Whether to colour what a stream writes: in a terminal that has colours, unless the user has set NO_COLOR."""
    return is_steerable(stream) and not os.environ.get("NO_COLOR")


def shown(line: str, stream: TextIO) -> list[str]:
    """Returns the lines that show a line in a stream: a terminal gets lines of its width; the start may be coloured."""
    if not stream.isatty():
        return [line]
    lines = fitted(line, shutil.get_terminal_size().columns)
    return [with_head(lines[0]), *lines[1:]] if has_colours(stream) else lines


def fitted(line: str, width: int) -> list[str]:
    """Breaks a line of more than `width` characters between its words.

    The user can still copy from it: a shell command starts a new line, and a backslash ends each of its lines but the
    last; a path or address that is wider than the terminal is not broken.
    """
    if len(line) <= width:
        return [line]
    match = LABEL.match(line)
    label = match[0] if match else ""
    text, indent = line[len(label) :], " " * (len(label) or 2)
    command = COMMAND.search(text)
    if command and command.start():
        before = (label + text[: command.start()]).rstrip()
        return [*fitted(before, width), *fitted(indent + command[0], width)]
    joint = " \\" if command and not text.startswith("tuner.") else ""
    words = [word.replace(" ", GAP) for word in WORD.findall(text)] if command else text.split()
    room, longest = width - len(joint), max(map(len, words), default=0)
    indent += "  " if command and label.strip() else ""
    if len(indent) + longest > room:
        indent = ""  # so that a long word has the whole width
    lines = textwrap.wrap(
        " ".join(words),
        room,
        initial_indent=label if len(label) + len(words[0]) <= room else indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [f"{each}{joint}".replace(GAP, " ") for each in lines[:-1]] + [lines[-1].replace(GAP, " ")]
    return lines if lines[0].startswith(label) or not label.strip() else [label.rstrip(), *lines]


def painted(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m"


def with_head(line: str) -> str:
    """Colours the start of a line if it matches one of HEADS: a label, or a word such as `NOTE:`."""
    for head, colour in HEADS:
        if match := re.match(head, line):
            return painted(match[0], colour) + line[match.end() :]
    return line


class Bounded:
    """A replacement for a stream's `write`: passes on `most_bytes` of text, then writes one note and drops the rest."""

    def __init__(self, write: Callable[[str], Any], most_bytes: int = MAX_PRINTED, whose: str = "a trial") -> None:
        self._write, self._left = write, most_bytes
        self._note = cut_after(most_bytes, whose)

    def __call__(self, text: str) -> int:
        if self._left > 0:
            self._left -= len(text.encode(errors="replace"))
            if_there_is_room(self._write, text if self._left >= 0 else text[: self._left])
            if self._left <= 0:
                if_there_is_room(self._write, self._note)
        return len(text)


def cut_after(most_bytes: int, whose: str = "a trial") -> str:
    return f"\n[what follows was not kept: the output of {whose} is cut after {most_bytes:,} bytes]\n"


def if_there_is_room(write: Callable[..., Any], *text: str) -> None:
    """Calls a stream's `write` or `flush`; ignores OSError: on a full disk, a trial loses its output and continues."""
    with contextlib.suppress(OSError):
        write(*text)


@contextlib.contextmanager
def bounded_output() -> Iterator[None]:
    """Limits what the space's functions print in the `with` block to stdout and to stderr: MAX_SPACE_PRINTED each."""
    with contextlib.ExitStack() as stack:
        for stream in (sys.stdout, sys.stderr):
            stack.callback(setattr, stream, "write", stream.write)
            stream.write = Bounded(stream.write, MAX_SPACE_PRINTED, "the space's functions")  # type: ignore[method-assign]
        yield
