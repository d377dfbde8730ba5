"""Files written so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes beside `path`, syncs, and renames: `path` holds the old content or the new, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(aside, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
