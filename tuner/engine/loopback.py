"""Makes a Ray that serves only this machine listen on loopback, with a token that only its user can read."""

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
    """Makes `ray.init` start a node on 127.0.0.1, so that all of Ray's processes listen there.

    Ray has a switch for systems without clusters, but reads it at import, before the command's options are known.
    Without the switch Ray listens on all interfaces, even if `_node_ip_address` is set.
    """
    keep_token_private()
    with constants.without_clusters():
        yield


def keep_token_private() -> None:
    """Creates Ray's authentication token so that only this user can read it; Ray itself applies only the umask.

    An existing token is kept. If it is this user's and everybody can read it, as after an earlier Ray, its mode
    becomes 0600.
    """
    path = Path.home() / ".ray" / "auth_token"  # the path that Ray documents
    try:
        existing = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        pass
    except OSError:
        return  # a link or another user's file, which must not be changed
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
        return  # another search that starts now has created it
