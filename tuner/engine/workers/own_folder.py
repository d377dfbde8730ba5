"""Runs a trial in a folder of its own, with links to the files in and around the folder where the search was started.

The trial's process changes into the folder, so a relative path of any code leads there. Before Python code writes
through a link, an audit hook replaces it: by a new folder with links to the same files, or by a copy of the file. So
relative paths change no files outside, except in C++ code, in other programs and in folders with over 10,000 entries.

Data is shared instead: a folder with `data` or `cache` in its name stays a link. New files and folders with such names
are moved out of the folder at the trial's first report and, unless the trial failed, at its end, for later trials.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tuner.errors import users_code
from tuner.record.storage.files import exchanged
from tuner.record.storage.trial_files import FILES, RUNNING

LEVELS = 2  # how many folders above the working folder a trial finds by `..`
MOST_LINKS = 10_000  # the most entries of a folder that are shown by links; a link takes 10 us on a local disk
LEAVES_S = 2.0  # seconds that a worker, before it ends, waits for its trial; Ray waits as long before the next trial
SHARED = re.compile(r"(^|[^a-z])(data|datasets?|cache)([^a-z]|$)")  # in a lower-case name, such as `.cache`, `raw_data`
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _parent(path: Any) -> str:
    return os.path.dirname(os.fsdecode(path))


# Audit event -> the paths that the event is about, and whether the content at each path is still needed.
EVENTS: dict[str, Callable[..., list[tuple[Any, bool]]]] = {
    "import": lambda *_: [],
    "tuner.write": lambda path: [(path, False)],  # raised by the functions of WRITERS
    "open": lambda path, mode, flags: [(path, not flags & os.O_TRUNC)] if flags & WRITES else [],
    "os.mkdir": lambda path, *_: [(path, True)],  # also if the folder exists: the script is about to write there
    "os.rename": lambda old, new, *_: [(old, True), (_parent(new), True)],
    "os.remove": lambda path, *_: [(_parent(path), True)],
    "os.rmdir": lambda path, *_: [(path, True)],
    "os.link": lambda old, new, *_: [(old, True), (_parent(new), True)],
    "os.symlink": lambda old, new, *_: [(_parent(new), True)],
    "os.truncate": lambda path, *_: [(path, True)],
    "os.chdir": lambda path: [(path, True)],
    "shutil.rmtree": lambda path, *_: [(path, True)],
    "sqlite3.connect": lambda path: [(path, True)],
}
# Module -> its function that writes a file without raising an audit event, and the position of its path argument.
WRITERS = {"torch.serialization": ("_open_zipfile_writer", 0), "safetensors.torch": ("serialize_file", 1)}

_own: OwnFolder | None = None  # folder of the trial that runs in this process
_left = threading.Event()  # whether no trial runs in a folder of its own
_left.set()
_thread = threading.local()  # `busy`: whether this thread is replacing a link


@contextlib.contextmanager
def own_folder(trial: Path, *, is_new: bool) -> Iterator[None]:
    """Runs a `with` block in the trial's own folder, below Ray's folder `trial`; empties it first if `is_new`."""
    global _own
    own = OwnFolder(trial)
    if not own.open(is_new):
        print(f"{own.start} is unreadable or too full, so the trial has no folder of its own", file=sys.stderr)
        yield
        return
    _install_hook()
    _left.clear()
    os.chdir(own.here)
    users_code.working_folder = own.start
    _own = own
    ended_well = True  # after an error, a download may be incomplete: data is not shared
    try:
        yield
    except BaseException as error:  # SystemExit(0): Ray has stopped the trial
        ended_well = not isinstance(error, Exception) and not getattr(error, "code", None)
        raise
    finally:
        _own = users_code.working_folder = None
        os.chdir(own.start)
        try:
            own.close(share=ended_well)
        except OSError as error:
            print(f"the trial's own folder could not be put in order: {error}", file=sys.stderr)
        finally:
            _left.set()


def share_data() -> None:
    """Moves the trial's new data out of its folder, to where trials that start from now on find it."""
    if _own is not None:
        _own.share(_move_used)


def await_left() -> None:
    """Waits until the trial in this process has left its folder, at most LEAVES_S, before Ray ends the process."""
    _left.wait(LEAVES_S)


