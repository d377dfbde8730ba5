"""Keeps the Ray of one search and one user on this machine private: its folder, its address and its token."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ray._private import ray_constants


@contextmanager
def session_folder() -> Iterator[str]:
    """Creates a folder for Ray's sockets and logs that only this user may enter, and removes it afterwards.

    Ray makes its own folders, such as /tmp/ray/session_*, writable for all users of the machine. The private folder
    around them keeps other users out.
    """
    base = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp")  # in the order in which Ray chooses
    if not base.exists():
        base.mkdir(parents=True)
    folder = tempfile.mkdtemp(prefix="tuner", dir=base)
    try:
        yield f"{folder}/ray"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Makes `ray.init` start a node on 127.0.0.1, so that all of Ray's processes listen there.

    It also creates the token (`keep_token_private`). Inside the `with` block Ray's constant ENABLE_RAY_CLUSTER is
    False. While it is True, Ray listens on all interfaces, even if `_node_ip_address` is set. Ray reads the environment
    variable for the constant at import, before the command's options are known.
    """
    keep_token_private()
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def keep_token_private() -> None:
    """Creates Ray's authentication token so that only this user can read it; Ray itself applies only the umask.

    It creates none if the environment names a token or turns tokens off. An existing token is kept. If its file belongs
    to this user and everybody can read it, the file's mode becomes 0600.
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
