"""What a folder contains, and how that differs from what it contained before."""

import contextlib
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

TYPES = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}


class Entry(NamedTuple):
    """All of an entry that nobody else may change; reading changes only the access time, which is left out."""

    type: str
    mode: str
    owner: tuple[int, int]
    inode: tuple[int, int]
    links: int
    mtime_ns: int
    content: str


def snapshot(root, leave_out=(), contents=True):
    """Return path -> Entry of everything at and below `root`, without `leave_out` and what is below; follow no link."""
    left_out, entries, todo = {os.fspath(path) for path in leave_out}, {}, [os.fspath(root)]
    while todo:
        path = todo.pop()
        if path in left_out:
            continue
        try:
            entries[path] = entry = entry_of(path, contents)
            if entry.type == "folder":
                todo += [os.path.join(path, name) for name in os.listdir(path)]
        except FileNotFoundError:  # another process has just removed it
            entries.pop(path, None)
        except PermissionError:  # unreadable for us, so for the search too
            pass
    return entries


def entry_of(path, contents):
    status = os.lstat(path)
    kind, content = TYPES.get(stat.S_IFMT(status.st_mode), "device"), ""
    if kind == "link":
        content = os.readlink(path)
    elif kind == "file":
        content = f"{status.st_size} bytes"
        if contents:
            with contextlib.suppress(PermissionError):
                content += f" {hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]}"
    links = 1 if kind == "folder" else status.st_nlink  # a folder's number counts the folders in it
    inode = status.st_dev, status.st_ino
    mode, owner = oct(stat.S_IMODE(status.st_mode)), (status.st_uid, status.st_gid)
    return Entry(kind, mode, owner, inode, links, status.st_mtime_ns, content)


def difference(before, after):
    """Return path -> a readable line for each path that was added, removed or changed."""
    lines = {}
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            entry = old or new
            lines[path] = f"{'added' if old is None else 'REMOVED'}: {path} ({entry.type} {entry.content})"
        elif old != new:
            fields = [name for name in Entry._fields if getattr(old, name) != getattr(new, name)]
            changes = ", ".join(f"{name} {getattr(old, name)} -> {getattr(new, name)}" for name in fields)
            lines[path] = f"changed: {path}: {changes}"
    return lines


def without_creation(lines, before, folder):
    """Return the lines without those of new folders on the way to `folder`, and of the time of the one they are in.

    Nothing else is left out: neither other entries beside it nor other attributes of the folder that it is created in.
    """
    lines = dict(lines)
    for way in map(str, Path(folder).parents):
        is_time = lines.get(way, "").startswith(f"changed: {way}: mtime_ns") and lines[way].count(" -> ") == 1
        if is_time if way in before else "(folder " in lines.get(way, ""):
            del lines[way]
        if way in before:
            break
    return lines