class OwnFolder:
    """The folder `here`, where a trial runs, links to what is in `start`; its parent folders link to what is above."""

    def __init__(self, trial: Path) -> None:
        self.start = Path.cwd()
        self._base = [self.start, *self.start.parents][: LEVELS + 1][-1]
        self._trial = trial.resolve()  # a process gets its working folder's path without links
        self._root = self._trial / RUNNING
        self.here = self._root / self.start.relative_to(self._base)
        self._results = self._trial.parents[2]  # `trial` is <results>/<experiment>/ray/<trial>
        # Folders made anew, with a link to each entry. The results are not shown: they contain this folder.
        self._way = {self.start, *self.start.parents, *self._results.parents}

    def open(self, is_new: bool) -> bool:
        """Creates the folder, or restores it unless `is_new`; False if `start` is unreadable or beyond MOST_LINKS."""
        if _listed(self.start) is None:
            return False
        if is_new:
            shutil.rmtree(self._root, ignore_errors=True)
            shutil.rmtree(self._trial / FILES, ignore_errors=True)
        elif (self._trial / FILES).is_dir() and not self._root.exists():
            self.here.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self._trial / FILES, self.here)
        self._remove_links()  # left by a killed trial; in a copied experiment they may lead anywhere
        self._trial.mkdir(parents=True, exist_ok=True)
        self._show(self._base, self._root)
        return True

    def _show(self, real: Path, shown: Path) -> None:
        """Creates the folder `shown` with links to what is in `real`."""
        shown.mkdir(exist_ok=True)
        for name in _listed(real) or ():
            if real / name not in self._way and real / name != self._results and not os.path.lexists(shown / name):
                os.symlink(real / name, shown / name)
        for each in self._way:
            if each.parent == real and each != real and each.is_dir():
                self._show(each, shown / each.name)

    def claim(self, path: Any, *, keep: bool) -> None:
        """Replaces tuner's links on a path, except to data, so that writes stay here; copies a file only if `keep`."""
        whole = os.path.abspath(os.fsdecode(path))
        if not whole.startswith(f"{self._root}{os.sep}"):
            return
        shown, real = self._root, self._base
        for part in Path(whole).relative_to(self._root).parts:
            shown, real = shown / part, real / part
            if not shown.is_symlink():
                continue
            if os.readlink(shown) != str(real):
                return  # the trial's own link
            aside = shown.with_name(f".{part}.{os.getpid()}")
            if real.is_dir():
                if is_shared(part) or _listed(real) is None:
                    return
                self._show(real, aside)
                shown.unlink()
                aside.rename(shown)
            elif keep and real.exists():
                if real.is_file():
                    shutil.copy2(real, aside)
                    aside.replace(shown)
            else:
                shown.unlink()

    def close(self, *, share: bool) -> None:
        """Removes the links; renames the folder to `files`; first moves new data outside if `share`."""
        if share:
            self.share(_move)
        self._remove_links()
        self.here.mkdir(parents=True, exist_ok=True)
        os.rename(self.here, self._trial / FILES)
        self._remove_links()
        if self._root.exists():
            os.rename(self._root, self._trial / FILES / "above")  # what the trial wrote by `../`

    def _remove_links(self) -> None:
        """Removes empty folders, and all links that lead out of the folder, also those that the trial made."""
        root = f"{self._root}{os.sep}"
        for folder, folders, names in os.walk(self._root, topdown=False):
            for path in (os.path.join(folder, name) for name in (*folders, *names)):  # 25 us a link; 50 with Path
                if os.path.islink(path) and not f"{os.path.realpath(path)}{os.sep}".startswith(root):
                    os.unlink(path)
            with contextlib.suppress(OSError):
                os.rmdir(folder)  # if it is empty

    def share(self, move: Callable[[Path, Path], None]) -> None:
        """Calls `move` with the path of each new file or folder of data, and with its future path outside."""
        for folder, folders, names in os.walk(self._root):
            for name in (*folders, *names):
                if is_shared(name) and not (path := Path(folder, name)).is_symlink():
                    with contextlib.suppress(OSError):  # no permission, or another trial moved its copy first
                        move(path, self._base / path.relative_to(self._root))
            folders[:] = [name for name in folders if not is_shared(name)]


def is_shared(name: str) -> bool:
    return SHARED.search(name.lower()) is not None


def _move_used(source: Path, target: Path) -> None:
    """Moves new data that a trial may be reading, and leaves a link, in one step; if it cannot, does nothing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    os.symlink(target, target)  # raises FileExistsError if another trial was earlier
    if not exchanged(source, target):  # two disks, or a disk that cannot exchange: `close` moves it
        target.unlink()


def _move(source: Path, target: Path) -> None:
    """Moves a file or folder to the shared place; merges folders, replaces no file, deletes the rest of a folder."""
    if not os.path.lexists(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            aside = target.with_name(f".{target.name}.{os.getpid()}")  # other trials see all of it or nothing
            shutil.move(source, aside)
            os.rename(aside, target)
    elif source.is_dir() and target.is_dir():
        for name in os.listdir(source):
            _move(source / name, target / name)
    if source.is_dir():
        shutil.rmtree(source, ignore_errors=True)


def _listed(folder: Path) -> list[str] | None:
    """Returns the names in a folder; None if they are too many, or the folder cannot be read."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MOST_LINKS + 1)]
    except OSError:
        return None
    return names if len(names) <= MOST_LINKS else None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    own = _own
    if own is None or event not in EVENTS or getattr(_thread, "busy", False):
        return
    _thread.busy = True
    try:
        _wrap_writers()
        with contextlib.suppress(OSError, ValueError, TypeError):  # the link cannot be replaced, or `path` is no path
            for path, keep in EVENTS[event](*arguments):
                own.claim(path, keep=keep)
    finally:
        _thread.busy = False


_install_hook = functools.cache(lambda: sys.addaudithook(_hook))  # Python then calls it until the process ends


def _wrap_writers() -> None:
    """Makes the functions of WRITERS whose modules are loaded raise an audit event with the path before they write."""
    for name, (function, position) in WRITERS.items():
        original = getattr(sys.modules.get(name), function, None)
        if original is not None and not isinstance(original, functools.partial):
            setattr(sys.modules[name], function, functools.partial(_raising, original, position))


def _raising(original: Callable[..., Any], position: int, *arguments: Any, **named: Any) -> Any:
    sys.audit("tuner.write", *arguments[position : position + 1])
    return original(*arguments, **named)
