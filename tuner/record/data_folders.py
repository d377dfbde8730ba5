"""Decides whether tuner may use the data folder, command or checkpoint that an experiment's folder names.

A stranger may have named /etc.

A relative path below the working folder may be read, except in the folder of results. Any other path may be read if a
search of this user has read it before. `remember` records that in the user's cache, as ssh does with known hosts.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.storage.files import secret_file, write_atomically
from tuner.spec.experiment import cache_folder


def leads_out(data_dir: str) -> bool:
    """Whether the path is absolute or leads out of the working folder."""
    return os.path.isabs(data_dir) or os.path.normpath(data_dir).split(os.sep)[0] == os.pardir


def is_known(data_dir: str, results: Path) -> bool:
    """Whether a command may read the folder although only a folder in `results` names it."""
    if "\0" in data_dir:
        return False
    path, root = Path(data_dir).resolve(), results.resolve()
    inside = path.is_relative_to(root) and not Path.cwd().is_relative_to(root)
    return not data_dir or not (leads_out(data_dir) or inside) or _record_of(data_dir).is_file()


def remember(data_dir: str) -> None:
    """Records that a search of this user reads the folder; does nothing if the cache cannot be written to."""
    if data_dir:
        _write(_record_of(data_dir), os.fsencode(os.path.realpath(data_dir)))


def is_known_command(space: str) -> bool:
    """Whether a search of this user has run the command in this folder, although only a folder of results names it."""
    return _record_of_command(space).is_file()


def remember_command(space: str) -> None:
    """Records that a search of this user runs the command in this folder."""
    _write(_record_of_command(space), space.encode())


def seal_key(search: object) -> str:
    """Return the key with which the trials of a search seal their checkpoints; another user cannot make it.

    Args:
        search: the search's id in experiment.json. Its key is another one for another secret: on another machine, or
            if the cache was emptied or cannot be written to.
    """
    try:
        path = cache_folder() / "secret"
        path.parent.mkdir(parents=True, exist_ok=True)
        secret = secret_file(path).read_bytes() if not path.exists() or path.stat().st_uid == os.geteuid() else b""
    except (OSError, RequestError):
        secret = b""
    return hmac.new(secret or secrets.token_bytes(32), str(search).encode(), "sha256").hexdigest()


def _write(record: Path, content: bytes) -> None:
    if not record.is_file():
        with contextlib.suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(record, content + b"\n")


def _record_of(data_dir: str) -> Path:
    return cache_folder() / "data_folders" / hashlib.sha256(os.fsencode(os.path.realpath(data_dir))).hexdigest()


def _record_of_command(space: str) -> Path:
    return cache_folder() / "commands" / hashlib.sha256(f"{os.getcwd()}\0{space}".encode()).hexdigest()
