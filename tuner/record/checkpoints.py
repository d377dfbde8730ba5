"""Whether a checkpoint's folder is whole: a crash, a full disk or a copy that broke off may leave a part of one."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.files import open_in

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
        with open_in(folder, STATE) as file, zipfile.ZipFile(file) as archive:
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
