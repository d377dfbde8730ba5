"""Decides whether tuner may run the code that an experiment's folder names, and write through the folder's links.

A folder is only data, which may come from anywhere; docs/security.md has the rules. Root may own a folder, because root
can change this program anyway. No check protects from a folder that the user has unpacked: its author chose both the
hash and the path in it. The only protection is then the printed line that names the file.
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
from tuner.record.data_folders import is_known, is_known_command
from tuner.record.saved_experiment import FILE, load_experiment
from tuner.record.storage.files import bytes_in
from tuner.spec.command import is_command, shown_name
from tuner.spec.spaces import SPACE_FILES, file_of, is_path, split_path

OPTION = "--trust"
HELP = "run the code and read the data that the folder names, even if changed, unknown or another user's"
CHECK_THEN_TRUST = f"check it, then give {OPTION} (or, with --resume, the same --space again)"


def code_of(
    folder: Path, files: Sequence[str], space: object, sha256: object, *, trusted: bool = False, named_now: bool = False
) -> tuple[str, list[str]]:
    """Returns the name that loads the folder's space from here, and lines to print about the file that then runs.

    The name is `space`. If `space` is a relative path and no file is there, the name is the absolute path that
    experiment.json records. Raises a RequestError if the code must not run, or if no file is at either path.

    Args:
        folder: the experiment's folder, its `best/`, or a folder in `best/front/`.
        files: names of files in the folder: first the one that names the space, then its copy, if it has one.
        sha256: the digest of the space's file when the search ran, as the folder records it.
        named_now: whether the user gives `--space` now; a resume later refuses any space but the recorded one.
    """
    experiment = _experiment_of(folder)
    named_by, willing = folder / files[0], trusted or named_now
    if not trusted:
        _refuse_strangers(folder, *(folder / name for name in files))
    if not isinstance(space, str):
        raise RequestError(f"{named_by} has {space!r} instead of the name of a space; restore the file from a copy")
    if is_command(space):
        if not (willing or is_known_command(space)):
            why = f"no search of yours has run it in {Path.cwd()}; go to the folder where you have"
            advice = f"or check it, then give {OPTION}"
            raise RequestError(f"{named_by} names the command {shown_name(space)!r}, and {why}, {advice}")
        return space, [f"code: {shown_name(space)}"]
    if not named_now and is_path(space) and not Path(space).is_absolute() and file_of(space) is None:
        named_by = experiment / FILE
        space = _where_it_was(space, experiment)
        if not trusted:
            _refuse_strangers(experiment, named_by)
    path = file_of(space)
    if path is None:
        if "." in space and not is_path(space) and not willing:
            raise RequestError(f"{named_by} names the module {space}, which is not found; {CHECK_THEN_TRUST}")
        return space, []  # `find_space` will raise an error that says what is missing
    try:
        changed = hashlib.sha256(bytes_in(path.parent, path.name)).hexdigest() != sha256
    except (OSError, ValueError) as error:
        raise RequestError(f"{named_by} names {path}, which cannot be read: {error}") from None
    # If the working folder is in the results (`--results .`), so is the user's code: then only `experiment` counts.
    results = experiment.parent
    inside = path.is_relative_to(experiment if Path.cwd().is_relative_to(results) else results)
    if (inside or changed) and not (willing or _is_installed(space, path)):
        why = "lies in the folder of results" if inside else "has changed since the search"
        raise RequestError(f"{named_by} names {path}, which {why}: its code is not run; {CHECK_THEN_TRUST}")
    note = [f"NOTE: {path} has changed since the search; the figures may differ"] if changed else []
    return space, [f"code: {', '.join(map(str, (path, *_packages(space, path))))}", *note]


def _experiment_of(folder: Path) -> Path:
    experiment = folder.resolve()
    experiment = experiment.parents[1] if experiment.parts[-3:-1] == ("best", "front") else experiment
    return experiment.parent if experiment.name == "best" else experiment


def results_of(folder: Path) -> Path:
    """Returns the folder of results of an experiment's folder, of its `best/`, or of a folder in `best/front/`."""
    return _experiment_of(folder).parent


def _where_it_was(space: str, experiment: Path) -> str:
    """Returns the name of the space by its absolute path in experiment.json; RequestError if no file is there."""
    file, attribute = split_path(space)
    try:
        saved, facts = load_experiment(experiment)
        path = recorded_path(facts) if saved.space == space else ""
    except RequestError:
        path = ""
    if not os.path.isfile(path):
        gone = f", and its file in the search, {path}, is gone" if path else ""
        raise RequestError(
            f"the space {space} is not in {Path.cwd()}{gone}; run this in the folder that has {file}, or give space= "
            f"in Python"
        )
    return f"{path}:{attribute}" if attribute else path


def recorded_path(facts: dict[str, Any]) -> str:
    """Returns the absolute path of the space's file that experiment.json records; empty if it records none."""
    try:
        path = facts["space"]["path"]
    except (KeyError, TypeError):
        return ""
    return path if isinstance(path, str) and os.path.isabs(path) and path.endswith(SPACE_FILES) else ""


def refuse_data_folder(named_by: Path, data_dir: str, results: Path, give: str) -> None:
    """Raises a RequestError if only `named_by`, a file in the results, names a data folder, unless `is_known`."""
    if not is_known(data_dir, results):
        raise RequestError(
            f"{named_by} names the data folder {data_dir}, which no search of yours has read here; "
            f"check it, then {give}"
        )


def refuse_links(folder: Path) -> None:
    """Raises a RequestError for a link directly in the folder, and for a deeper link that leads out of the folder.

    Files might be written through it. `wandb/` is not checked, because W&B replaces its own links there.
    """
    whole = folder.resolve()
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and (Path(place) == folder or not path.resolve().is_relative_to(whole)):
                raise RequestError(
                    f"{path} is a link, so files might be written outside the folder; remove it, or give {OPTION}"
                )
        if Path(place) == folder:
            folders[:] = [name for name in folders if name != "wandb"]


def _packages(space: str, path: Path) -> list[Path]:
    """Returns the `__init__.py` files of the packages around a module, which Python runs before the module."""
    depth = 0 if is_path(space) else space.partition(":")[0].count(".")
    inits = [folder / "__init__.py" for folder in list(path.parents)[:depth]]
    return [init for init in reversed(inits) if init.is_file()]


def _refuse_strangers(*places: Path) -> None:
    """Raises a RequestError if a file or folder belongs neither to this user nor to root."""
    for place in places:
        owner = os.stat(place).st_uid if place.exists() else 0
        if owner not in (os.geteuid(), 0):
            try:
                name = pwd.getpwuid(owner).pw_name
            except KeyError:
                name = str(owner)
            raise RequestError(f"{place} belongs to user {name}: no code is run for it; {CHECK_THEN_TRUST}")


def _is_installed(space: str, path: Path) -> bool:
    """Whether a space is a module in `search_spaces/`, in Python's libraries or outside the working folder.

    A module that Python finds in the working folder may be any file below that folder, such as `results.evil.space`.
    """
    if is_path(space):
        return False
    libraries = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    elsewhere = not path.is_relative_to(Path.cwd())
    return "." not in space.partition(":")[0] or elsewhere or any(map(path.is_relative_to, libraries))
