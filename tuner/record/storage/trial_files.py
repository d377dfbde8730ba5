"""Keeps what trials wrote by relative paths: each trial's `files/`, and large data that all trials share.

`files.json` beside `files/` records what tuner put there, so that nothing else is ever removed or copied to `best/`.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tuner.record.storage.files import is_inside, json_in, write_atomically
from tuner.record.storage.made import below, move_into, remove_made, replacing_file, stale_folders, temporary_folder

logger = logging.getLogger(__name__)
# In a trial's folder: what the trial wrote, the record of it, and a file that exists while the trial runs.
FILES, RECORD, RUNNING = "files", "files.json", ".running"
DATA, PLACE, CONTENT = "data", "place", "content"  # <experiment>/data/NAME/content is shown to trials at `place`
MAX_KEPT_BYTES = 1 << 20  # a larger file is removed when its trial can no longer win
MIN_SHARED_BYTES = 20 << 20  # a smaller new folder stays with its trial
CLOSES_S = 10.0  # maximum seconds that `copy_files` waits for a worker that still saves files; a busy one takes seconds
MAX_NOTES = 10  # lines about writes outside the trials' folders that a search prints


@dataclass
class Written:
    """The record in `files.json`: what the trial wrote, and what it wrote outside its folder."""

    files: dict[str, list[int]] = field(default_factory=dict)  # path in `files/` -> bytes, modification time in ns
    outside: dict[str, bool] = field(default_factory=dict)  # absolute path -> whether earlier content was lost
    replaced: dict[str, list[int]] = field(default_factory=dict)  # the earlier mark of a file that `end` replaces

    @classmethod
    def read(cls, trial: Path) -> Written:
        """Read a trial's record; without one, or with a damaged one, return an empty record."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            found = json_in(trial, RECORD)
            files, replaced = (
                {name: [int(size), int(at)] for name, (size, at) in found.get(key, {}).items() if is_inside(name)}
                for key in ("files", "replaced")
            )
            return cls(files, {str(path): bool(lost) for path, lost in found["outside"].items()}, replaced)
        return cls()

    def is_unchanged(self, trial: Path, name: str) -> bool:
        """Whether a file is as tuner has put it there; otherwise it is the user's."""
        with (
            contextlib.suppress(OSError),
            below(trial.parents[1], "ray", trial.name, FILES, *name.split("/")[:-1]) as fd,
        ):
            found = mark(os.stat(os.path.basename(name), dir_fd=fd, follow_symlinks=False))
            return found in (self.files.get(name), self.replaced.get(name))
        return False


def mark(status: os.stat_result) -> list[int]:
    """Return what shows whether a file has changed: its size in bytes and its modification time in ns."""
    return [status.st_size, status.st_mtime_ns]


def begin(trial: Path, *, is_new: bool, attempt: str = "") -> Written:
    """Mark a trial as running; remove the files of an earlier attempt if it starts anew. Return the record."""
    record = Written.read(trial)
    with below(trial.parents[1], "ray", trial.name, make=True) as fd:
        with replacing_file(Path(RUNNING), fd) as file:  # not synced: after a power failure, no attempt runs
            file.write(attempt.encode())
        if is_new and record.files:
            _remove(trial, record, list(record.files))
            _write(record, fd)
    return record


def _write(record: Written, fd: int) -> None:
    """Write a trial's record into the trial's folder, which is open as `fd`."""
    write_atomically(Path(RECORD), json.dumps(vars(record)), fd)


