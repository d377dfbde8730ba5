"""Runs a trial in a folder of its own, below the node's temporary files; `surroundings` decides what is there.

No call is redirected, and `outside` only notes writes: Python code, C++ code and child programs find the same copies
and links. At the trial's end, what it wrote moves to `files/` in its folder of the results.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tuner.engine.workers.outside import Writes, noted, recorded
from tuner.engine.workers.retried import patiently
from tuner.engine.workers.surroundings import NUM_LEVELS_ABOVE, YOURS, surroundings_of
from tuner.errors import users_code
from tuner.record.storage import trial_files
from tuner.record.storage.made import RECORD, MadeFolder, below, remove_made, stale_folders, temporary_folder
from tuner.record.storage.trial_files import FILES, MIN_SHARED_BYTES, RUNNING, Written, mark
from tuner.spec.command_process import RAY_JOB, RAY_JOB_YIELDS
from tuner.spec.spaces import is_in_main

PREFIX = users_code.TRIAL_PREFIX
SET = ("PWD", RAY_JOB, RAY_JOB_YIELDS)  # the variables that a trial's folder sets
OF_TRIAL = "TUNER_FOLDER_OF_TRIAL"  # in tasks and actors that a trial starts: the trial's folder
OUTSIDE = "outside"  # beside the trial's tree: the record of its writes elsewhere
# Files of a trial that are not put back when it continues: a folder of results from elsewhere must not run code.
IMPORTABLE = (".py", ".pyc", ".so")
LEAVE_TIMEOUT_S = 2.0  # a worker that ends waits so long for its trial; Ray waits as long before the next trial
ENDS_S = 5.0  # maximum seconds that `save_all` waits for processes that Ray has killed
left = threading.Event()  # set while this process runs no trial in a folder of its own
left.set()
_started_in = ""  # the folder in which this process was started, if it is a worker, which then leaves it
_elsewhere: MadeFolder | None = None  # the folder of a task on another node than its trial's
session_folder = ""  # Ray's, if this is a trial's own process, which is not connected with Ray
_first_report_at: float | None = None  # when the trial in this process first reported, unix s


@contextlib.contextmanager
def own_folder(trial: Path, *, is_new: bool, script: Path | None = None, ignored: str = "") -> Iterator[None]:
    """Run a `with` block in a folder of the trial's own.

    Args:
        trial: the trial's folder in the results, `<experiment>/ray/<trial>`.
        is_new: whether the trial starts anew; otherwise it finds the files that it wrote before.
        script: the file that the trial runs, if it is a script.
        ignored: a folder of data, in which writes are not noted.

    Raises:
        UnshowableError: the start folder cannot be read or has too many entries.
        OSError: the temporary folder cannot be written, or that of the results for a reason that does not pass.
    """
    global _first_report_at
    trial, _first_report_at = trial.parents[1].resolve() / "ray" / trial.name, None  # a link in the results is refused
    if (trial / RUNNING).exists():  # its worker was killed
        save_stale(trial)
    made = temporary_folder(PREFIX)
    ended_well, begun = False, False  # after an error, a download may be incomplete, so that no data is shared
    shown = Shown(str(trial), start_folder(), str(made.path.resolve() / users_code.TRIAL_TREE), made.path.name)
    ignored_too = filter(None, [ignored, session_of_ray()[0]])
    writes = Writes(shown.record, shown.tree, shown.start, shown.experiment, *ignored_too)
    try:
        shown.show(script)
        begin = partial(trial_files.begin, trial, is_new=is_new, attempt=shown.attempt)
        before = patiently(begin, folder=trial.parents[1])
        begun = True
        shown.put_back(before)
        made.note(json.dumps(vars(shown)))  # by it, another process can save a killed trial's files
        left.clear()
        with shown.entered(), noted(writes):
            yield
        ended_well = True
    except SystemExit as error:
        ended_well = not error.code  # 0: Ray has stopped the trial
        raise
    except Exception as error:
        users_code.keep_lines(error)
        raise
    finally:
        try:
            if begun:
                shown.save(writes, ended_well=ended_well)
            made.remove()
        except OSError as error:
            what = f"trial {trial.name}: its files cannot be moved to {trial / FILES} ({error})"
            print(f"{what}; they stay in {made.path}, and the next search on this machine moves them", file=sys.stderr)
        finally:
            left.set()


@contextlib.contextmanager
def scratch_folder(space: str) -> Iterator[None]:
    """Run a space's code in a temporary folder that shows the current one; what it writes there is removed.

    If the space is defined in the calling program, the block runs where it is: the program's threads share the folder.
    UnshowableError if the current folder cannot be shown.
    """
    if is_in_main(space):
        yield
        return
    with temporary_folder(PREFIX) as made:
        shown = Shown("", os.getcwd(), str(made.path.resolve() / users_code.TRIAL_TREE))
        shown.show(None)
        with shown.entered():
            yield


def start_folder() -> str:
    """Return the folder in which the search was started; a worker leaves it with its first trial."""
    global _started_in
    if session_of_ray()[1]:
        _started_in = _started_in or os.getcwd()
    return _started_in or os.getcwd()


def rest(start: str) -> None:
    """Change to where this process waits for its next trial: a worker to Ray's session, a program back to `start`.

    So the exit handlers of a trial cannot change the user's files.
    """
    session, is_worker = session_of_ray()
    os.chdir(session if is_worker else start)


def session_of_ray() -> tuple[str, bool]:
    """Return the folder of Ray's session, empty without one, and whether this process runs trials."""
    if session_folder:
        return session_folder, True
    worker: Any = sys.modules.get("ray._private.worker")  # not imported: a program that calls tuner may not need Ray
    node = worker and worker._global_node
    return (node.get_session_dir_path(), worker.global_worker.mode == worker.WORKER_MODE) if node else ("", False)


