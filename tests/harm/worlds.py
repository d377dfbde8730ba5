"""Random worlds: a home with a project in it, a search that starts there, and what its trials do."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import acting
import hypothesis.strategies as some

NAMES = (
    *("data", "datasets", "cache", ".cache", "results", "ray", "best", "files", "running", ".git", "checkpoints"),
    *("outputs", "src", "above", "model.pt", "train.log", "with space", "größe-数据", "-leading", ".venv", "tuner-x"),
)
ENTRIES = (
    *("file", "file", "folder", "folder", "large", "many", "read-only file", "read-only folder", "fifo"),
    *("link inside", "link outside", "link above", "link in a circle", "dangling link", "absolute link"),
    *("hard link above", "hard link outside", "large hard link outside", "bind mount", "tmpfs"),
)
RESULTS = (None, None, ".", "..", "../data/results", "data/results", "absolute", "store")
KINDS = ("function", "function", "script", "script", "class", "program", "task", "ddp")
CHANGES = ["absolute", *sorted(name.removeprefix("do_") for name in dir(acting.Actor) if name.startswith("do_"))]
TAKES_TWO = {"rename", "replace", "link", "symlink"}
LARGE = (1 << 20) + 1  # the smallest file that a trial's folder shows by a link
MANY = 1001  # entries of a folder that is shown by a link


@dataclass(frozen=True)
class Entry:
    """Something of the user's: a path below the project, and its kind."""

    path: str
    kind: str


@dataclass(frozen=True)
class Program:
    """What one trial does: changes before each of its reports, and its end."""

    steps: tuple[tuple[tuple[str, ...], ...], ...]
    ending: str = "returns"  # or "fails", "is killed"
    checkpoints: bool = False
    at_exit: bool = False  # whether a handler writes a file; see the test of it
    loss: int = 1


@dataclass(frozen=True)
class Kill:
    """What is killed so many seconds after the search's journal has begun: the driver, a worker, or all processes."""

    who: str
    after_s: float


@dataclass(frozen=True)
class World:
    """All that determines a test; its `repr` can be pasted into one."""

    programs: tuple[Program, ...]
    entries: tuple[Entry, ...] = ()
    above: tuple[str, ...] = ("project",)  # the folders from the home to the project
    start: str = "."  # the folder of the project where the search starts
    results: str | None = None  # the value of --results; None: its default
    tmp_inside: bool = False  # whether TMPDIR lies in the start folder
    kind: str = "function"
    two: bool = False  # whether a second search runs beside it
    kill: Kill | None = None


def parts(at_most):
    return some.lists(some.sampled_from(NAMES), min_size=1, max_size=at_most).map("/".join)


@some.composite
def worlds(draw, kills=False):
    """Draw a World; the simplest is one small trial in an empty project."""
    entry = some.builds(Entry, parts(3), some.sampled_from(ENTRIES))
    entries = tuple(draw(some.lists(entry, max_size=10)))
    folders = sorted({"."} | {str(parent) for each in entries for parent in Path(each.path).parents})
    start = draw(some.sampled_from(folders))
    known = sorted({os.path.relpath(each, start) for each in [*folders, *(each.path for each in entries)]})
    known = [path for path in known if path.count("..") <= 2 and path != "."]
    inside = [path for path in known if ".." not in path] or ["new"]
    usual = some.sampled_from(inside) | parts(2)
    through = some.builds("{}/../{}".format, some.sampled_from(inside), some.sampled_from(NAMES))
    below = some.builds(os.path.join, some.sampled_from(inside), some.sampled_from(NAMES))
    above = some.sampled_from(
        [*known, "../mine.txt", "../data/mine.bin", "../../mine.txt", "../new.txt", "../new/x.txt"]
    )
    path = some.one_of(usual, usual, below, below, through, above)
    change = some.builds(
        lambda name, path, other, size: (name, path, other if name in TAKES_TWO else "", size),
        *(some.sampled_from(CHANGES), path, path, some.sampled_from(["small", "small", "small", "large"])),
    )
    steps = some.lists(some.lists(change, max_size=6).map(tuple), min_size=1, max_size=3).map(tuple)
    endings = some.sampled_from(["returns", "returns", "returns", "fails", "is killed"])
    program = some.builds(Program, steps, endings, some.booleans(), some.just(False), some.integers(0, 9))
    world = World(
        programs=tuple(draw(some.lists(program, min_size=1, max_size=3))),
        entries=entries,
        above=tuple(draw(some.lists(some.sampled_from(NAMES), max_size=4))),
        start=start,
        results=draw(some.sampled_from(RESULTS)),
        tmp_inside=draw(some.sampled_from([False, False, False, True])),
        kind=draw(some.sampled_from(KINDS)),
        two=draw(some.sampled_from([False, False, False, True])),
    )
    if not kills:
        return world
    who, after_s = draw(some.sampled_from(["driver", "worker", "all"])), draw(some.floats(0, 3))
    return replace(world, kill=Kill(who, after_s))