def end(trial: Path, wrote: Mapping[str, str], missing: Mapping[str, list[int]], outside: Mapping[str, bool]) -> None:
    """Move what a trial wrote to its `files/`, by path there -> present path; remove what it deleted; end RUNNING.

    `missing` has, by path there, the mark that a file had when the trial found it, of those that it has no more. The
    record comes first: if the process is killed meanwhile, the next call with the rest continues.
    """
    record, places = Written.read(trial), dict[str, str]()
    before = Written(dict(record.files), replaced=dict(record.replaced))
    deleted = [name for name, found in missing.items() if found == record.files.get(name)]  # else it was moved by then
    for name in deleted:
        record.files.pop(name, None)
    for name, source in wrote.items():
        place = name
        while os.path.lexists(trial / FILES / place) and not before.is_unchanged(trial, place):
            place += "~"  # the name is that of a file of the user
        if place in before.files and place not in record.replaced:
            record.replaced[place] = before.files[place]
        record.files[place], places[place] = mark(os.lstat(source)), source
    new = {path: lost or record.outside.get(path, False) for path, lost in outside.items()}
    if places or deleted or new.items() - record.outside.items():
        record.outside |= new
        with below(trial.parents[1], "ray", trial.name, make=True) as fd:
            _write(record, fd)
    _remove(trial, before, [name for name in deleted if name in before.files])
    is_coarser = False
    for place, source in places.items():
        *folders, last = place.split("/")
        with below(trial.parents[1], "ray", trial.name, FILES, *folders, make=True) as fd:
            move_into(fd, source, last)
            moved = mark(os.stat(last, dir_fd=fd, follow_symlinks=False))
        is_coarser = is_coarser or moved != record.files[place]  # the disk may keep times less exactly
        record.files[place] = moved
    if is_coarser or record.replaced:
        record.replaced.clear()
        with below(trial.parents[1], "ray", trial.name) as fd:
            _write(record, fd)
    with contextlib.suppress(FileNotFoundError):  # another search on this node has done all this
        remove_made(trial.parents[1], f"ray/{trial.name}/{RUNNING}")


def attempt_of(trial: Path) -> str | None:
    """Return the name of the attempt that runs, as `begin` got it; None if no attempt runs or its files are saved."""
    try:
        return (trial / RUNNING).read_text()
    except OSError:
        return None


def _remove(trial: Path, record: Written, names: list[str]) -> None:
    """Remove files from a trial's `files/` and from its record, unless somebody has changed them since."""
    for name in names:
        if record.is_unchanged(trial, name):
            remove_made(trial.parents[1], f"ray/{trial.name}/{FILES}/{name}")
        del record.files[name]


class TrialFiles:
    """Removes large files of ended trials that cannot win; prints where trials wrote outside their folders.

    `best` returns the best value so far and its trial; without it, nothing is removed.
    """

    def __init__(self, folder: Path, best: Callable[[], tuple[float, str] | None] | None) -> None:
        self._folder, self._best = folder, best
        now = best() if best else None
        self._whole = {now[1]} if now else set()  # ended trials that may still have large files
        self._untold = set[str]()
        self._outside: dict[str, tuple[str, bool]] = {}  # path -> a trial that wrote there, whether content was lost
        self._conflicts = set[str]()  # paths about which a line was printed because two trials replaced them
        self._num_notes = 0

    def ended(self, trial_id: str, may_remove: Callable[[], bool] = lambda: True) -> None:
        """Record that a trial has ended; tell about writes outside; remove large files of ended trials but the best.

        `may_remove` is asked only if there may be something to remove.
        """
        self._untold.add(trial_id)
        self._whole.add(trial_id)
        best = self._best() if self._best and may_remove() else None
        self.tell()
        for each in sorted(self._whole - self._untold - {best[1]}) if best else ():
            thin(self._folder / "ray" / each)
            self._whole.discard(each)

    def tell(self, patience_s: float = 0.0) -> None:
        """Tell about ended trials' writes outside; wait up to `patience_s` for workers that still save files."""
        until = time.monotonic() + patience_s
        while True:
            for each in sorted(self._untold):
                if not (self._folder / "ray" / each / RUNNING).exists():
                    self._untold.discard(each)
                    self._tell(each)
            if not self._untold or time.monotonic() >= until:
                return
            time.sleep(0.05)

    def _tell(self, trial_id: str) -> None:
        """Print a line about a trial's writes outside its folder, and one about each file that another trial had."""
        outside = Written.read(self._folder / "ray" / trial_id).outside
        new, lines = [path for path in outside if path not in self._outside], []
        if new:
            more = f" and {len(new) - 2} more" if len(new) > 2 else ""
            to = f"{', '.join(new[:2])}{more}"
            lines += [f"trial {trial_id} writes outside its own folder, to {to}: all trials share such files"]
        for path, lost in outside.items():
            other, was_lost = self._outside.setdefault(path, (trial_id, lost))
            if other != trial_id and lost | was_lost and path not in self._conflicts:
                self._conflicts.add(path)
                both = " and ".join(sorted([other, trial_id]))
                lines += [f"trials {both} both wrote to {path}, and one may have lost it: write to a new file instead"]
        for line in lines[: MAX_NOTES - self._num_notes]:
            self._num_notes += 1
            logger.warning("NOTE: %s", line)


