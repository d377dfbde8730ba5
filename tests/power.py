"""A disk whose power goes: it has what was synced, and of all other changes a random part.

As SQLite's `test6.c` and Pebble's `CrashClone` do it. The rules are POSIX's, which promise less than ext4 keeps:

* A sync of a file makes its content durable, not its name. A sync of a folder makes the names in it durable.
* Of each other change the disk may have the old or the new state. Content may be there in part, or as zeros.
"""

import contextlib
import os
import random
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, combinations
from pathlib import Path
from typing import NamedTuple

import pytest
from journals import Journal

CHANGES = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "shutil.rmtree"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
SHARES = (0.0, 0.2, 0.5, 0.8, 1.0)  # of the changes that are not durable, how many an image keeps
_watching: list["Disk"] = []  # the disk of the present `watched` block, if any


class State(NamedTuple):
    """What is durable and what a program sees at one moment; a number names a file or folder, as an inode does."""

    root: int
    durable_names: dict[int, dict[str, int]]
    names: dict[int, dict[str, int]]
    durable_contents: dict[int, bytes]
    contents: dict[int, bytes]
    folders: set[int]

    def image(self, chance):
        """What the disk has afterwards, path -> content (None: a folder); `chance` decides on what is not durable."""
        tree, drawn = {}, {}

        def visit(folder, path):
            old, new = self.durable_names.get(folder, {}), self.names.get(folder, {})
            for name in sorted(old.keys() | new.keys()):
                before, after = old.get(name), new.get(name)
                each = after if before == after or chance.keeps((folder, name)) else before
                if each is None:
                    continue
                below = f"{path}/{name}" if path else name
                if each in self.folders:
                    tree[below] = None
                    visit(each, below)
                else:
                    tree[below] = drawn[each] if each in drawn else drawn.setdefault(each, self._content(each, chance))

        visit(self.root, "")
        return tree

    def _content(self, file, chance):
        old = self.durable_contents.get(file)
        new = self.contents.get(file, old)
        return new if new == old or chance.keeps(file) else chance.content(old, new)

    def changes(self):
        """All that is not durable: each keeps its key in `keeps`."""
        folders = self.durable_names.keys() | self.names.keys()
        tables = [(each, self.durable_names.get(each, {}), self.names.get(each, {})) for each in folders]
        keys = [(each, n) for each, old, new in tables for n in old.keys() | new.keys() if old.get(n) != new.get(n)]
        return keys + [f for f, content in self.contents.items() if content != self.durable_contents.get(f)]

    def all_images(self):
        """The images of all combinations of kept and lost changes, none twice."""
        changes = self.changes()
        assert len(changes) <= 12, f"{len(changes)} changes at once have too many combinations"
        subsets = chain.from_iterable(combinations(changes, num) for num in range(len(changes) + 1))
        images = (self.image(Exactly(frozenset(kept))) for kept in subsets)
        return list({tuple(sorted(image.items())): image for image in images}.values())


@dataclass(frozen=True)
class Exactly:
    """Keeps these changes and no other."""

    kept: frozenset

    def keeps(self, change):
        return change in self.kept

    def content(self, old, new):
        return old or b""


class Chance:
    """Keeps a share of the changes, and parts of contents, as a seed draws them."""

    def __init__(self, seed, share):
        self._stream, self._share = random.Random(seed), share

    def keeps(self, change):
        return self._stream.random() < self._share

    def content(self, old, new):
        """Something between the old content (None: no file was there) and the new one, which may have appended."""
        if old is not None and (self._share == 0 or self._stream.random() < 0.3):
            return old
        start = old if old and new.startswith(old) else os.path.commonprefix([old or b"", new])
        rest = new[len(start) :]
        at = self._stream.randint(0, len(rest))
        zeros, hole = bytes(len(rest) - at), bytes(at)  # the length reached the disk before the blocks, or some of them
        return start + self._stream.choice([rest[:at], rest[:at], b"", rest[:at] + zeros, hole + rest[at:]])


@dataclass
class Crash:
    """A moment at which the power may go.

    Attributes:
        number, what: the point's number in its run, and what happens there.
        acted: the beginning of the journal with all decisions that had been acted upon.
        begun: the journal's first line if a trial had started, else nothing.
    """

    number: int
    what: str
    state: State
    acted: bytes
    begun: bytes

    def __str__(self):
        return f"point {self.number} ({self.what})"