def enter_trial() -> None:
    """Enter the folder of the trial whose task or actor Ray runs in this process; Ray starts it in the start folder.

    On another node than the trial's, the folder is an empty temporary one, which is removed in the end.
    """
    global _elsewhere
    folder = Path(os.environ[OF_TRIAL])
    if not folder.is_dir():
        _elsewhere = temporary_folder(PREFIX)
        atexit.register(_elsewhere.remove)
        folder = _elsewhere.path
    os.chdir(folder)


def reported() -> None:
    """Note the time of the trial's first report: data that is shared with other trials was complete before it."""
    global _first_report_at
    _first_report_at = _first_report_at or time.time()


def await_left() -> None:
    """Wait until the trial in this process has left its folder, LEAVE_TIMEOUT_S at most, before Ray ends it."""
    left.wait(LEAVE_TIMEOUT_S)


def save_stale(trial: Path | None = None) -> None:
    """Move the files of killed trials on this node to their results; remove their temporary folders.

    With `trial`, only those of this trial, and OSError if they cannot be moved; else they wait for the next call.
    """
    for made in stale_folders(Path(tempfile.gettempdir()), PREFIX):
        if not (noted := made.noted()):  # its worker was killed before the trial began
            made.remove()
            continue
        try:
            shown = Shown(**json.loads(noted))
        except (ValueError, TypeError):  # another version of tuner has made it, which can save its files
            continue
        if trial is None or shown.trial == str(trial):
            if not os.path.isdir(os.path.dirname(shown.experiment)):
                continue  # the disk with the results may come back
            try:
                # A later attempt of the trial has its own name in RUNNING. Without RUNNING, the files are saved.
                if trial_files.attempt_of(Path(shown.trial)) == shown.attempt:
                    shown.save()
            except OSError:
                if trial is not None:
                    raise
                continue  # another search's trial must not end this one; its next start saves its files
            made.remove()


