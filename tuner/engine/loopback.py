"""Keeps a Ray of this machine alone on loopback, and its token readable by its user alone."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.engine import constants


@contextmanager
def on_loopback() -> Iterator[None]:
    """Inside, `ray.init` starts a Ray whose node has the address 127.0.0.1, where all of its processes listen.

    Ray has a switch for it, for systems without clusters, which it reads when it is imported; what is asked for is
    not known by then. Without it Ray listens on all interfaces, whatever `_node_ip_address` says.
    """
    keep_token_private()
    with constants.without_clusters():
        yield


def keep_token_private() -> None:
    """Makes the token that Ray would make, readable by this user alone; Ray leaves that to the umask.

    A token that is there stays; one of ours that everybody can read is closed, as only an earlier Ray leaves it so.
    """
    path = Path.home() / ".ray" / "auth_token"  # Ray's documented place
    try:
        existing = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        pass
    except OSError:
        return  # a link, or another user's: not ours to change
    else:
        with open(existing, "rb"):
            found = os.fstat(existing)
            if found.st_uid == os.getuid() and stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IROTH:
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
        return  # by another search that starts
