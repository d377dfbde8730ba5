"""Corrects Ray's settings for one search and one user on this machine: its folder, address, token and messages."""

from __future__ import annotations

import logging
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, worker

logger = logging.getLogger(__name__)
DEAD_WORKER = "A worker died or was killed while executing"  # how Ray's line of 1,000 characters about it starts


def correct_late_import() -> None:
    """Corrects a constant if Ray was imported before tuner; warns in one line if this process has started Ray."""
    # While this constant is True, Ray builds an environment per session under `uv run`, which takes 60 s.
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False
    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.SCRIPT_MODE:
        logger.warning(
            "Ray was started before tuner was imported: a trial without a GPU may train on GPU 0, and the working "
            "directory of a trial may differ from this one; import tuner before ray.init(), or call ray.shutdown()"
        )


@contextmanager
def no_reports_of_dead_workers() -> Iterator[None]:
    """Drops Ray's own line about each dead worker; tuner's line names the trial and the cause."""
    theirs = worker.print_to_stdstream

    def shown(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") != "raylet" or not any(DEAD_WORKER in line for line in data["lines"]):
            theirs(data, ignore_prefix)

    worker.print_to_stdstream = shown
    try:
        yield
    finally:
        worker.print_to_stdstream = theirs


@contextmanager
def session_folder() -> Iterator[str]:
    """Creates a folder for Ray's sockets and logs that only this user may enter, and removes it afterwards.

    All users of the machine may write to the folders that Ray makes in it.
    """
    base = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")  # in the order in which Ray chooses
    if not base.exists():  # a file there is an error of its own below: "Not a directory"
        base.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="tuner", dir=base, ignore_cleanup_errors=True) as folder:
        yield f"{folder}/ray"


@contextmanager
def on_loopback() -> Iterator[None]:
    """Makes `ray.init` start a node on 127.0.0.1, so that all of Ray's processes listen there; creates the token.

    While Ray's constant ENABLE_RAY_CLUSTER is True, Ray listens on all interfaces. Ray reads the environment variable
    for the constant at import, before the command's options are known.
    """
    keep_token_private()
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def keep_token_private() -> None:
    """Creates Ray's authentication token so that only this user can read it, unless the environment names one.

    An existing token is kept. If its file belongs to this user and everybody can read it, the file's mode becomes 0600.
    """
    path = Path.home() / ".ray" / "auth_token"  # the path that Ray documents
    try:
        existing = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        pass
    except OSError:
        return  # a link, or a file that this user cannot read: it must not be changed
    else:
        with open(existing, "rb"):
            status = os.fstat(existing)
            if status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH:
                os.fchmod(existing, 0o600)
        return
    elsewhere = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ)
    if os.environ.get("RAY_AUTH_MODE", "token") != "token" or elsewhere:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        return  # another search has created the token in the meantime
