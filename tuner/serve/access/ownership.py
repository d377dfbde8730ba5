"""Checks that no other user of this machine can change, or open, a file or folder that the service trusts."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from tuner.errors import RequestError

WRITE, ANY = 0o022, 0o077  # permissions of the group and of others


def refuse_others(path: Path, permissions: int, otherwise: str, *, is_above: bool = False) -> None:
    """Raises a RequestError for a link, for another user's file or folder, or if others have any of `permissions`.

    A folder above what is trusted (`is_above`) may be root's too, and open to all if it is sticky, as /tmp is: in a
    sticky folder, nobody but their owner can replace files and folders. Raises OSError if `path` is missing.
    """
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise RequestError(f"{path} is a symbolic link; {otherwise}")
    if status.st_uid != os.geteuid() and not (is_above and status.st_uid == 0):
        raise RequestError(f"{path} belongs to another user (id {status.st_uid}); {otherwise}")
    if status.st_mode & permissions and not (is_above and status.st_mode & stat.S_ISVTX):
        act, gone = ("changed", "go-w") if permissions == WRITE else ("opened", "go-rwx")
        command = f"chmod {gone} {shlex.quote(str(path))}"
        raise RequestError(f"{path} can be {act} by other users; run {command}, or {otherwise}")
