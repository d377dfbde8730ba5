"""Decides whether tuner may run the code that an experiment's folder names, before it imports any of it.

A folder is only data, which may come from anywhere. But `tuner.run --resume`, `tuner.train` and `tuner.audit` run the
space that the folder names. Therefore:

* These commands print the file whose code they will run.
* A folder of another user is refused. A folder of root is not refused, because root can change this program anyway.
* If only the folder says, by a path, where the space is, the space is refused in two cases. Its file differs (by
  sha256) from the one that the search ran, or it lies in the folder of results, so one archive may contain both.
* If that path is relative and no file is there, the absolute path in experiment.json is used, by the same rule.
* A changed space in `search_spaces/`, in an installed module, or named again by `--space`, is the user's own edit: it
  runs, and a line says that it has changed. A module in the working folder counts as a path. The resumed search saves
  the new sha256.
* A folder with links that may lead out of it is refused before it is written to (`refuse_links`).
* If only the folder names a cluster by host and port, it is refused: a driver and its cluster run each other's code.

`--trust` switches these checks off for one command; it is never saved. No check can detect a malicious folder that the
user has unpacked: the user owns it, and its author chose both the hash and the path. In that case the printed line that
names the file is the only protection.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.errors import RequestError
from tuner.record.saved_experiment import FILE, load_experiment
from tuner.record.storage.files import bytes_in
from tuner.record.storage.trial_files import RUNNING
from tuner.spec.spaces import file_of, is_path, split_path

OPTION = "--trust"
HELP = "run the code that the folder names, even if it has changed or the folder belongs to another user"


def code_of(
    folder: Path,
    files: Sequence[str],
    space: object,
    sha256: object,
    *,
    trusted: bool = False,
    named_now: bool = False,
    recorded: str | None = None,
) -> tuple[str, list[str]]:
    """Returns the name that loads the folder's space from here, and lines to print about the file that it runs.

    The name is `space`, or the absolute path that experiment.json records. There are no lines if no file is found.

    Args:
        folder: the experiment's folder or its `best/`.
        files: names of the file in `folder` that names the space, and of its copy if it has one.
        sha256: the digest of the space's file when the search ran, as the folder records it.
        named_now: whether the user has named the same space by `--space`.
        recorded: the `recorded_path` of the space; None = read experiment.json for it, if it is needed.

    Raises:
        RequestError: the code must not run, or neither the working folder nor the recorded path has its file.
    """
    if not trusted:
        for place in (folder, *(folder / name for name in files if (folder / name).exists())):
            refuse_strangers(place)
    named_by = folder / files[0]
    if not isinstance(space, str):
        raise RequestError(f"{named_by} has {space!r} instead of the name of a space; restore the file from a copy")
    if not named_now and is_path(space) and not Path(space).is_absolute() and file_of(space) is None:
        named_by = _experiment_of(folder) / FILE
        space = _where_it_was(space, named_by, trusted, recorded)
    path, willing = file_of(space), trusted or named_now
    if path is None:
        if "." in space and not is_path(space) and not willing:
            raise RequestError(f"{named_by} names the module {space}, which is not found; {CHECK_THEN_TRUST}")
        return space, []  # `find_space` will raise an error that says what is missing
    try:
        changed = hashlib.sha256(bytes_in(path.parent, path.name)).hexdigest() != sha256
    except (OSError, ValueError) as error:
        raise RequestError(f"{named_by} names {path}, which cannot be read: {error}") from None
    inside = path.is_relative_to(no_code_below(folder))
    if (inside or changed) and not (willing or _is_installed(space, path)):
        why = "lies in the folder of results" if inside else "has changed since the search"
        raise RequestError(f"{named_by} names {path}, which {why}: its code is not run; {CHECK_THEN_TRUST}")
    note = [f"NOTE: {path} has changed since the search; the figures may differ"] if changed else []
    return space, [f"code: {', '.join(map(str, (path, *_packages(space, path))))}", *note]


def _where_it_was(space: str, named_by: Path, trusted: bool, recorded: str | None) -> str:
    """Returns the space by the absolute path that experiment.json records; raises a RequestError if it is no file."""
    file, attribute = split_path(space)
    path = _recorded_in(named_by.parent, space) if recorded is None else recorded
    if not os.path.isfile(path):
        gone = f", and its file in the search, {path}, is gone" if path else ""
        raise RequestError(
            f"the space {space} is not in {Path.cwd()}{gone}; run this in the folder that has {file}, or give space= "
            f"in Python"
        )
    if not trusted:
        for place in (named_by.parent, named_by):
            refuse_strangers(place)
    return f"{path}:{attribute}" if attribute else path


def names_its_space(given: str, space: str, recorded: str) -> bool:
    """Whether `given` is a path to the file of a space, which its experiment names by `space`.

    Args:
        recorded: the `recorded_path` of the space.
    """
    if not is_path(given) or split_path(given)[1] != split_path(space)[1]:
        return False
    return bool(recorded) and file_of(given) == Path(recorded).resolve()


def recorded_path(facts: dict[str, Any]) -> str:
    """Returns the absolute path of the space's .py file that experiment.json records; empty if it has none."""
    try:
        path = facts["space"]["path"]
    except (KeyError, TypeError):
        return ""
    return path if isinstance(path, str) and os.path.isabs(path) and path.endswith(".py") else ""


