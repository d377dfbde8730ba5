"""Checks that checkpoints are complete; a crash, a full disk or an aborted copy may leave only part of one."""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from functools import cached_property
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.format import JOURNAL
from tuner.record.storage.files import json_in, open_in

MOST_LOOKS = 20_000  # how many checkpoints one `SavedCheckpoints` looks up on disk; each look-up takes 5 us
STATE = "state.pt"  # the file with a checkpoint's state; torch.save writes it as a zip file with a CRC-32 per record


class SavedCheckpoints:
    """Container of the checkpoints on disk, by name; after MOST_LOOKS look-ups it contains only those in `best/`."""

    def __init__(self, experiment: Path) -> None:
        self._experiment = experiment
        self._left = MOST_LOOKS

    @cached_property
    def in_best(self) -> set[str]:
        """The names of the checkpoints whose model or files `best/` or a folder in `best/front/` has."""
        best, names = self._experiment / "best", set[str]()
        for folder in (best, *sorted(best.glob("front/*"))):
            with contextlib.suppress(OSError, ValueError, TypeError):
                if (folder / "model.pt").is_file() or (folder / "checkpoint").is_dir():
                    name = dict(json_in(folder, "config.json")).get("checkpoint")
                    names |= {name} if isinstance(name, str) else set()
        return names

    def __contains__(self, name: object) -> bool:
        self._left -= 1
        return (self._left >= 0 and os.path.isdir(self._experiment / str(name))) or name in self.in_best


def within(experiment: Path, name: str) -> Path:
    """Returns a checkpoint's path; RequestError if it is not below `ray`, or behind a link: Ray may delete it later."""
    path, whole = experiment / str(name), experiment.resolve()
    if path.resolve() != Path(os.path.normpath(whole / str(name))) or not path.resolve().is_relative_to(whole / "ray"):
        what = f"{experiment / JOURNAL} names {name!r} as a checkpoint"
        raise RequestError(f"{what}, which is not in its folder ray, or is behind a link")
    return path


def damage(folder: Path, name: str = STATE, *, plain: bool = False) -> str:
    """Says how a checkpoint is damaged, at 1 GB/s, or ""; an empty folder is damage, no folder or no state.pt is not.

    With `plain`, as for a Task's checkpoint, a state.pt that `load_state` refuses is damage too. `name` is another file
    of torch.save, in place of state.pt.
    """
    try:
        why = damage_in(folder, name) if any(folder.iterdir()) else "it is empty"
        if not plain or why:
            return why
        from tuner.training.plain import unplain

        with open_in(folder, name) as file:
            return f"it {why}" if (why := unplain(file)) else ""
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)


def load_state(folder: Path, name: str, advice: str, map_location: str | None = "cpu") -> Any:
    """Loads a file of torch.save without running code from it; RequestError that ends with `advice` if it cannot."""
    from tuner.training.plain import load_plain

    try:
        if not (why := damage_in(folder, name)):
            with open_in(folder, name) as file:
                return load_plain(file, map_location)
    except OSError as error:
        why = str(error)
    except ValueError as error:
        why = f"it {error}"
    raise RequestError(f"{folder / name} is damaged ({why}); {advice}")


def damage_in(folder: Path, name: str) -> str:
    """Checks a file of torch.save; returns the damage in words, or an empty text if it is whole or missing."""
    try:
        with open_in(folder, name) as file, zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            size = os.fstat(file.fileno()).st_size
            # Compressed records are refused: torch.save writes none, and one could unpack to a million times its size.
            if any(r.compress_type for r in records) or sum(r.file_size for r in records) > size:
                return "its records are compressed, or longer than the file"
            bad = archive.testzip()
        return f"its record {bad} does not match its checksum" if bad else ""
    except FileNotFoundError:
        return ""  # a space with its own training function may write other files than this one
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError) as error:
        return str(error) or type(error).__name__
