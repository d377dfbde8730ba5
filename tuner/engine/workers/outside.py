"""Records which files outside its own folder a trial's Python code writes to; the search prints them.

They are recorded in a file, so that those of a killed trial and of the processes that a trial forks are known, too,
except changes of an SQLite database, which show only at the trial's own end.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from tuner.record.storage.trial_files import DATA

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
MAX_NOTED = 100  # paths of one trial
Lost = list[tuple[Any, bool]]  # paths that a call writes to, and whether the earlier content is lost
# Audit event -> what it changes behind a path.
CONTENT: dict[str, Callable[..., Lost]] = {
    "open": lambda path, mode, flags: [(path, bool(flags & os.O_TRUNC))] if flags & WRITES else [],
    "os.truncate": lambda path, *_: [(path, True)],
    **dict.fromkeys(("os.chmod", "os.chown", "os.utime"), lambda path, *_: [(path, False)]),
    "tuner.write": lambda path: [(path, True)],  # raised by the functions of WRITERS
}
# Audit event -> the names that it adds or removes. A link of such a name is not followed.
NAMES: dict[str, Callable[..., Lost]] = {
    "os.mkdir": lambda path, *_: [] if os.path.isdir(path) else [(path, False)],
    **dict.fromkeys(("os.symlink", "os.link"), lambda old, new, *_: [(new, False)]),
    **dict.fromkeys(("os.remove", "os.rmdir", "shutil.rmtree"), lambda path, *_: [(path, True)]),
    "os.rename": lambda old, new, *_: [(old, True), (new, True)],
}
# Module -> its function that writes a file without raising an audit event, and the position of its path argument.
WRITERS = {"torch.serialization": ("_open_zipfile_writer", 0), "safetensors.torch": ("serialize_file", 1)}
HEARD = {*CONTENT, *NAMES, "sqlite3.connect", "import"}
CACHES = ("TUNER_CACHE", "XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME")  # variables that name a folder of downloads
_noted: Writes | None = None  # those of the trial that runs in this process


class Writes:
    """The writes of a trial outside its folder `tree`, and the files in it that torch or safetensors has `saved`.

    The file `record` lists the writes outside, for `recorded`, except those to the `experiment`, to `ignored` folders,
    caches, temporary folders and hidden folders of the home. If such a folder has `start` in it, where the search was
    started, writes to `start` count.
    """

    def __init__(self, record: str, tree: str, start: str, experiment: str, *ignored: str) -> None:
        caches = [os.environ[name] for name in CACHES if os.environ.get(name)]
        places = [os.path.realpath(each) for each in (experiment, *ignored, *caches, tempfile.gettempdir())]
        hidden = os.path.realpath(os.path.expanduser("~")) + "/."
        folders = *(f"{each}/" for each in places), "/dev/", "/proc/", "/sys/", hidden
        self._record, self._tree, self._start = record, f"{tree}/", f"{start}/"
        self._around = tuple(each for each in folders if self._start.startswith(each))  # folders with `start` in them
        self._ignored = tuple(each for each in folders if each not in self._around)
        self._shared = f"{places[0]}/{DATA}/"  # the data of all trials; a write there changes it for the others
        self._outside: dict[str, bool] = {}  # path -> whether its earlier content is lost
        self.saved: set[str] = set()
        self._databases: dict[str, tuple[int, int] | None] = {}  # path -> size and modification time when it was opened

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect":  # it may only read: `end` compares
            path = re.sub(r"^file:([^?]*).*", r"\1", os.fsdecode(arguments[0]))
            self._databases.setdefault(os.path.realpath(path), _mark(path))
        elif event in CONTENT:
            for path, lost in CONTENT[event](*arguments):
                real = os.path.realpath(os.fsdecode(path))
                self.saved |= {real} if event == "tuner.write" else set()
                self._add(real, lost)
        elif arguments[-1] in (-1, None):  # else relative to an open folder, as in `shutil.rmtree`, which has an event
            for path, lost in NAMES[event](*arguments):
                folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
                if os.path.lexists(path) or not lost or event == "os.rename":
                    self._add(os.path.join(os.path.realpath(folder), name), lost, is_folder=event == "os.mkdir")

    def _add(self, path: str, lost: bool, *, is_folder: bool = False) -> None:
        # A hidden file of the home, such as ~/.bashrc, is in no hidden folder.
        folder = f"{path if is_folder else os.path.dirname(path)}/"
        is_ignored = folder.startswith((self._tree, *self._ignored)) and not path.startswith(self._shared)
        if is_ignored or "/__pycache__" in path or path == self._record:
            return
        if not path.startswith(self._start) and folder.startswith(self._around) or len(self._outside) >= MAX_NOTED:
            return
        if lost > self._outside.get(path, -1):  # it is new, or its content is lost only now
            with contextlib.suppress(OSError):  # of a full disk, for which the trial's files are not given up
                with open(self._record, "a") as record:  # at once: the trial's process may be killed
                    record.write(json.dumps([path, lost]) + "\n")
                self._outside[path] = lost

    def end(self) -> None:
        """Record the databases that have changed."""
        for path, before in self._databases.items():
            if _mark(path) != before:
                self._add(path, lost=False)


def recorded(record: str) -> dict[str, bool]:
    """Return the paths in a record of `Writes`, at most MAX_NOTED, and whether the earlier content of each is lost."""
    outside = dict[str, bool]()
    with contextlib.suppress(OSError), open(record) as lines:
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):  # a killed process may have left half a line
                path, lost = json.loads(line)
                if path in outside or len(outside) < MAX_NOTED:
                    outside[str(path)] = outside.get(path, False) or bool(lost)
    return outside


def _mark(path: str) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        return (status := os.stat(path)).st_size, status.st_mtime_ns
    return None


@contextlib.contextmanager
def noted(writes: Writes) -> Iterator[None]:
    global _noted
    _install_hook()
    _noted = writes
    try:
        yield
    finally:
        _noted = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    writes = _noted  # another thread may end the trial meanwhile
    if writes is None or event not in HEARD:
        return
    for name, (function, position) in WRITERS.items():
        original = getattr(sys.modules.get(name), function, None)
        if original is not None and not isinstance(original, functools.partial):
            setattr(sys.modules[name], function, functools.partial(_raising, original, position))
    if event != "import":
        with contextlib.suppress(OSError, ValueError, TypeError):  # the path is a file descriptor, or no path
            writes.note(event, arguments)


_install_hook = functools.cache(lambda: sys.addaudithook(_hook))  # Python then calls it until the process ends


def _raising(original: Callable[..., Any], position: int, *arguments: Any, **named: Any) -> Any:
    sys.audit("tuner.write", *arguments[position : position + 1])
    return original(*arguments, **named)
