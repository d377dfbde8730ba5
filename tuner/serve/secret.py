"""Secrets of the service: made once, kept in files that their owner alone may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tuner.errors import RequestError

LEAST_CHARS = 16


def keep_secret(path: Path, new: str) -> Path:
    """The file with a secret, made with `new` where there is none.

    Raises:
        RequestError: it cannot be made, is a link, or others may read it.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(new)
    except FileExistsError:
        if path.is_symlink() or path.stat().st_mode & 0o077 or path.stat().st_uid != os.getuid():
            raise RequestError(f"{path} can be read by others; remove it, and a new one is made") from None
    except OSError as error:
        raise RequestError(f"{path} cannot be made ({error.strerror})") from None
    return path


def token_of(given: str, state: Path) -> str:
    """The service's token: TUNER_TOKEN, or one that is made once and kept in `<state>/token`."""
    if given:
        if len(given) < LEAST_CHARS:
            raise RequestError(f"TUNER_TOKEN has {len(given)} characters; give {LEAST_CHARS} or more, or leave it out")
        return given
    return keep_secret(state / "token", secrets.token_urlsafe(32)).read_text()
