"""The folder for the service's own files. It is in the user's state folder, never among the results, which are data."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import platformdirs

from tuner.errors import RequestError

BASE = "TUNER_STATE"  # environment variable: a folder to use in place of the user's state folder


def state_folder(results: Path) -> Path:
    """Creates and checks the folder for the service's files about these results: token, queue, cluster.

    The service trusts the files in this folder, so only this user may have access to it. It trusts no file under
    `results`.

    Raises:
        RequestError: the folder cannot be created, is a link, belongs to another user, or other users may open it.
    """
    base = Path(os.environ.get(BASE) or platformdirs.user_state_path("tuner")).expanduser().absolute()
    whole = results.resolve()
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", whole.name)[:40]
    folder = base / "services" / f"{readable}-{hashlib.sha256(os.fsencode(whole)).hexdigest()[:16]}"
    for each in (base, folder.parent, folder):
        _make(each)
    return folder


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise RequestError(f"{folder} cannot be made ({error.strerror}); {_elsewhere()}") from None
    if not stat.S_ISDIR(status.st_mode):
        raise RequestError(f"{folder} is a link and must be a folder; {_elsewhere()}")
    if status.st_uid != os.geteuid():
        raise RequestError(f"{folder} belongs to another user (id {status.st_uid}); {_elsewhere()}")
    if status.st_mode & 0o077:
        raise RequestError(f"{folder} can be opened by other users; run chmod 700 {folder}, or {_elsewhere()}")


def _elsewhere() -> str:
    return f"set {BASE} to a folder of your own"
