"""Where the service keeps its own files: in the user's state folder, never among the results, which are only data."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import platformdirs

from tuner.errors import RequestError

BASE = "TUNER_STATE"  # the environment variable that names another folder than the user's state folder


def state_of(results: Path) -> Path:
    """Makes and checks the folder that holds the service's files for these results: token, queue, cluster.

    Whatever lies there is trusted, so the folder must be this user's alone. Nothing under `results` is.

    Raises:
        RequestError: the folder cannot be made, is a link, or another user owns it or may open it.
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
        found = folder.lstat()
    except OSError as error:
        raise RequestError(f"{folder} cannot be made ({error.strerror}); {_elsewhere()}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise RequestError(f"{folder} is a link and must be a folder; {_elsewhere()}")
    if found.st_uid != os.geteuid():
        raise RequestError(f"{folder} belongs to another user (id {found.st_uid}); {_elsewhere()}")
    if found.st_mode & 0o077:
        raise RequestError(f"{folder} can be opened by other users; run chmod 700 {folder}, or {_elsewhere()}")


def _elsewhere() -> str:
    return f"set {BASE} to a folder of your own"
