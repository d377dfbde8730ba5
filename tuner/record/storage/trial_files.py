"""Deletes large files that trials of functions and scripts wrote, and copies the best trial's files to `best/`."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# In a trial's folder: RUNNING contains the folder in which it works; at its end, that folder becomes FILES.
RUNNING, FILES = "running", "files"
MOST_KEPT_BYTES = 1 << 20  # maximum bytes of a file that is kept when its trial can no longer win
CLOSES_S = 10.0  # maximum seconds that `copy_files` waits for a worker to rename RUNNING; a busy worker takes seconds


class TrialFiles:
    """Deletes large files of ended trials, but not of the best; `best` returns the best value so far and its trial."""

    def __init__(self, folder: Path, best: Callable[[], tuple[float, str] | None]) -> None:
        self._folder, self._best = folder, best
        now = best()
        self._whole = {now[1]} if now else set()  # ended trials that may still have large files

    def ended(self, trial_id: str) -> None:
        """Records that this trial has ended; deletes large files of all ended trials except the best trial."""
        self._whole.add(trial_id)
        best = self._best()
        for each in sorted(self._whole - {best[1] if best else ""}):
            trial = self._folder / "ray" / each
            # A worker whose trial has just ended may still move a data set out of its folder.
            if not (trial / RUNNING).exists():
                thin(trial)
                self._whole.discard(each)


def thin(trial: Path) -> None:
    """Deletes links, and files above MOST_KEPT_BYTES, in a trial's FILES and RUNNING; leaves what it cannot delete."""
    for path in (*_below(trial / FILES), *_below(trial / RUNNING)):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode) or status.st_size > MOST_KEPT_BYTES:
                path.unlink()


def copy_files(trial: Path, target: Path, copy: Callable[[Path, Path], object] = shutil.copy2) -> None:
    """Copies the files that a trial wrote, without links, to a new folder `target`; without files, creates no folder.

    First waits up to CLOSES_S while RUNNING exists, because an ended trial's worker removes links there and renames it.
    """
    until = time.monotonic() + CLOSES_S
    while (trial / RUNNING).exists() and time.monotonic() < until:
        time.sleep(0.05)
    source = next((trial / name for name in (FILES, RUNNING) if (trial / name).is_dir()), None)
    if source is None:
        return
    for path in _below(source):
        if not path.is_symlink() and path.is_file():
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            copy(path, place)


def _below(folder: Path) -> Iterator[Path]:
    """Yields the files and links below a folder; follows no link."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        yield from (Path(place, name) for name in (*names, *links))
