"""Defines RequestError, the exception for a user's mistake: a command prints it as one line and exits with code 2.

The module also makes texts safe to print, because an error text may quote a user's file or name.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import logging
import os
import re
import stat
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, TextIO

from tuner.errors.output import shown

logger = logging.getLogger(__name__)
# An out-of-memory error contains one of these texts: the first on CUDA, the second in cuBLAS, the third on the CPU.
OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator")
MOST_NEAR = 200  # `nearest` ignores names of more characters: a name's prefixes take memory of its length squared
REWORDED = {  # pattern of an error text of argparse -> the text that the user gets instead
    r"argument (--\S+): invalid int value: '(.*)'": r"\1 \2: must be a whole number",
    r"argument (--\S+): invalid float value: '(.*)'": r"\1 \2: must be a number",
    r"argument (--\S+): invalid choice: '(.*)' \(choose from (.*)\)": r"\1 \2: must be one of \3",
    r"argument (--(point|prior|stop)): expected at least one argument": r"\1: needs values; write it as \1 name=value",
    r"argument (--\S+): expected (at least )?one argument": r"\1: needs a value",
    r"the following arguments are required: (.*)": r"give \1",
}


class RequestError(Exception):
    """The request cannot be fulfilled; the text is one printable line: what was given, what is allowed, what to do."""

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().splitlines()))


class InterruptedEarly(KeyboardInterrupt):
    """The user interrupted an import or a search that has no folder: not yet, or not any more. The text says which."""


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises a RequestError for a wrong command line, instead of printing and exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.register("action", None, Once)

    def parse_args(self, args: Any = None, namespace: Any = None) -> argparse.Namespace:  # type: ignore[override]
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            raise RequestError(self.unknown(unknown))
        return given

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        words = sys.argv[1:] if args is None else args
        words = [re.sub(r"^--[^=]+", lambda match: match[0].replace("_", "-"), word) for word in words]
        return super().parse_known_args(words, namespace)

    def unknown(self, words: Sequence[str], otherwise: str = " of this command") -> str:
        """Returns the error text for words that belong to no option; it names the nearest option if one is near."""
        if not words[0].startswith("-"):
            return f"{words[0]}: belongs to no option; write a value with spaces in quotes"
        texts = []
        for word in (word for word in words if word.startswith("-")):
            hint = nearest(word, self._option_string_actions) if len(word) > len("--lr") else ""
            texts.append(f"{word}: is no option{hint or otherwise}")
        return f"{'; '.join(dict.fromkeys(texts))} (see --help)"

    def error(self, message: str) -> NoReturn:
        for pattern, words in REWORDED.items():
            message = re.sub(pattern, words, message)
        raise RequestError(f"{message} (see --help)")


class Once(argparse.Action):
    """Stores an option's value; refuses an option that is given twice, where argparse would silently use the last."""

    given: Any  # the option's value; the attribute is missing until the command line gives the option

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if hasattr(self, "given"):
            raise RequestError(f"{option_string} is given twice, with {self.given} and with {values}: give it once")
        self.given = values
        setattr(namespace, self.dest, values)


def printable(text: str) -> str:
    """Escapes unprintable characters, also line ends, to texts such as `\\x1b`, because they can steer a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


@contextlib.contextmanager
def blamed(folder: str) -> Iterator[None]:
    """Turns any exception but a RequestError into a RequestError that names the folder; logs a traceback as DEBUG."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        logger.debug("%s", printable(folder), exc_info=True)
        raise RequestError(f"{folder} cannot be read: {type(error).__name__}: {error}"[:1000]) from error


def failed(error: Exception) -> int:
    """Prints an error as one line (for an OSError, file and reason); returns 2, the exit code of a wrong request."""
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename or 'a file'}: {error.strerror or error}; the command could not finish"
    say(f"tuner: error: {RequestError(text)}", to=sys.stderr)
    return 2


def say(*lines: str, to: TextIO | None = None) -> None:
    """Prints lines to stdout or the stream `to`; escapes unprintable characters, breaks lines at a terminal's width."""
    stream = to or sys.stdout
    if stream is not None and not stream.closed:  # None: the program was started without it
        write("".join(f"{part}\n" for line in lines for part in shown(printable(line), stream)), stream)


def write(text: str, stream: TextIO) -> None:
    """Writes a text to a stream, whose encoding may lack characters; a stream that cannot be written ends no search.

    If stdout is a full disk or a pipe that its reader has closed, what follows is not printed.
    """
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError as error:  # nothing of the text was written
            stream.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        stream.flush()
    except OSError as error:
        if error.errno == errno.EIO:  # the terminal was closed
            leave_terminal()
        elif stream is sys.stdout:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")
            if error.errno != errno.EPIPE:  # closing the pipe was the reader's wish, such as `head`'s
                say(f"tuner: stdout cannot be written ({error.strerror}); what follows is not printed", to=sys.stderr)


def open_streams() -> None:
    """Make a command's stdout and stderr writable: text that their encoding lacks is escaped, as `\\xfc`.

    A closed descriptor is opened, or else the first file that the command opens would take its number and its output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(number, True)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        getattr(sys, name).reconfigure(errors="backslashreplace")


def leave_terminal() -> None:
    """Redirects stdout and stderr to /dev/null if they are a terminal that was closed: each write would raise EIO."""
    for number in (1, 2):
        with contextlib.suppress(OSError), open(os.devnull, "w") as nowhere:  # OSError: the descriptor is closed
            if stat.S_ISCHR(os.fstat(number).st_mode) and not os.isatty(number):
                os.dup2(nowhere.fileno(), number)


def leave(code: int) -> NoReturn:
    """Ends the process without Python's clean-up, which takes 1.9 s with torch and Ray, 19 s with 1.2 GB of data."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    # Python's clean-up would remove temporary folders first; an import of W&B makes two.
    weakref.finalize._exitfunc()  # type: ignore[attr-defined]
    os._exit(code)


class PrintableFormatter(logging.Formatter):
    """Escapes unprintable characters of log records as `say` does, but keeps their line ends."""

    def format(self, record: logging.LogRecord) -> str:
        lines = map(printable, super().format(record).split("\n"))
        return "\n".join(part for line in lines for part in shown(line, sys.stderr))


if logging.lastResort:  # Python's default handler, which prints warnings; tuner's commands add no other
    logging.lastResort.setFormatter(PrintableFormatter())


def nearest(given: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` with the nearest known name; an empty text if none is near or `given` is long."""
    names = [name for name in known if max(len(name), len(given)) <= MOST_NEAR]
    short = [name for name in names if given in _shortened(name) or name in _shortened(given)]
    close = difflib.get_close_matches(given, names, n=1) or short
    return f"; did you mean {close[0]!r}?" if close else ""


def _shortened(name: str) -> set[str]:
    """Returns the usual short forms of a name, such as `lr` for `learning_rate` and `acc` for `accuracy`."""
    initials = "".join(word[:1] for word in name.split("_"))
    return {initials if "_" in name else name, *(name[:end] for end in range(3, len(name)))}
