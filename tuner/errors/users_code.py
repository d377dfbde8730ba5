"""Finds the file and line of the user's code that defines a function, raised an error or is running."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

TUNER = str(Path(__file__).parent.parent) + os.sep
SCRIPTS = os.path.dirname(sys.executable) + os.sep  # where pip puts the command `tuner`
NOT_THE_USERS = ("<", TUNER, os.path.dirname(os.__file__) + os.sep, SCRIPTS)
FRAME = re.compile(r'^ *File "([^"\n]{1,1000})", line (\d{1,9}), in ', re.MULTILINE)  # a frame in a traceback
# A trial's own folder: `<temporary folder>/tuner-trial-1a2b3c4d/tree` + an absolute path shows what is at that path.
TRIAL_PREFIX, TRIAL_TREE = "tuner-trial-", "tree"
IN_TRIAL = re.compile(
    rf"(?:(?<![\w/.-])|(?<=:/)|(?<=://)|(?<=:///))(?:/[^/\s'\"]+)*/{TRIAL_PREFIX}[0-9a-f]+/{TRIAL_TREE}(?=/|\b)"
)
working_folder: Path | None = None  # where the search was started; set while this process is in a trial's own folder
_tree = ""  # the folder of the trial in this process
MOST_TRACEBACK = 100_000  # characters that `place_in` reads from the end of a printed traceback


def enter_trial(start: Path | None, tree: str) -> None:
    """Note that a trial runs in this process: it was started in the folder `start`, and `tree` shows it that folder."""
    global working_folder, _tree
    working_folder, _tree = start, tree


def leave_trial() -> None:
    enter_trial(None, "")


def entered() -> tuple[Path | None, str]:
    """Return what `enter_trial` was last called with."""
    return working_folder, _tree


def trial_path(path: str | Path) -> str:
    """Return the path at which the trial in this process finds a file of the user; without a trial, the same path."""
    return f"{_tree}{path}" if os.path.lexists(f"{_tree}{path}") else str(path)


def outside_trial(text: str) -> str:
    """Replace each path in a trial's own folder by that of the user's file."""
    return IN_TRIAL.sub("", text)


def keep_lines(error: BaseException) -> None:
    """Keep the lines of code that a traceback will show, because the trial's own folder is removed before."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if outside_trial(file) != file and (lines := linecache.getlines(file)):
            linecache.cache[file] = len(lines), None, lines, file  # without a time, Python does not check the file


def place_of(function: object) -> str:
    """Returns ` (file, line 7)`, where the user's code defines a function; an empty text if other code defines it."""
    while hasattr(function, "func"):  # unwraps functools.partial
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return _last_place([(code.co_filename, code.co_firstlineno)]) if code else ""


def place_in(printed: str) -> str:
    """Returns ` (file, line 12)`, the user's line that a printed traceback names last; empty if it names none."""
    return _last_place(FRAME.findall(printed[-MOST_TRACEBACK:]), shown=str)


def place_raised(error: BaseException | None) -> str:
    """Returns ` (file, line 7)`, the user's last line in the error's traceback, else in its cause's; empty if none."""
    if error is None:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    return _last_place((each.filename, each.lineno) for each in frames) or place_raised(error.__cause__)


def place_of_frame(frame: FrameType | None) -> str:
    """Returns ` (file, line 7)`, the user's line that a running frame is in or was called from; empty without one."""
    frames = [(each.f_code.co_filename, line) for each, line in traceback.walk_stack(frame)] if frame else []
    return _last_place(reversed(frames))


def _last_place(frames: Iterable[tuple[str, object]], shown: Callable[[str], str] | None = None) -> str:
    theirs = [(file, line) for file, line in ((outside_trial(f), n) for f, n in frames) if not is_foreign(file)]
    return f" ({(shown or shown_path)(theirs[-1][0])}, line {theirs[-1][1]})" if theirs else ""


def shown_path(file: str | Path | None) -> str:
    """Returns a path for an error text: relative if in the user's working folder; `Cell In[3]` for a notebook cell."""
    if cell := _cell(str(file)):
        return cell
    with contextlib.suppress(OSError, ValueError):  # the current folder is gone, or the file is elsewhere
        return str(Path(outside_trial(str(file or ""))).relative_to(working_folder or Path.cwd()))
    return str(file)


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame, running or of a traceback, runs because a module that is not the user's is being imported."""
    files = [each.f_code.co_filename for each, _ in traceback.walk_stack(frame)] if frame else []
    return any(file.startswith("<frozen importlib") for file in itertools.takewhile(is_foreign, files))


def innermost_frame(error: BaseException) -> FrameType | None:
    """Returns the frame that raised the error. Its `f_back` chain has importlib frames, which tracebacks omit."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return frames[-1] if frames else None


def is_tuners(error: BaseException) -> bool:
    """Whether tuner's own code raised an error; the text of such an error says what to do."""
    frame = innermost_frame(error)
    return frame is not None and frame.f_code.co_filename.startswith(TUNER)


def is_foreign(file: str) -> bool:
    """Whether a file belongs to tuner, to Python or to an installed package, and so is not the user's."""
    return file.startswith(NOT_THE_USERS) or "-packages/" in file


def with_cells(text: str) -> str:
    """Replaces the file that IPython makes for a notebook's cell by the cell's name: `(Cell In[3], line 1)`."""
    return re.sub(r"\((/[^()]+\.py), line", lambda match: f"({_cell(match[1]) or match[1]}, line", text)


def _cell(file: str) -> str:
    """Returns `Cell In[3]` if the file is a cell of this process's notebook; an empty text for other files."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return " ".join((shell and shell.compile.format_code_name(file)) or ())
