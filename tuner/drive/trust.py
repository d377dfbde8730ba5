"""Whose code is run for an experiment's folder: asked before the first import, by every command that imports a space.

A folder is data, from wherever it came. `tuner.run --resume`, `tuner.train` and `tuner.audit` run code by their nature:
the space that the folder names. So

* they name the file that they will run;
* a folder of another user is refused, whatever it names. Root's is not: root can change this program itself;
* a space that only the folder knows where to find, by a path, is refused where its file is not the one that the
  search ran (by sha256, which the folder records), or lies in the folder itself;
* an edited space of `search_spaces/` or of an installed module, or one that `--space` names again now, is the user's
  own edit: a line says that it has changed. A module in the working folder is as a path;
* a folder with links in it is refused where it is written to: what is written would land elsewhere;
* a cluster that only the folder names by host and port is refused: a driver and its cluster run each other's code.

`--trust` runs all of them as they are; it is said anew each time, and never kept. What no rule can tell: a folder that
this user has unpacked is this user's, and its maker wrote both the hash and the path. The line that names the file is
for that.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import sysconfig
from pathlib import Path

from tuner.spec.spaces import file_of, is_path

from tuner.errors import RequestError

OPTION = "--trust"
HELP = "run the code that the folder names, even if it has changed since, or the folder is another user's"


def code_of(
    folder: Path, file: str, space: object, sha256: object, *, trusted: bool = False, named_now: bool = False
) -> list[str]:
    """Lines that name the file whose code the folder's space is; RequestError where it must not be run.

    Args:
        folder, file: the experiment's folder, and the file in it that names the space.
        sha256: of the space's file when the search ran, as the folder records it.
        named_now: the user has named the space, too.
    """
    if not trusted:
        for place in (folder, folder / file):
            refuse_strangers(place)
    if not isinstance(space, str):
        raise RequestError(f"{folder / file} names no space, but {space!r}; restore it from a copy")
    path, willing = file_of(space), trusted or named_now
    if path is None:
        if "." in space and not is_path(space) and not willing:
            raise RequestError(f"{folder / file} names the module {space}, which is not found; {LOOK}")
        return []  # `find_space` says what is missing, and imports nothing
    changed = hashlib.sha256(path.read_bytes()).hexdigest() != sha256
    inside = path.is_relative_to(folder.resolve())
    if (inside or (changed and not _is_installed(space, path))) and not willing:
        why = "lies in the results" if inside else "has changed since the search"
        raise RequestError(f"{folder / file} names {path}, which {why}: its code is not run; {LOOK}")
    note = [f"NOTE: {path} has changed since the search; the figures may differ"] if changed else []
    return [f"code: {path}", *note]


LOOK = f"look at it, then give {OPTION} (or with --resume the same --space again)"


def refuse_strangers(place: Path) -> None:
    """RequestError where a file or folder belongs to another user than this one and root."""
    owner = os.stat(place).st_uid
    if owner not in (os.geteuid(), 0):
        raise RequestError(f"{place} belongs to {_name(owner)}: no code is run for it; {LOOK}")


def refuse_links(folder: Path) -> None:
    """RequestError where an entry of the folder is a link, or one below it leads out: writing would go through it.

    What lies in `wandb/` is passed over: W&B replaces its own links there.
    """
    whole = folder.resolve()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and (Path(place) == folder or not path.resolve().is_relative_to(whole)):
                raise RequestError(
                    f"{path} is a link: what is written would land elsewhere; remove it, or give {OPTION}"
                )
        if Path(place) == folder and "wandb" in folders:
            folders.remove("wandb")


def refuse_cluster(folder: Path, address: str) -> None:
    """RequestError where a cluster is meant by its host and port, which nobody but the folder names."""
    if address not in ("", "auto"):
        raise RequestError(f"{folder} names the cluster {address}; join it by --address {address}, or give {OPTION}")


def _is_installed(space: str, path: Path) -> bool:
    """Whether a space is the user's own by where it lies: in `search_spaces/`, or a module from elsewhere than here.

    A module that Python finds in the working folder may be any file below it: `results.evil.space`.
    """
    if is_path(space):
        return False
    libraries = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    elsewhere = not path.is_relative_to(Path.cwd())
    return "." not in space.partition(":")[0] or elsewhere or any(map(path.is_relative_to, libraries))


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"user {uid}"
