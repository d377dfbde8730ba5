"""Secrets of the service: made once, kept in files that their owner alone may read, and in no child's environment."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tuner.errors import RequestError

TOKEN = "TUNER_TOKEN"
LEAST_CHARS = 16


def child_environment() -> dict[str, str]:
    """The environment of every process that the service starts: its own, without the service's token.

    Jobs inherit it from the cluster's head. A space's code could read the token there, and a log could keep it.
    """
    return {name: value for name, value in os.environ.items() if name != TOKEN}


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


def long_enough(given: str) -> str:
    """TUNER_TOKEN as it was given; RequestError for one that is too short."""
    if given and len(given) < LEAST_CHARS:
        raise RequestError(f"{TOKEN} has {len(given)} characters; give {LEAST_CHARS} or more, or leave it out")
    return given


def token_file(state: Path) -> Path:
    """The file with the token that is made once and kept, for a service that was given none."""
    return keep_secret(state / "token", secrets.token_urlsafe(32))
