"""Runs a trial in a folder of its own, below the node's folder of temporary files: `surroundings` says what is there.

Nothing is intercepted: Python code, C++ code and child programs find the same copies and links. At the trial's end,
what it wrote moves to `files/` in its folder of the results.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tuner.engine.workers.outside import Writes, noted
from tuner.engine.workers.surroundings import LEVELS, YOURS, surroundings_of
from tuner.errors import users_code
from tuner.record.storage import trial_files
from tuner.record.storage.made import MadeFolder, stale_folders, temporary_folder
from tuner.record.storage.trial_files import FILES, MIN_SHARED_BYTES, mark

PREFIX = users_code.TRIAL_PREFIX
PLAN = "plan.json"  # in the temporary folder: what `Shown` says, so that another process can save the trial's files
IMPORTABLE = (
    ".py",
    ".pyc",
    ".so",
    ".pth",
)  # saved files that are not put back: a folder of results may be a stranger's
LEAVES_S = 2.0  # seconds that a worker, before it ends, waits for its trial; Ray waits as long before the next trial
ENDS_S = 5.0  # maximum seconds that `save_all` waits for processes that Ray has killed
_left = threading.Event()  # whether no trial runs in a folder of its own
_left.set()
first_report_at: float | None = None  # when the trial in this process first reported, unix s


@contextlib.contextmanager
def own_folder(trial: Path, *, is_new: bool, script: Path | None = None, ignored: str = "") -> Iterator[None]:
    """Run a `with` block in a folder of the trial's own.

    Args:
        trial: the trial's folder in the results, `<experiment>/ray/<trial>`.
        is_new: whether the trial starts anew; otherwise the files that it wrote before are put back.
        script: the file that the trial runs, if it is a script.
        ignored: a folder of data, in which writes are not told.

    Raises:
        UnshowableError: the start folder cannot be read or has too many entries.
    """
    global first_report_at
    trial.mkdir(parents=True, exist_ok=True)
    start, first_report_at = Path.cwd(), None
    save_stale(trial)
    made = temporary_folder(PREFIX)
    shown = Shown(str(trial.resolve()), str(start), str(made.path.resolve() / users_code.TRIAL_TREE))
    shown.fill(is_new, script, made)
    writes = Writes(shown.tree, shown.start, shown.experiment, *filter(None, [ignored]))
    _left.clear()
    ended_well = True  # after an error, a download may be incomplete, so that no data is shared
    try:
        os.chdir(shown.tree + shown.start)
        users_code.enter_trial(start, shown.tree)
        with noted(writes):
            yield
    except BaseException as error:  # SystemExit(0): Ray has stopped the trial
        ended_well = not isinstance(error, Exception) and not getattr(error, "code", None)
        users_code.keep_lines(error)
        raise
    finally:
        users_code.leave_trial()
        os.chdir(start)
        try:
            shown.save(writes, ended_well=ended_well)
            made.remove()
        except OSError as error:
            print(f"what the trial wrote could not be saved ({error}); it is in {shown.tree}", file=sys.stderr)
        finally:
            _left.set()


def reported() -> None:
    """Note the time of the trial's first report: data that is shared with other trials was complete before it."""
    global first_report_at
    first_report_at = first_report_at or time.time()


def await_left() -> None:
    """Wait until the trial in this process has left its folder, at most LEAVES_S, before Ray ends the process."""
    _left.wait(LEAVES_S)


def save_stale(trial: Path | None = None) -> None:
    """Save the files of killed trials on this node and remove their temporary folders; only of `trial`, if given."""
    for made in stale_folders(Path(tempfile.gettempdir()), PREFIX):
        try:
            shown = Shown(**json.loads((made.path / PLAN).read_bytes()))
        except (OSError, ValueError, TypeError):  # its worker was killed before the trial began
            made.remove()
            continue
        if trial is None or shown.trial == str(trial.resolve()):
            if os.path.isdir(shown.trial):
                shown.save(None, ended_well=False)
            made.remove()


def save_all(experiment: Path) -> None:
    """Save the files of an experiment's killed trials on this node, once their processes have ended."""
    until, ours = time.monotonic() + ENDS_S, str(experiment.resolve())
    while True:
        save_stale()
        plans = Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{PLAN}")
        if not any(ours in plan.read_text() for plan in plans) or time.monotonic() > until:
            return
        time.sleep(0.05)


