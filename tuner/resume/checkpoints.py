"""Whether a checkpoint's folder is whole: a crash, a full disk or a copy that broke off may leave a part of one."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

from tuner.errors import RequestError

STATE = "state.pt"  # a Task's one file in a checkpoint: a torch.save, which is a zip with a CRC-32 of each record


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
        if not any(folder.iterdir()):
            return "it is empty"
        state = folder / STATE
        if not state.exists():
            return ""  # a function's own files
        with zipfile.ZipFile(state) as archive:
            bad = archive.testzip()
        return f"its record {bad} is not what was written" if bad else ""
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        return str(error) or type(error).__name__
