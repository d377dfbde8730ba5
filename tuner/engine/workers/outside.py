"""Notes which files outside its own folder a trial's Python code writes to, so that the search can tell about them."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
MAX_NOTED = 100  # paths of one trial
# Audit event -> the path whose content it changes, and whether it first empties the file; None if it changes none.
CONTENT: dict[str, Callable[..., tuple[Any, bool] | None]] = {
    "open": lambda path, mode, flags: (path, bool(flags & os.O_TRUNC)) if flags & WRITES else None,
    "os.truncate": lambda path, *_: (path, True),
    "tuner.write": lambda path: (path, True),  # raised by the functions of WRITERS
}
# Audit event -> the name that it adds or removes. A link of this name is not followed.
NAMES: dict[str, Callable[..., tuple[Any, bool] | None]] = {
    "os.mkdir": lambda path, *_: None if os.path.isdir(path) else (path, False),
    **dict.fromkeys(("os.symlink", "os.link"), lambda old, new, *_: (new, False)),
    **dict.fromkeys(("os.remove", "os.rmdir", "shutil.rmtree"), lambda path, *_: _lost(path)),
    "os.rename": lambda old, new, *_: (new, True),
}
# Module -> its function that writes a file without raising an audit event, and the position of its path argument.
WRITERS = {"torch.serialization": ("_open_zipfile_writer", 0), "safetensors.torch": ("serialize_file", 1)}
CACHES = ("TUNER_CACHE", "XDG_CACHE_HOME", "TORCH_HOME", "HF_HOME")  # variables that name a folder of downloads
_noted: Writes | None = None  # those of the trial that runs in this process


class Writes:
    """The writes of a trial: `outside` its folder `tree`, and the files in it that torch or safetensors has `saved`.

    `outside` maps a path to whether its earlier content is lost. It has no writes to the `experiment`, to `ignored`
    folders, caches and temporary folders. If such a folder has `start` in it, where the search was started, writes to
    `start` count.
    """

    def __init__(self, tree: str, start: str, experiment: str, *ignored: str) -> None:
        caches = [os.environ[name] for name in CACHES if os.environ.get(name)]
        places = [os.path.realpath(each) for each in (experiment, *ignored, *caches, tempfile.gettempdir())]
        folders = *(f"{each}/" for each in places), "/dev/", "/proc/", "/sys/", os.path.expanduser("~/.")
        self._tree, self._start = f"{tree}/", f"{start}/"
        self._around = tuple(each for each in folders if self._start.startswith(each))  # folders with `start` in them
        self._ignored = tuple(each for each in folders if each not in self._around)
        self.outside: dict[str, bool] = {}
        self.saved: set[str] = set()

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        by_name = event in NAMES
        if by_name and arguments[-1] not in (-1, None):
            return  # the path is relative to an open folder, as in `shutil.rmtree`, which has an event of its own
        if not (written := (NAMES if by_name else CONTENT)[event](*arguments)):
            return
        folder, name = os.path.split(os.path.abspath(os.fsdecode(written[0])))
        path = os.path.join(os.path.realpath(folder), name)
        path = path if by_name else os.path.realpath(path)
        if path.startswith(self._tree):
            self.saved |= {path} if event == "tuner.write" else set()
        elif not path.startswith(self._ignored) and (path.startswith(self._start) or not path.startswith(self._around)):
            if len(self.outside) < MAX_NOTED and "/__pycache__" not in path:
                self.outside[path] = self.outside.get(path, False) or written[1]


def _lost(path: Any) -> tuple[Any, bool] | None:
    return (path, True) if os.path.lexists(path) else None


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
    if _noted is None or event not in CONTENT and event not in NAMES and event != "import":
        return
    for name, (function, position) in WRITERS.items():
        original = getattr(sys.modules.get(name), function, None)
        if original is not None and not isinstance(original, functools.partial):
            setattr(sys.modules[name], function, functools.partial(_raising, original, position))
    if event != "import":
        with contextlib.suppress(OSError, ValueError, TypeError):  # the path is a file descriptor, or no path
            _noted.note(event, arguments)


_install_hook = functools.cache(lambda: sys.addaudithook(_hook))  # Python then calls it until the process ends


def _raising(original: Callable[..., Any], position: int, *arguments: Any, **named: Any) -> Any:
    sys.audit("tuner.write", *arguments[position : position + 1])
    return original(*arguments, **named)
