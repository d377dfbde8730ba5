"""Decides which files in and around the folder in which a search was started a trial gets as copies, which as links.

A trial may change a copy. A link is shared: what a trial writes there, it writes into the user's own file. A folder
that would be a link is shown as a folder with a link for each entry, so that `..` leads back to the trial's own folder;
a hidden one, such as `.git`, stays one link.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tuner.errors import RequestError
from tuner.record.saved_experiment import COPY, FILE
from tuner.record.storage.made import RECORD

NUM_LEVELS_ABOVE = 2  # how many folders above the start folder a trial finds by `..`
MAX_FILE_BYTES = 1 << 20  # a larger file is a link
MAX_COPIED_BYTES = 20 << 20  # of all copies, and of the copies in one folder and below it
MAX_COPIED_FILES = 5_000
MAX_ENTRIES = 1_000  # a folder with more entries, with its subfolders, has only links
MAX_HIDDEN_ENTRIES = 100  # the same for a hidden folder, such as `.git`
MAX_DEPTH = 100  # a folder with a longer path, in folders, has only links; Python's recursion ends below 500
MAX_START_ENTRIES = 20_000  # in the start folder itself; a link adds 40 us to each trial's start
MAX_LINKS = 10_000  # with more links, a folder that would have only links is one link itself
IS_EXPERIMENT = "another experiment"
ABOVE, YOURS, INSIDE = "is above the start folder", "is a link of yours", "is in a folder of links"


class UnshowableError(RequestError):
    """The start folder cannot be read, or has more than MAX_START_ENTRIES entries."""


class Surroundings(NamedTuple):
    """What a trial's folder shows, by absolute path: folders, files to copy, and links with the reason for each."""

    folders: list[str]  # parents first
    copies: dict[str, int]  # bytes
    links: dict[str, str]
    opened: dict[str, str]  # folders whose entries are all links, and why
    not_shown: list[str]  # of the folders above the start folder, those that are unreadable or have too many entries


def surroundings_of(start: Path, script: Path | None, experiment: Path) -> Surroundings:
    """Scan the start folder and two levels above it, and those of a script that lies elsewhere.

    Args:
        script: the script that a trial runs, if any; its own folders are never links.
        experiment: the folder of the running search, which is not shown.

    Raises:
        UnshowableError: the start folder cannot be shown.
    """
    is_elsewhere = script is not None and not script.is_relative_to(start)
    roots = [start, *([script.parent] if script and is_elsewhere else [])]
    way = {str(each) for root in (start, *(script.parents if script else ())) for each in (root, *root.parents)}
    found = Surroundings([], {}, {}, {}, [])
    for root in roots:
        for folder in [*root.parents][:NUM_LEVELS_ABOVE]:
            found.folders.insert(0, str(folder))
            above: list[str] = []
            with suppress(OSError), os.scandir(folder) as entries:
                above = [entry.path for entry in islice(entries, MAX_START_ENTRIES + 1)]
            if not above or len(above) > MAX_START_ENTRIES:
                found.not_shown.append(str(folder))
            else:
                found.links.update({path: ABOVE for path in above if path not in way})
        inner = _scan(str(root), MAX_START_ENTRIES, way, str(experiment))
        if isinstance(inner, str):
            what = "trials get copies of or links to all of it; start the search in a folder with the code alone"
            raise UnshowableError(f"{root} {inner}: {what}")
        _merge(found, inner)
    # Python code comes first, and a file of the start folder before those of folders in it.
    num, size = 0, 0
    for path in sorted(found.copies, key=lambda path: (not path.endswith(".py"), path.count("/"), path)):
        num, size = num + 1, size + found.copies[path]
        if num > MAX_COPIED_FILES or size > MAX_COPIED_BYTES:
            found.links[path] = f"beyond {MAX_COPIED_FILES:,} copies or {MAX_COPIED_BYTES >> 20} MiB"
            del found.copies[path]
    for path in (*found.folders, *found.copies, *found.opened):  # a script above the start folder shows them, too
        found.links.pop(path, None)
    _open_folders(found)
    found.links.pop(str(experiment), None)
    return found