class Place:
    """A World on the disk: `with built(world) as place`."""

    def __init__(self, world, root):
        self.world, self.root = world, root
        self.home = root / "u" / "me"  # a trial sees two levels above its start folder, so here at most `root`
        self.project = self.home.joinpath(*world.above)
        self.start = self.project / world.start
        self.control, self.store, self.elsewhere = root / "control", root / "store", root / "elsewhere"
        self.ray, self.tmp = root / "r", self.start / "tmp" if world.tmp_inside else root / "t"
        self.mounts = []

    @property
    def results(self):
        """The value of --results, and the folder it means."""
        given = {"absolute": str(self.root / "disk" / "results"), "store": f"file://{self.store}"}
        value = given.get(self.world.results, self.world.results)
        return value, self.store if self.world.results == "store" else self.start / (value or "results")

    def build(self):
        for folder in (self.start, self.control, self.store, self.elsewhere, self.ray, self.tmp):
            folder.mkdir(parents=True, exist_ok=True)
        for folder in self.project.parents:
            if folder.is_relative_to(self.home.parent):
                self.mine(folder / "mine.txt")
                self.mine(folder / "data" / "mine.bin")
        self.mine(self.home / ".cache" / "huggingface" / "model.bin")
        self.mine(self.tmp / "tuner-mine" / "owned")  # a name is no proof
        self.mine(self.elsewhere / "set" / "train" / "image.jpg")
        self.mine(self.elsewhere / "large.bin", LARGE)
        with contextlib.suppress(OSError):
            self.mine(self.start / "helper.py", content="VALUE = 1\n")
        read_only = []
        for number, entry in enumerate(self.world.entries):
            path = self.project / entry.path
            with contextlib.suppress(OSError):  # an earlier entry is in its place
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.parent.resolve() == path.parent and not os.path.lexists(path):
                    self.make(path, entry.kind, number)
                    read_only += [path] * entry.kind.startswith("read-only")
        for path in read_only:
            path.chmod(0o555 if path.is_dir() else 0o444)

    def mine(self, path, size=40, content=None):
        """Write a file of the user's, if the place is free."""
        if not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content or f"mine: {path}"[:size])
            os.truncate(path, path.stat().st_size if content else size)

    def make(self, path, kind, number):
        first = next(iter(sorted(each for each in self.project.iterdir() if each != path)), self.home / "mine.txt")
        links = {
            "link inside": os.path.relpath(first, path.parent),
            "link outside": os.path.relpath(self.elsewhere / "set", path.parent),
            "link above": "../..",
            "link in a circle": path.name,
            "dangling link": "nowhere/at/all",
            "absolute link": str(self.elsewhere / "set"),
        }
        if kind in links:
            path.symlink_to(links[kind])
        elif kind.endswith("file"):
            self.mine(path)
        elif kind.endswith("folder"):
            self.mine(path / "mine.txt")
        elif kind == "large":
            self.mine(path, LARGE)
        elif kind == "many":
            path.mkdir()
            for name in range(MANY):
                (path / str(name)).touch()
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "hard link above":
            os.link(self.home.parent / "mine.txt", path)
        elif kind == "hard link outside":
            os.link(self.elsewhere / "set" / "train" / "image.jpg", path)
        elif kind == "large hard link outside":
            os.link(self.elsewhere / "large.bin", path)
        else:
            path.mkdir()
            self.mine(source := self.elsewhere / f"mounted-{number}" / "mine.txt")
            options = ["--bind", str(source.parent)] if kind == "bind mount" else ["-t", "tmpfs", "none"]
            if subprocess.run(["mount", *options, str(path)], capture_output=True).returncode == 0:
                self.mounts.append(path)
                self.mine(path / "mine.txt")

    def originals(self):
        """Return relative path -> digest of small files that a trial must be able to read by this path."""
        found, results = {}, self.results[1].resolve()
        hidden = {self.tmp, results} - {self.start, *self.start.parents}
        for top in (self.start, self.start.parent, self.start.parent.parent):
            for path in sorted(top.rglob("*"))[:200] if top.is_relative_to(self.home.parent) else ():
                if not hidden & {path, *path.parents} and path.is_file() and path.stat().st_size < LARGE:
                    found[os.path.relpath(path, self.start)] = acting.digest(path)
        return found

    def describe(self, own):
        """Write down for the trials what they do and where their own folders may be."""
        described = {"programs": [asdict(each) for each in self.world.programs], "own": [str(path) for path in own]}
        described["elsewhere"] = str(self.elsewhere)
        for program in described["programs"]:
            program["pause_s"] = 0.3 if self.world.kill else 0
        (self.control / "world.json").write_text(json.dumps(described | {"originals": self.originals()}))


@contextlib.contextmanager
def built(world):
    """Build a world in a temporary folder with a short name, because paths of sockets have at most 107 characters."""
    root = Path(tempfile.mkdtemp(prefix="harm-", dir="/tmp"))
    place = Place(world, root)
    try:
        place.build()
        yield place
    finally:
        for path in reversed(place.mounts):
            subprocess.run(["umount", str(path)]).check_returncode()  # else the removal would go behind it
        for folder, _, _ in os.walk(root):
            os.chmod(folder, 0o700)
        shutil.rmtree(root)