def save_all(experiment: Path) -> None:
    """Save the files of an experiment's killed trials on this node, once their processes have ended."""
    try:
        until, ours = time.monotonic() + ENDS_S, str(experiment.resolve())
    except FileNotFoundError:  # the start folder was removed, and with it the way to relative results
        return
    while True:
        save_stale()
        left = False
        for record in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{RECORD}"):
            with contextlib.suppress(OSError, ValueError, TypeError):  # its trial has just ended, or begins
                left |= Shown(**json.loads(record.read_text().partition("\n")[2])).experiment == ours
        if not left or time.monotonic() > until:
            return
        time.sleep(0.05)


@dataclass
class Shown:
    """What a trial finds in its folder. The folder's `tree` + an absolute path shows what is at that path."""

    trial: str
    start: str
    tree: str
    attempt: str = ""  # the name of this folder: it says which attempt of the trial the files belong to
    copies: dict[str, list[int]] = field(default_factory=dict)  # absolute path -> `mark` of the copy
    links: dict[str, str] = field(default_factory=dict)  # absolute path -> target
    folders: list[str] = field(default_factory=list)
    saved: dict[str, list[int]] = field(default_factory=dict)  # what the trial wrote before -> its mark in the results

    @property
    def experiment(self) -> str:
        return os.path.dirname(os.path.dirname(self.trial))

    @property
    def record(self) -> str:
        """The path of the file that has the trial's writes outside."""
        return os.path.join(os.path.dirname(self.tree), OUTSIDE)

    @property
    def base(self) -> str:
        return str([Path(self.start), *Path(self.start).parents][: NUM_LEVELS_ABOVE + 1][-1])

    def show(self, script: Path | None) -> None:
        """Make the folders, copies and links; `surroundings_of` says which."""
        around = surroundings_of(Path(self.start), script, Path(self.experiment))
        self.folders = around.folders
        for folder in self.folders:
            os.makedirs(self.tree + folder, exist_ok=True)
        for path in around.copies:
            try:
                self._copy(path, path)
            except FileNotFoundError:  # the user has just removed it
                continue
            except PermissionError:
                self._link(path, path)
        shown = {*around.folders, *around.copies}
        for path, why in around.links.items():
            real = os.path.realpath(path) if why == YOURS else path
            self._link(path, self.tree + real if real in shown else real)
        for place, target in trial_files.shared(Path(self.experiment)) if self.trial else ():
            path = os.path.join(self.base, place)
            with contextlib.suppress(OSError), self._parent_of(path):
                if not os.path.lexists(self.tree + path):
                    self._link(path, target)

    def _parent_of(self, path: str) -> contextlib.AbstractContextManager[int]:
        """Make the folders above a path in `tree`; OSError if one of them is a link, which may lead to the user's."""
        return below(Path(self.tree), *Path(path).parts[1:-1], make=True)

    def put_back(self, written: Written) -> None:
        """Copy the files and links that the trial wrote before, but none that Python may import."""
        for name in written.files:
            source, path = f"{self.trial}/{FILES}/{name}", self._place(name)
            if name.endswith(IMPORTABLE) or not written.is_unchanged(Path(self.trial), name):
                continue
            try:
                with self._parent_of(path), contextlib.suppress(FileNotFoundError):
                    remove_made(Path(self.tree), path[1:])
            except OSError:  # its folder is a link now, or a folder has its name
                continue
            if os.path.islink(source):
                self._link(path, os.readlink(source))
            else:
                self._copy(source, path)
            self.saved[path] = written.files[name]

    def _copy(self, source: str, path: str) -> None:
        """Copy a file with its mode and times; share its blocks where the disk can. `shutil` takes 3 times as long."""
        with open(source, "rb", buffering=0) as whole:
            status = os.fstat(whole.fileno())
            with open(os.open(self.tree + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
                try:
                    left = status.st_size
                    while left > 0 and (num := os.copy_file_range(whole.fileno(), copy.fileno(), left)):
                        left -= num
                except OSError:  # two disks, or a system without this call
                    shutil.copyfileobj(whole, copy)
                    copy.flush()
                os.fchmod(copy.fileno(), status.st_mode & 0o7777)
                os.utime(copy.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
                self.copies[path] = mark(os.fstat(copy.fileno()))  # the user's file may grow meanwhile

    def _link(self, path: str, target: str) -> None:
        os.symlink(target, self.tree + path)
        self.links[path] = target

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run a `with` block in the folder that shows the start folder."""
        os.chdir(self.tree + self.start)
        users_code.enter_trial(Path(self.start), self.tree)
        before, here = {name: os.environ.get(name) for name in SET}, self.tree + self.start
        of_tasks = {"worker_process_setup_hook": f"{__name__}.{enter_trial.__name__}", "env_vars": {OF_TRIAL: here}}
        # A script may ask PWD instead of the system.
        os.environ |= {"PWD": here, RAY_JOB: json.dumps({"runtime_env": of_tasks}), RAY_JOB_YIELDS: "1"}
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            users_code.leave_trial()
            rest(self.start)

    def save(self, writes: Writes | None = None, *, ended_well: bool = False) -> None:
        """Move what the trial wrote to its folder in the results, and large new data to that of all trials."""
        wrote, found, known = dict[str, str](), set[str](), set(self.folders)
        for folder, folders, names in os.walk(self.tree):
            links = [name for name in folders if os.path.islink(f"{folder}/{name}")]
            for name in set(folders) - set(links):
                path = f"{folder}/{name}".removeprefix(self.tree)
                os.chmod(f"{folder}/{name}", 0o700)  # the trial may have made it unreadable
                is_new = path not in known and os.path.dirname(path) in known
                if name == "__pycache__" or is_new and ended_well and self._shares(path, writes):
                    folders.remove(name)
            for name in (*names, *links):
                source = f"{folder}/{name}"
                path, status = source[len(self.tree) :], os.lstat(source)
                found.add(path)
                is_file = stat.S_ISREG(status.st_mode) and self.copies.get(path) != mark(status)
                if is_file or stat.S_ISLNK(status.st_mode) and self._is_own_link(source, path):
                    wrote[self._name(path)] = source
        missing = {self._name(path): mark for path, mark in self.saved.items() if path not in found}
        if writes:
            writes.end()
        trial_files.end(Path(self.trial), wrote, missing, recorded(self.record))

    def _is_own_link(self, source: str, path: str) -> bool:
        """Whether the trial made a link that leads into the start folder; makes such a link relative."""
        target, folder = os.readlink(source), os.path.dirname(source)
        inside = os.path.normpath(os.path.join(folder, target)).startswith(self.tree + _slashed(self.start))
        if self.links.get(path) == target or not inside:
            return False
        if os.path.isabs(target):
            remove_made(Path(self.tree), path[1:])
            os.symlink(os.path.relpath(target, folder), source)
        return True

    def _shares(self, path: str, writes: Writes | None) -> bool:
        """Move a new folder to the data that all trials share, if it is large and looks like data.

        Data is complete before the first report, and torch has saved no model in it.
        """
        folder, base = self.tree + path, _slashed(self.base)
        if not path.startswith(base) or (writes and any(each.startswith(f"{folder}/") for each in writes.saved)):
            return False
        every = [os.lstat(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names]
        newest = max((status.st_ctime for status in every), default=0.0)
        if sum(status.st_size for status in every) < MIN_SHARED_BYTES or newest > (_first_report_at or newest):
            return False
        return trial_files.share(Path(self.experiment), path.removeprefix(base), folder)

    def _name(self, path: str) -> str:
        """Return the path in `files/` of what the trial wrote at an absolute path: what is above `start` is apart."""
        if path.startswith(start := _slashed(self.start)):
            return path.removeprefix(start)
        return f"above/{path.removeprefix(_slashed(self.base)).lstrip('/')}"

    def _place(self, name: str) -> str:
        above = name.removeprefix("above/")
        return os.path.join(self.start if above == name else self.base, above)


def _slashed(folder: str) -> str:
    return f"{folder.rstrip('/')}/"
