"""A Ray of this machine alone: it listens on loopback; its token and files are its user's. Written for ray 2.60.0."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from ray._private import ray_constants
from ray._private.authentication.authentication_token_generator import generate_new_authentication_token
from ray._private.authentication.authentication_token_setup import AUTH_MODE_ENV_VAR, _get_default_token_path
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]  # its stub leaves the class out


@contextmanager
def on_loopback() -> Iterator[None]:
    """Inside, `ray.init` starts a Ray whose node has the address 127.0.0.1, where all of its processes listen.

    Ray has a switch for it, for systems without clusters, which it reads when it is imported; what is asked for is
    not known by then. Without it Ray listens on all interfaces, whatever `_node_ip_address` says.
    """
    keep_token_private()
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def keep_token_private() -> None:
    """Makes the token that Ray would make, readable by this user alone; Ray leaves that to the umask.

    A token that is there stays; one of ours that everybody can read is closed, as only an earlier Ray leaves it so.
    """
    path = _get_default_token_path()
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
    loader = AuthenticationTokenLoader.instance()
    if os.environ.get(AUTH_MODE_ENV_VAR, "token") != "token" or loader.has_token(ignore_auth_mode=True):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(generate_new_authentication_token())
    except FileExistsError:
        return  # by another search that starts
    loader.reset_cache()