def _recorded_in(experiment: Path, space: str) -> str:
    try:
        saved, facts = load_experiment(experiment)
    except RequestError:
        return ""
    return recorded_path(facts) if saved.space == space else ""


def no_code_below(folder: Path) -> Path:
    """Returns the folder below which no code is run for an experiment's folder or its `best/`: that of all results.

    If the working folder is in that folder (`--results .`), the user has code there. Then it is the experiment's own.
    """
    experiment = _experiment_of(folder)
    results = experiment.parent
    return experiment if Path.cwd().is_relative_to(results) else results


def _experiment_of(folder: Path) -> Path:
    """Returns the experiment's folder; `folder` is that folder or its `best/`."""
    whole = folder.resolve()
    return whole.parent if whole.name == "best" else whole


def _packages(space: str, path: Path) -> list[Path]:
    """Returns the `__init__.py` files of the packages around a module, which Python runs before the module."""
    depth = 0 if is_path(space) else space.partition(":")[0].count(".")
    inits = [folder / "__init__.py" for folder in list(path.parents)[:depth]]
    return [init for init in reversed(inits) if init.is_file()]


CHECK_THEN_TRUST = f"check it, then give {OPTION} (or, with --resume, the same --space again)"


def refuse_strangers(place: Path) -> None:
    """Raises a RequestError if a file or folder belongs neither to this user nor to root."""
    owner = os.stat(place).st_uid
    if owner not in (os.geteuid(), 0):
        raise RequestError(f"{place} belongs to {_name(owner)}: no code is run for it; {CHECK_THEN_TRUST}")


def refuse_links(folder: Path) -> None:
    """Raises a RequestError if the folder contains a link through which files might be written outside of it.

    A link directly in the folder is refused wherever it leads. A link in a subfolder is refused if it leads out of the
    folder. `wandb/` is not checked, because W&B replaces its own links there. Nor are the folders in which trials ran
    until they were killed: `tuner.engine.workers.own_folder` removes links there before it uses them again.
    """
    whole = folder.resolve()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and (Path(place) == folder or not path.resolve().is_relative_to(whole)):
                raise RequestError(
                    f"{path} is a link, so files might be written outside the folder; remove it, or give {OPTION}"
                )
        unchecked = "wandb" if Path(place) == folder else RUNNING if Path(place).parent == folder / "ray" else ""
        folders[:] = [name for name in folders if name != unchecked]


def refuse_cluster(folder: Path, address: str) -> None:
    """Refuses a cluster by host and port that a folder names; callers skip this if the user gave it or --trust."""
    if address not in ("", "auto"):
        raise RequestError(f"{folder} names the cluster {address}; join it by --address {address}, or give {OPTION}")


def _is_installed(space: str, path: Path) -> bool:
    """Whether a space is trusted as a module in `search_spaces/`, in Python's libraries or outside the working folder.

    A module that Python finds in the working folder may be any file below it, such as `results.evil.space`.
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