def _open_folders(found: Surroundings) -> None:
    """Add a link for each entry of `opened` folders, those with the fewest entries first; others become links."""
    entries: dict[str, list[str]] = {}
    for path in found.opened:
        with suppress(OSError), os.scandir(path) as listed:
            entries[path] = [entry.path for entry in islice(listed, MAX_LINKS + 1)]
    room = MAX_LINKS - len(found.links)
    for path in sorted(found.opened, key=lambda path: len(entries.get(path, ()))):
        if path in entries and (room := room - len(entries[path])) >= 0:
            found.folders.append(path)
            found.links.update(dict.fromkeys(entries[path], INSIDE))
        else:
            found.links[path] = found.opened.pop(path)


def _scan(folder: str, most: int, way: Collection[str], experiment: str) -> Surroundings | str:
    """Return what is in a folder and below it, or why it gets only links; an empty text if it is not shown."""
    found, size, is_way = Surroundings([folder], {}, {}, {}, []), 0, folder in way
    try:
        with os.scandir(folder) as entries:
            listed = list(islice(entries, most + 1))
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    names = {entry.name for entry in listed}
    if folder == experiment or RECORD in names and not is_way:
        return ""  # or a temporary folder of another search
    if not is_way and {FILE, COPY} <= names:
        return IS_EXPERIMENT
    if not is_way and {"pyvenv.cfg", "conda-meta"} & names:
        return "is an environment"
    if len(listed) > most:
        return f"has more than {most:,} entries"
    for entry in listed:
        path = entry.path
        if entry.is_symlink():
            found.links[path] = YOURS
        elif entry.is_dir():
            inner = _inside(entry, way, experiment)
            if isinstance(inner, Surroundings):
                _merge(found, inner)
                size += sum(inner.copies.values())
            elif inner:
                is_one_link = inner == IS_EXPERIMENT or entry.name.startswith(".")  # git reads no `.git` full of links
                (found.links if is_one_link else found.opened)[path] = inner
        elif not entry.is_file():
            found.links[path] = "is no regular file"
        elif (num_bytes := _size_of(entry)) > MAX_FILE_BYTES:
            found.links[path] = f"is larger than {MAX_FILE_BYTES >> 20} MiB"
        elif len(listed) > MAX_ENTRIES and not path.endswith(".py"):
            found.links[path] = f"is in a folder with more than {MAX_ENTRIES:,} entries"
        else:
            found.copies[path] = num_bytes
            size += num_bytes
        if not is_way and (sum(map(len, found)) > most + 1 or size > MAX_COPIED_BYTES):
            return f"has more than {most:,} entries or {MAX_COPIED_BYTES >> 20} MiB to copy"
    return found


def _size_of(entry: os.DirEntry[str]) -> int:
    with suppress(OSError):  # somebody has just removed the file
        return entry.stat().st_size
    return 0


def _inside(entry: os.DirEntry[str], way: Collection[str], experiment: str) -> Surroundings | str:
    if entry.path in way:
        return _scan(entry.path, MAX_START_ENTRIES, way, experiment)
    if entry.name == "site-packages":
        return "is an environment"
    if os.path.ismount(entry.path):
        return "is a mount"
    if entry.path.count("/") > MAX_DEPTH:
        return f"is more than {MAX_DEPTH} folders deep"
    most = MAX_HIDDEN_ENTRIES if entry.name.startswith(".") else MAX_ENTRIES
    return _scan(entry.path, most, way, experiment)


def _merge(found: Surroundings, inner: Surroundings) -> None:
    found.folders.extend(inner.folders)
    found.copies.update(inner.copies)
    found.links.update(inner.links)
    found.opened.update(inner.opened)
