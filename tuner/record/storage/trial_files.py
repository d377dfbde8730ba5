"""The files that the trial of a function or script writes: which are kept, and how the best trial's reach `best/`."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# In a trial's folder: the folder in which the trial runs, and the same folder once the trial has ended.
RUNNING, FILES = "running", "files"
MOST_KEPT_BYTES = 1 << 20  # maximum size of a file of a trial that can no longer win
CLOSES_S = 10.0  # how long an answer waits for a worker to close its trial's folder; it takes seconds on a busy machine


class TrialFiles:
    """Deletes large files of trials that ended behind the best value so far, which `best` returns with its trial."""

    def __init__(self, folder: Path, best: Callable[[], tuple[float, str] | None]) -> None:
        self._folder, self._best = folder, best
        now = best()
        self._whole = {now[1]} if now else set()  # ended trials, perhaps with large files

    def ended(self, trial_id: str) -> None:
        """Notes that a trial has ended."""
        self._whole.add(trial_id)
        best = self._best()
        for each in sorted(self._whole - {best[1] if best else ""}):
            trial = self._folder / "ray" / each
            # A worker whose trial has just ended may still move a data set out of its folder.
            if not (trial / RUNNING).exists():
                thin(trial)
                self._whole.discard(each)


def thin(trial: Path) -> None:
    """Deletes a trial's files that are larger than MOST_KEPT_BYTES, and its links; what cannot be deleted stays."""
    for path in (*_below(trial / FILES), *_below(trial / RUNNING)):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode) or status.st_size > MOST_KEPT_BYTES:
                path.unlink()


def copy_files(trial: Path, target: Path) -> None:
    """Copies the files that a trial wrote to a new folder `target`, without links; creates none if there is no file.

    A worker whose trial has just ended may still remove links from RUNNING before it renames the folder to FILES.
    """
    until = time.monotonic() + CLOSES_S
    while (trial / RUNNING).exists() and time.monotonic() < until:
        time.sleep(0.05)
    source = next((trial / name for name in (FILES, RUNNING) if (trial / name).is_dir()), None)
    if source is None:
        return
    for path in _below(source):
        if not path.is_symlink() and path.is_file():
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)


def _below(folder: Path) -> Iterator[Path]:
    """Yields the files below a folder and the links, which it does not follow."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        yield from (Path(place, name) for name in (*names, *links))
