"""Whether a checkpoint's folder is whole: a crash, a full disk or a copy that broke off may leave a part of one."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from itertools import islice
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.files import open_in

MOST_LOOKS = 20_000  # of `Saved`, 5 us each: a trial's folder holds few checkpoints, and the best trials come first
STATE = "state.pt"  # a Task's one file in a checkpoint: a torch.save, which is a zip with a CRC-32 of each record


class Saved:
    """The checkpoints of an experiment that are on the disk, asked for by the names that the journal has: `name in it`.

    Each folder of checkpoints is listed once. Listing one is a look, and so is each of its entries; what MOST_LOOKS
    do not find counts as gone. A journal may name a million, and a list asks again after each line.
    """

    def __init__(self, experiment: Path) -> None:
        self._experiment = experiment
        self._listed: dict[str, frozenset[str]] = {}
        self._left = MOST_LOOKS

    def __contains__(self, name: object) -> bool:
        parent, _, last = str(name).rpartition("/")
        if parent not in self._listed:
            if self._left <= 0:
                return False
            self._listed[parent] = self._folders_in(parent)
        return last in self._listed[parent]

    def _folders_in(self, parent: str) -> frozenset[str]:
        found = set()
        self._left -= 1
        with contextlib.suppress(OSError), os.scandir(os.path.join(self._experiment, parent)) as entries:
            for entry in islice(entries, self._left):
                self._left -= 1
                if entry.is_dir():
                    found.add(entry.name)
        return frozenset(found)


def within(experiment: Path, name: str) -> Path:
    """The checkpoint that a journal names, below the experiment's folder; RequestError for one elsewhere.

    Ray deletes a trial's older checkpoints: a journal that names another folder would have that deleted.
    """
    path = experiment / str(name)
    if not path.resolve().is_relative_to((experiment / "ray").resolve()):
        raise RequestError(f"{experiment}/journal.jsonl names {name!r} as a checkpoint, which lies elsewhere")
    return path


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint, or nothing; reads a Task's state once (1 GB/s), of others the names alone."""
    try:
        return damage_in(folder, STATE) if any(folder.iterdir()) else "it is empty"
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)


def damage_in(folder: Path, name: str) -> str:
    """What is wrong with a state that torch.save wrote, or nothing, also where it is not there; reads it once."""
    try:
        with open_in(folder, name) as file, zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            size = os.fstat(file.fileno()).st_size
            # torch.save packs nothing. What is packed could be a million times as long, and reading it has no end.
            if any(r.compress_type for r in records) or sum(r.file_size for r in records) > size:
                return "its records are longer than the file"
            bad = archive.testzip()
        return f"its record {bad} is not what was written" if bad else ""
    except FileNotFoundError:
        return ""  # a function's own files
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        return str(error) or type(error).__name__
