"""A search never touches what is not its own: everything outside the experiment's folder is the same before and after.

A world is a home with a project, a search that starts there, and what its trials do by relative paths. What a trial
itself writes through a link or by an absolute path may change, if the search's output names it.
"""

import os
import random
import shutil
import zlib

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from searches import harms_in
from snapshots import difference, snapshot, without_creation
from worlds import Entry, Kill, Program, World, worlds

SAVES = ("write", "model.pt"), ("write", "big.bin", "", "large"), ("nested", "new/folder"), ("mkfifo", "fifo")
SPOILS = ("rmtree", "src"), ("append", "train.log"), ("rename", "nested", "moved"), ("replace", "a.tmp", "model.pt")
TRIES = (
    ("chdir", "src"),
    ("write", "src/../model.pt"),
    ("resolve", "outputs/log"),
    ("child", "train.log"),
    ("truncate", "run"),
)
OTHERS = (
    ("threads", "outputs"),
    ("absolute", "log"),
    ("sqlite", "run.db"),
    ("chmod", "train.log"),
    ("touch", "src/a"),
    ("link", "model.pt", "m"),
)
ALL = Program((SAVES, (*SPOILS, *TRIES), OTHERS), checkpoints=True)
PROGRAMS = ALL, Program((SPOILS,), ending="fails", loss=2), Program((OTHERS,), ending="is killed", loss=3)
PROJECT = (
    *(Entry("src/a", "file"), Entry("nested/deep/b", "file"), Entry("model.pt", "file"), Entry("train.log", "file")),
    *(Entry("run", "large"), Entry(".git/objects", "many"), Entry("outputs", "folder"), Entry("data/x", "folder")),
)
LINKS = (
    *(Entry("to/set", "link outside"), Entry("to/circle", "link in a circle"), Entry("to/none", "dangling link")),
    *(Entry("one", "hard link outside"), Entry("other", "large hard link outside"), Entry("fifo", "fifo")),
    *(Entry("mount", "bind mount"), Entry("ro/file", "read-only file"), Entry("ro", "read-only folder")),
)
# Of each kind of space, place of the results and kind of harm that was once found, one world.
FEW = {
    "below a folder named data": World(PROGRAMS, PROJECT, ("data", "x"), results="data/results"),
    "a script, with a store": World(PROGRAMS, PROJECT, (), kind="script", results="store"),
    "a class, with links and mounts": World(PROGRAMS[:2], PROJECT + LINKS, kind="class", results=".."),
    "two programs at once": World(PROGRAMS[:1], PROJECT, ("with space", "größe-数据"), kind="program", two=True),
    "all processes killed": World(PROGRAMS[:2], PROJECT, tmp_inside=True, results=".", kill=Kill("all", 0.5)),
    "a task": World((Program(((),)),), PROJECT, kind="task", results="../data/results"),
}


@pytest.mark.parametrize("world", FEW.values(), ids=FEW)
def test_a_search_leaves_everything_as_it_was(world):
    harms = harms_in(world)
    assert not harms, "\n".join(harms)


@pytest.mark.slow
def test_what_a_trial_writes_at_exit_is_not_the_users():
    harms = harms_in(World((Program(((("write", "new"),),), at_exit=True),)))
    assert not harms, "\n".join(harms)


def shards(num, worlds_each, mark):
    return [
        pytest.param(worlds_each, id=f"{mark.name}-{n}", marks=[mark, pytest.mark.timeout(5400)]) for n in range(num)
    ]


@pytest.mark.parametrize("num", shards(4, 8, pytest.mark.slow) + shards(18, 50, pytest.mark.nightly))
def test_a_search_leaves_random_worlds_as_they_were(request, num, capsys):
    try_worlds(worlds(), num, (Phase.generate, Phase.shrink), request, capsys)


@pytest.mark.parametrize("num", shards(2, 3, pytest.mark.slow) + shards(4, 25, pytest.mark.nightly))
def test_a_killed_and_resumed_search_leaves_random_worlds_as_they_were(request, num, capsys):
    try_worlds(worlds(kills=True), num, (Phase.generate,), request, capsys)  # a kill's moment is never the same


def try_worlds(strategy, num, phases, request, capsys):
    """Try so many worlds, other ones each night; shrink those in which there is harm."""
    first = random.randrange(1 << 32) if "nightly" in request.node.name else zlib.crc32(request.node.name.encode())
    results = [try_world(strategy, first + number, phases) for number in range(num)]
    with capsys.disabled():
        print(f"\n{request.node.name}: {num} worlds tried, {num - results.count('')} with harm")
    assert not any(results), "\n\n".join(filter(None, results))


def try_world(strategy, number, phases):
    """Return the harm in a random world, shrunk; empty if there is none."""
    options = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

    @seed(number)
    @settings(max_examples=2, phases=phases, **options)  # the first is the simplest; later ones would resemble others
    @given(strategy)
    def holds(world):
        harms = harms_in(world) if world.entries or any(map(any, (each.steps for each in world.programs))) else []
        assert not harms, "\n".join([repr(world), *harms])

    try:
        holds()
    except BaseException as error:  # Hypothesis groups several
        if isinstance(error, KeyboardInterrupt):
            raise
        errors = error, *getattr(error, "exceptions", ())  # what is not found again is an inner error of the group
        return f"seed {number}: " + "\n".join(map(str, errors))
    return ""


CHANGES = {
    "a new file": lambda folder: (folder / "new").touch(),
    "a removed file": lambda folder: (folder / "in" / "file").unlink(),
    "other content of the same size and time": lambda folder: rewrite(folder / "in" / "file"),
    "a mode": lambda folder: (folder / "in").chmod(0o711),
    "a time": lambda folder: os.utime(folder / "in" / "file", (1, 1)),
    "a link's target": lambda folder: (folder / "link").unlink() or (folder / "link").symlink_to("elsewhere"),
    "a copy in place of a file": lambda folder: copy_over(folder / "in" / "file"),
    "another hard link": lambda folder: os.link(folder / "in" / "file", folder / "in" / "hard"),
}


def rewrite(path):
    status = path.stat()
    path.write_text(path.read_text()[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_over(path):
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").rename(path)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_difference_shows(tmp_path, change):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("content")
    (tmp_path / "link").symlink_to("in")
    before = snapshot(tmp_path)
    (tmp_path / "in" / "file").read_text()
    assert not difference(before, snapshot(tmp_path))
    change(tmp_path)
    assert difference(before, snapshot(tmp_path))


def test_only_the_creation_of_the_experiment_is_expected(tmp_path):
    before = snapshot(tmp_path)
    (tmp_path / "results" / "name").mkdir(parents=True)
    assert not without(before, tmp_path)
    (tmp_path / "results" / "other").touch()
    assert list(without(before, tmp_path)) == [str(tmp_path / "results" / "other")]


def without(before, folder):
    experiment = folder / "results" / "name"
    return without_creation(difference(before, snapshot(folder, [experiment])), before, experiment)