@dataclass
class Shown:
    """What a trial finds in its folder. The folder's `tree` + an absolute path shows what is at that path."""

    trial: str
    start: str
    tree: str
    copies: dict[str, list[int]] = field(default_factory=dict)  # absolute path -> `mark` of the copy
    links: dict[str, str] = field(default_factory=dict)  # absolute path -> target
    folders: list[str] = field(default_factory=list)
    saved: list[str] = field(default_factory=list)  # paths of `copies` that the trial itself wrote before

    @property
    def experiment(self) -> str:
        return os.path.dirname(os.path.dirname(self.trial))

    @property
    def base(self) -> str:
        return str([Path(self.start), *Path(self.start).parents][: LEVELS + 1][-1])

    def fill(self, is_new: bool, script: Path | None, made: MadeFolder) -> None:
        """Make the folders, copies and links; put back what the trial wrote before unless it `is_new`."""
        around = surroundings_of(Path(self.start), script, Path(self.experiment))
        written = trial_files.begin(Path(self.trial), is_new=is_new)
        self.folders = around.folders
        for folder in self.folders:
            os.makedirs(self.tree + folder, exist_ok=True)
        for path in around.copies:
            with contextlib.suppress(FileNotFoundError):  # the user has just removed it
                self.copies[path] = _copy(path, self.tree + path)
        for name in written.files:
            source, path = f"{self.trial}/{FILES}/{name}", self._place(name)
            if not name.endswith(IMPORTABLE) and os.path.isfile(source):
                os.makedirs(os.path.dirname(self.tree + path), exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.tree + path)
                self.copies[path] = _copy(source, self.tree + path)
                self.saved.append(path)
                around.links.pop(path, None)
        shows = {*around.folders, *around.copies}
        for path, why in around.links.items():
            real = os.path.realpath(path) if why == YOURS else path
            self.links[path] = self.tree + real if real in shows else real
            os.symlink(self.links[path], self.tree + path)
        for place, target in trial_files.shared(Path(self.experiment)):
            path = os.path.join(self.base, place)
            if not os.path.lexists(self.tree + path):
                self.links[path] = target
                os.makedirs(os.path.dirname(self.tree + path), exist_ok=True)
                os.symlink(target, self.tree + path)
        with open(made.path / PLAN, "w") as file:
            json.dump(asdict(self), file)

    def save(self, writes: Writes | None, *, ended_well: bool) -> None:
        """Move what the trial wrote to its folder in the results, and large new data to that of all trials."""
        wrote, found = dict[str, str](), set[str]()
        known = set(self.folders)
        for folder, folders, names in os.walk(self.tree):
            for name in [name for name in folders if not os.path.islink(f"{folder}/{name}")]:
                path = f"{folder}/{name}".removeprefix(self.tree)
                if name == "__pycache__" or (ended_well and path not in known and self._is_shared(path, writes)):
                    folders.remove(name)
            names += [name for name in folders if os.path.islink(f"{folder}/{name}")]
            for name in names:
                path, source = f"{folder}/{name}".removeprefix(self.tree), f"{folder}/{name}"
                found.add(path)
                status = os.lstat(source)
                if os.path.islink(source):
                    target = os.readlink(source)
                    if self.links.get(path) == target or not self._is_inside(source, target):
                        continue
                    if os.path.isabs(target):
                        os.unlink(source)
                        os.symlink(os.path.relpath(target, folder), source)
                elif self.copies.get(path) == mark(status) or not os.path.isfile(source):
                    continue
                wrote[self._name(path)] = source
        deleted = [self._name(path) for path in self.saved if path not in found]
        outside = dict(writes.outside) if writes else {}
        trial_files.end(Path(self.trial), wrote, deleted, outside)

    def _is_inside(self, source: str, target: str) -> bool:
        """Whether a link that the trial made leads to something in the start folder."""
        whole = os.path.normpath(os.path.join(os.path.dirname(source), target))
        return whole.startswith(f"{self.tree}{self.start}/")

    def _is_shared(self, path: str, writes: Writes | None) -> bool:
        """Move a folder to the data that all trials share, if it is large and looks like data; return whether it does.

        Data is complete before the first report, and torch has saved no model in it.
        """
        folder, base = self.tree + path, f"{self.base}/".replace("//", "/")
        if not path.startswith(base) or (writes and any(f"{each}".startswith(f"{folder}/") for each in writes.saved)):
            return False
        size, newest = 0, 0.0
        for place, _, names in os.walk(folder):
            for name in names:
                status = os.lstat(os.path.join(place, name))
                size, newest = size + status.st_size, max(newest, status.st_ctime)
        if size < MIN_SHARED_BYTES or newest > (first_report_at or newest):
            return False
        return trial_files.share(Path(self.experiment), os.path.relpath(path, base), folder)

    def _name(self, path: str) -> str:
        """Return the path in `files/` of what the trial wrote at an absolute path: what is above `start` is apart."""
        if path.startswith(f"{self.start}/"):
            return path[len(self.start) + 1 :]
        return f"above/{os.path.relpath(path, self.base) if path.startswith(self.base) else path[1:]}"

    def _place(self, name: str) -> str:
        above = name.removeprefix("above/")
        return os.path.join(self.base if above != name else self.start, above)


def _copy(source: str, target: str) -> list[int]:
    """Copy a file with its mode and times, sharing its blocks where the disk can; return its `mark`."""
    with open(source, "rb", buffering=0) as whole:
        status = os.fstat(whole.fileno())
        copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            left = status.st_size
            try:
                while left > 0 and (num := os.copy_file_range(whole.fileno(), copy, left)):
                    left -= num
            except OSError:  # two disks, or a system without this call
                with open(copy, "wb", closefd=False) as file:
                    whole.seek(0)
                    shutil.copyfileobj(whole, file)
            os.fchmod(copy, status.st_mode & 0o7777)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(copy)
    return mark(status)
