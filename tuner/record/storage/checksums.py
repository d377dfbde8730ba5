"""Records the size and CRC-32 of files that are copied, and finds the copies that have changed since.

A file in memory is checked at 0.85 GB/s, and copied at 0.45 GB/s (`shutil.copy2`: 0.9 GB/s), on two busy cores.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from tuner.record.storage.files import CHUNK_BYTES, open_in


class CheckedCopies(dict[str, str]):
    """The files that `add` has copied below a folder: path relative to the folder -> size and CRC-32."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def add(self, source: str | Path, target: str | Path) -> None:
        """Copies a file as `shutil.copy2` does, and records its size and CRC-32."""
        with open(source, "rb") as file, open(target, "wb") as copy:
            self[str(Path(target).relative_to(self._folder))] = _read(file, copy)
        shutil.copystat(source, target)


def changed(folder: Path, recorded: Mapping[str, str]) -> str:
    """Says which recorded file below the folder is gone or has another content, and how; empty if none does."""
    for name, was in recorded.items():
        try:
            with open_in(folder, name) as file:
                if (now := _read(file)) == was:
                    continue
            why = f"it has {now}, but was written with {was}"
        except OSError as error:
            why = error.strerror or str(error)
        except ValueError as error:
            why = str(error)
        return f"{folder / name} is damaged ({why})"
    return ""


def _read(file: BinaryIO, copy: BinaryIO | None = None) -> str:
    size = crc = 0
    while chunk := file.read(CHUNK_BYTES):
        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        if copy:
            copy.write(chunk)
    return f"{size} bytes, CRC-32 {crc:08x}"
