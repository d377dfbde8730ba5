"""Secrets of the service: made once, kept in files that their owner alone may read, and in no child's environment."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from tuner.errors import RequestError

TOKEN, TOKEN_FILE = "TUNER_TOKEN", "TUNER_TOKEN_FILE"  # environment variables: the token, or a file that holds it
LEAST_CHARS = 32  # a shorter token may be a phrase that is found by trying: the right one is never refused


def child_environment() -> dict[str, str]:
    """The environment of every process that the service starts: its own, without the service's token.

    Jobs inherit it from the cluster's head. A space's code could read the token there, and a log could keep it.
    """
    return {name: value for name, value in os.environ.items() if name != TOKEN}


def keep_secret(path: Path, new: str) -> Path:
    """The file with a secret, made with `new` where there is none. A disk that is full leaves no file.

    Raises:
        RequestError: it cannot be made, is a link, others may read it, or it was cut off when it was written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077 or found.st_uid != os.getuid():
            raise RequestError(f"{path} can be read by others; remove it, and a new one is made") from None
        if found.st_size < LEAST_CHARS:
            raise RequestError(f"{path} holds no whole token; remove it, and a new one is made") from None
        return path
    except OSError as error:
        raise RequestError(f"{path} cannot be made ({error.strerror})") from None
    try:
        with os.fdopen(file, "w") as opened:
            opened.write(new)
            opened.flush()
            os.fsync(file)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise RequestError(f"{path} cannot be made ({error.strerror})") from None
    return path


def given_token() -> str:
    """Returns the token that the environment gives, or names the file of; empty where it does neither.

    A process's environment can be read as long as it runs: a container's secret is better given as a file.
    """
    given, path = os.environ.get(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
    if given or not path:
        return given
    try:
        given = Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise RequestError(f"{TOKEN_FILE}={path} cannot be read ({error}); name a file with the token") from None
    if not given:
        raise RequestError(f"{TOKEN_FILE}={path} is empty; write a token of {LEAST_CHARS} characters or more to it")
    return given


def long_enough(given: str) -> str:
    """Returns TUNER_TOKEN as it was given; RequestError for one that is too short."""
    if given and len(given.strip()) < LEAST_CHARS:
        raise RequestError(
            f"{TOKEN} has {len(given.strip())} characters, give {LEAST_CHARS} or more (openssl rand -hex 16 prints as "
            "many), or leave it out"
        )
    return given


def kept_token(state: Path) -> tuple[Path, str]:
    """The file with the token that is made once and kept, for a service that was given none, and what it holds.

    Raises:
        RequestError: as `keep_secret`.
    """
    path = keep_secret(state / "token", secrets.token_urlsafe(32))
    return path, path.read_text()