@dataclass
class Disk:
    """Watches the folder `root` while a search changes it. What it has at the beginning is durable.

    Attributes:
        chosen: whether a point's number (1, 2, ...) is one of those whose state is kept in `crashes`.
    """

    root: Path
    chosen: Callable[[int], bool]
    crashes: list[Crash] = field(default_factory=list)
    number: int = 0
    begun: bytes = b""  # the journal's first line, once a trial has started
    _open: dict[int, int] = field(default_factory=dict)  # inode -> a descriptor: no other file gets its number
    _folders: set[int] = field(default_factory=set)
    _names: dict[int, dict[str, int]] = field(default_factory=dict)
    _contents: dict[int, bytes] = field(default_factory=dict)
    _decided: dict[str, int] = field(default_factory=dict)  # trial -> the journal's size at its last decision to act on
    _paused: set[str] = field(default_factory=set)
    _journal: Path | None = None
    _acted: int = 0

    def __post_init__(self):
        self._names, self._contents = self._seen()

    def close(self):
        for handle in self._open.values():
            os.close(handle)

    def synced(self, handle):
        """Makes durable what a sync of the open file or folder does."""
        number, path = os.fstat(handle).st_ino, os.readlink(f"/proc/self/fd/{handle}")
        if (name := self.below(path)) is None:
            return
        self.point(f"before the sync of {name}")
        self._hold(path, number)
        if number in self._folders:
            self._names[number] = self._listed(path)
        else:
            self._contents[number] = self._read(number)
        self.point(f"after the sync of {name}")

    def below(self, path):
        """The path below the root, `.` for the root itself; None for a path elsewhere."""
        root = f"{self.root}/"
        return path[len(root) :] or "." if f"{path}/".startswith(root) else None

    def wrote(self, journal, event, trial, fields):
        """Notes a line of the journal; a decision to stop, pause, promote or copy has to be durable before it acts."""
        self._journal, size = journal, journal.stat().st_size
        if event == "trial_started" and not self.begun:
            self.begun = journal.read_bytes().partition(b"\n")[0]
        if event == "decision":
            acts = fields["action"] in ("stop", "pause") or "copies the state" in fields["reason"]
            if acts or trial in self._paused:
                self._decided[trial] = size
            (self._paused.add if fields["action"] == "pause" else self._paused.discard)(trial)
        self.point(f"after the line of {event} {trial or ''}")

    def acts(self, *trials):
        """A worker learns of the last decision on these trials."""
        self._acted = max([self._acted, *(self._decided.get(trial, 0) for trial in trials)])

    def point(self, what):
        self.number += 1
        if self.chosen(self.number):
            acted = self._journal.read_bytes()[: self._acted] if self._acted else b""
            self.crashes.append(Crash(self.number, what, self.state(), acted, self.begun))

    def state(self):
        names, contents = self._seen()
        durable = {folder: dict(entries) for folder, entries in self._names.items()}
        for file in {each for entries in durable.values() for each in entries.values()} - self._folders:
            if file not in contents:  # deleted, but its name may be back
                contents[file] = self._read(file)
        return State(self._hold(self.root), durable, names, dict(self._contents), contents, set(self._folders))

    def _seen(self):
        names, contents, left = {}, {}, [(self._hold(self.root), self.root)]
        while left:
            folder, path = left.pop()
            names[folder] = self._listed(path)
            for name, each in names[folder].items():
                if each in self._folders:
                    left.append((each, path / name))
                else:
                    contents[each] = (path / name).read_bytes()
        return names, contents

    def _listed(self, path):
        with os.scandir(path) as entries:
            return {entry.name: self._hold(entry.path, entry.inode()) for entry in entries if not entry.is_symlink()}

    def _hold(self, path, inode=0):
        if inode not in self._open:
            handle = os.open(path, os.O_PATH | os.O_NOFOLLOW)
            status = os.fstat(handle)
            inode = status.st_ino
            if stat.S_ISDIR(status.st_mode):
                self._folders.add(inode)
            if inode in self._open:
                os.close(handle)
            else:
                self._open[inode] = handle
        return inode

    def _read(self, file):
        return Path(f"/proc/self/fd/{self._open[file]}").read_bytes()


@contextlib.contextmanager
def watched(root, chosen):
    """A `Disk` that watches `root` in the block; nothing is really synced in it."""
    _install_hook()
    disk, write = Disk(root, chosen), Journal.write

    def writes(journal, event, trial=None, **fields):
        write(journal, event, trial, **fields)
        disk.wrote(journal._path, event, trial, fields)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, disk.synced)
        patch.setattr(Journal, "write", writes)
        _watching.append(disk)
        try:
            yield disk
        finally:
            _watching.remove(disk)
            disk.close()


def _heard(event, arguments):
    if event not in CHANGES or not _watching:
        return
    if event == "open" and not arguments[2] & WRITES or not isinstance(arguments[0], (str, os.PathLike)):
        return
    if (name := _watching[-1].below(os.fspath(arguments[0]))) is not None:
        _watching[-1].point(f"before {event} {name}")


def _install_hook(installed=[]):  # noqa: B006  (Python calls a hook until the process ends)
    if not installed:
        installed.append(sys.addaudithook(_heard))


def write_image(image, root):
    """Makes the folder `root` with an image in it."""
    root.mkdir()
    for path, content in image.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def tree(root):
    """The content of a folder, as an image has it."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}