def thin(trial: Path) -> None:
    """Remove files above MAX_KEPT_BYTES from a trial's `files/`; leave those that somebody has changed."""
    record = Written.read(trial)
    _remove(trial, record, [name for name, (size, _) in record.files.items() if size > MAX_KEPT_BYTES])


def copy_files(trial: Path, target: Path, copy: Callable[[Path, Path], object] = shutil.copy2) -> None:
    """Copy what a trial wrote to a new folder `target`; create no folder if it wrote nothing.

    First wait up to CLOSES_S while RUNNING exists, because an ended trial's worker may still save files.
    """
    until = time.monotonic() + CLOSES_S
    while (trial / RUNNING).exists() and time.monotonic() < until:
        time.sleep(0.05)
    record = Written.read(trial)
    for name in record.files:
        path, place = trial / FILES / name, target / name
        if record.is_unchanged(trial, name):
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                os.symlink(os.readlink(path), place)
            else:
                copy(path, place)


def share(experiment: Path, place: str, folder: str) -> bool:
    """Move a folder to the experiment's shared data; if that has one for the place, return whether it is the same."""
    data, digest = experiment / DATA, hashlib.sha256(os.fsencode(place)).hexdigest()
    name = f"{os.path.basename(place)}-{digest[:8]}"
    with below(experiment, DATA, make=True) as fd:
        if name in os.listdir(fd):
            return _is_same(folder, data / name / CONTENT)
    for stale in stale_folders(data, "."):  # its process was killed
        stale.remove()
    with temporary_folder(".", data) as made:  # other trials see the folder whole or not at all
        (made.path / PLACE).write_bytes(os.fsencode(place))
        move_into(made.fd, folder, CONTENT)
        try:
            made.take_place(name)
        except OSError:  # another trial was earlier
            if not os.path.lexists(folder):  # from another disk, it was copied
                with below(Path(folder).parent) as fd:
                    move_into(fd, f"{made.path}/{CONTENT}", os.path.basename(folder))
            return False
        made.keep(forget=True)
    return True


def _is_same(one: str | Path, other: str | Path) -> bool:
    """Whether two folders have the same files with the same content."""
    own, others = (
        {os.path.relpath(f"{place}/{name}", root) for place, _, names in os.walk(root) for name in names}
        for root in (one, other)
    )
    with contextlib.suppress(OSError):
        return own == others and not any(filecmp.cmpfiles(one, other, own, shallow=False)[1:])
    return False


def shared(experiment: Path) -> Iterator[tuple[str, str]]:
    """Yield the place and the path of each folder that trials share."""
    with contextlib.suppress(OSError), os.scandir(experiment / DATA) as entries:
        for entry in (entry for entry in entries if not entry.name.startswith(".")):
            with contextlib.suppress(OSError), below(experiment, DATA, entry.name) as fd:
                with open(os.open(PLACE, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd), "rb") as file:
                    place = os.fsdecode(file.read(10_000))
                with below(experiment, DATA, entry.name, CONTENT) as content:
                    # A folder of results may come from elsewhere: no trial may import its files as a package.
                    is_package = any(each.startswith("__init__.") for each in os.listdir(content))
                if is_inside(place) and not is_package:
                    yield place, f"{entry.path}/{CONTENT}"
