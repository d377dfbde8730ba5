"""A trial's own folder: what lies around the script is read there, and what the trial writes stays there."""

import contextlib
import errno
import json
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from ray.tune.trainable import FunctionTrainable

from tuner.engine.workers import own_folder as module
from tuner.engine.workers import retried, surroundings
from tuner.engine.workers.outside import recorded
from tuner.engine.workers.own_folder import own_folder, reported, save_stale
from tuner.engine.workers.surroundings import UnshowableError, surroundings_of
from tuner.engine.workers.trainable import trainable_of
from tuner.errors.users_code import outside_trial
from tuner.record.storage import trial_files
from tuner.record.storage.made import MadeFolder, temporary_folder
from tuner.record.storage.trial_files import MAX_KEPT_BYTES, TrialFiles, Written, copy_files, thin


@pytest.fixture
def around(tmp_path, monkeypatch):
    """A project with a script's surroundings, in whose folder the process runs."""
    project = tmp_path / "home" / "project"
    for name in ("data/train.csv", "checkpoints/model.pt", "checkpoints/old/model.pt", "model.pt", "config.yaml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("the user's")
    (tmp_path / "home" / "elsewhere").mkdir()
    (tmp_path / "home" / "elsewhere" / "words.txt").write_text("words")
    (tmp_path / "tmp").mkdir()
    (project / "results" / "search").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(project)
    yield project
    assert Path.cwd() == project
    save_stale()
    assert not os.listdir(tmp_path / "tmp")


def trial(around, number=0):
    return around / "results" / "search" / "ray" / f"{number:05}"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def files_of(around, number=0):
    return contents(trial(around, number) / "files")


@contextlib.contextmanager
def temporary():
    with temporary_folder("tuner-trial-") as made:
        yield made.path


def killed(around, run, number=0):
    """Run a function in the trial's own folder, in a process that is then killed."""
    pid = os.fork()
    if not pid:
        try:
            with own_folder(trial(around, number), is_new=False):
                run()
                os._exit(9)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_a_trial_reads_what_is_around_the_script(around):
    with own_folder(trial(around), is_new=True):
        assert Path("data/train.csv").read_text() == Path("config.yaml").read_text() == "the user's"
        assert Path("../elsewhere/words.txt").read_text() == Path("../../home/elsewhere/words.txt").read_text()
        assert outside_trial(str(Path("../project/config.yaml").resolve())) == str(around / "config.yaml")
        assert os.listdir("results") == []  # the search's own folder is not shown
        assert subprocess.check_output(["cat", "config.yaml"]) == b"the user's"
    assert contents(trial(around)) == {}


def test_a_trial_that_starts_on_a_full_disk_waits_for_room(around, monkeypatch):
    begin, errors = trial_files.begin, [OSError(errno.ENOSPC, "No space left on device")] * 2
    monkeypatch.setattr(retried, "RETRY_INTERVAL_S", 0.0)

    def full_at_first(*arguments, **options):
        if errors:
            raise errors.pop()
        return begin(*arguments, **options)

    monkeypatch.setattr(trial_files, "begin", full_at_first)
    with own_folder(trial(around), is_new=True):
        Path("made.txt").write_text("own")
    assert not errors and files_of(around) == {"made.txt": "own"}


def test_a_trial_that_starts_while_its_experiment_is_moved_away_waits_for_it(around, monkeypatch):
    experiment, away = trial(around).parents[1], around / "away"
    experiment.rename(away)
    monkeypatch.setattr(retried.time, "sleep", lambda seconds: experiment.exists() or away.rename(experiment))
    with own_folder(trial(around), is_new=True):
        Path("made.txt").write_text("own")
    assert files_of(around) == {"made.txt": "own"} and not away.exists()


def test_a_trial_starts_beside_folders_that_are_very_deep(around):
    deep = Path(*["d"] * 600)
    deep.mkdir(parents=True)
    (deep / "word.txt").write_text("the user's")
    with own_folder(trial(around), is_new=True):
        assert (deep / "word.txt").read_text() == "the user's"
        Path("d/d/new.txt").write_text("own")
    assert files_of(around) == {"d/d/new.txt": "own"} and not Path("d/d/new.txt").exists()


def test_git_reads_a_large_repository_in_a_trial(around):
    subprocess.run(["git", "init", "-q"], check=True)
    for number in range(surroundings.MAX_HIDDEN_ENTRIES):
        (around / ".git" / "refs" / "tags" / str(number)).touch()
    with own_folder(trial(around), is_new=True):
        assert os.path.islink(".git")
        assert subprocess.check_output(["git", "rev-parse", "--is-inside-work-tree"]) == b"true\n"


def test_a_trial_finds_its_own_folder_in_the_environment(around):
    before = dict(os.environ)
    with own_folder(trial(around), is_new=True):
        assert os.environ["PWD"] == os.getcwd() != str(around)
    assert before.get("PWD", str(around)) == os.environ["PWD"]


def test_what_a_trial_writes_is_its_own(around):
    before = contents(around)
    with own_folder(trial(around), is_new=True):
        torch.save([1], "model.pt")  # torch opens the file in C++
        torch.save([2], "fresh.pt")
        os.makedirs("checkpoints", exist_ok=True)
        torch.save([3], "checkpoints/model.pt")
        torch.save([4], Path("checkpoints/old/model.pt"))
        with open("config.yaml", "a") as file:
            file.write(", and more")
        Path("checkpoints/new.pt").write_text("new")
        os.replace("checkpoints/new.pt", "checkpoints/renamed.pt")
        Path("checkpoints/old/other.pt").write_bytes(b"other")
        sqlite3.connect("file:log.db", uri=True).execute("create table t (x)").connection.close()
        subprocess.check_call([sys.executable, "-c", "open('child.txt', 'w').write('x')"])
        os.makedirs("runs/version_0")
        Path("runs/version_0/events").write_text("e")
        Path("../outside.txt").write_text("o")
        Path("data/../by_dots.txt").write_text("d")
        os.chdir("data")
        os.chdir("..")
        Path("after_return.txt").write_text("r")
        Path("results/log.txt").write_text("l")
        for number, name in enumerate(("model.pt", "fresh.pt", "checkpoints/model.pt", "checkpoints/old/model.pt"), 1):
            assert torch.load(name) == [number]
        assert Path("config.yaml").read_text() == "the user's, and more"
    files = trial(around) / "files"
    assert {str(path.relative_to(files)) for path in files.rglob("*") if not path.is_dir()} == {
        "model.pt", "fresh.pt", "checkpoints/model.pt", "checkpoints/old/model.pt", "checkpoints/renamed.pt",
        "checkpoints/old/other.pt", "config.yaml", "log.db", "child.txt", "runs/version_0/events",
        "above/home/outside.txt", "by_dots.txt", "after_return.txt", "results/log.txt",
    }  # fmt: skip
    shutil.rmtree(around / "results")
    assert contents(around) == before


def test_threads_that_write_at_once_change_no_file_around(around):
    for number in range(40):
        (around / f"part{number}").mkdir()
        for name in range(8):
            (around / f"part{number}" / str(name)).write_text("the user's")

    def write(number):
        for part in range(40):
            Path(f"part{part}/{number}").write_text("own")

    with own_folder(trial(around), is_new=True), ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert {text for name, text in contents(around).items() if name.startswith("part")} == {"the user's"}
    assert len(files_of(around)) == 320


def test_what_a_trial_deletes_or_renames_stays_around_the_script(around):
    before = contents(around)
    with own_folder(trial(around), is_new=True):
        os.remove("model.pt")
        os.rename("config.yaml", "moved.yaml")
        Path("moved.yaml").write_text("own")
        os.remove("checkpoints/model.pt")
        shutil.rmtree("checkpoints")
        os.makedirs("checkpoints")
        os.symlink("moved.yaml", "latest")
        os.symlink(os.path.abspath("moved.yaml"), "absolute")
        os.symlink("/", "root")
        os.mkfifo("pipe")
        Path("latest").write_text("by the link")
        assert Path("moved.yaml").read_text() == "by the link"
        os.chdir("checkpoints")
        Path("here.pt").write_text("own")
    files = trial(around) / "files"
    assert contents(files) == {
        "checkpoints/here.pt": "own", "moved.yaml": "by the link", "latest": "by the link", "absolute": "by the link"
    }  # fmt: skip
    assert os.readlink(files / "absolute") == "moved.yaml" and not os.path.lexists(files / "root")
    with own_folder(trial(around), is_new=True):
        os.chdir("checkpoints")
        assert Path("model.pt").read_text() == "the user's"
        Path("model.pt").write_text("own")
    assert files_of(around) == {"checkpoints/model.pt": "own"}
    shutil.rmtree(around / "results")
    assert contents(around) == before


def test_modes_and_times_are_those_of_the_users_files(around):
    os.chmod("model.pt", 0o640)
    os.utime("model.pt", ns=(1, 123_456_789))
    with own_folder(trial(around), is_new=True):
        status = os.stat("model.pt")
        assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o640, 123_456_789)
        os.chmod("model.pt", 0o600)
        Path("config.yaml").touch()
    assert stat.S_IMODE(os.stat("model.pt").st_mode) == 0o640
    assert files_of(around) == {"config.yaml": "the user's"}  # a touched file counts as written


def test_what_is_large_is_a_link_and_a_write_to_it_is_noted(around, tmp_path, caplog):
    for name in ("large/", "venv/", ".git/"):
        (around / name).mkdir()
    for number in range(surroundings.MAX_ENTRIES + 1):
        (around / "large" / str(number)).touch()
    (around / "venv" / "pyvenv.cfg").touch()
    (around / ".git" / "config").touch()
    with open("big.bin", "wb") as file:
        file.truncate(surroundings.MAX_FILE_BYTES + 1)
    os.symlink(tmp_path / "home" / "elsewhere", "mine")
    os.symlink("config.yaml", "inside")
    os.symlink("nowhere", "dangling")
    os.symlink("loop", "loop")
    with own_folder(trial(around), is_new=True):
        links = {name for name in os.listdir() if os.path.islink(name)}
        assert {os.path.islink(f"{name}/{each}") for name in ("large", "venv") for each in os.listdir(name)} == {True}
        os.chdir("large")
        os.chdir("..")
        Path("model.pt").write_text("own")
        Path("inside").write_text("own")
        Path("large/0").write_text("the trial's")
        Path("large/new").write_text("own")
        with open("big.bin", "r+b") as file:
            file.write(b"x")
        os.remove("mine")
        shutil.rmtree(".git")
    assert links == {"big.bin", "mine", "inside", "dangling", "loop"}
    assert files_of(around) == {"config.yaml": "own", "model.pt": "own", "large/new": "own"}
    assert Path("config.yaml").read_text() == Path("model.pt").read_text() == "the user's"
    assert os.path.islink("mine") and Path(".git/config").exists()
    outside = {str(around / "large" / "0"): True, str(around / "big.bin"): False}
    assert Written.read(trial(around)).outside == outside
    with own_folder(trial(around, 1), is_new=True):
        Path("large/0").write_text("another trial's")
    told = TrialFiles(around / "results" / "search", None)
    with caplog.at_level(logging.WARNING):
        told.ended("00000")
        told.ended("00001")
    first, second = caplog.messages
    assert "trial 00000 writes outside its own folder, to" in first and "big.bin: all trials share" in first
    assert f"trials 00000 and 00001 both wrote to {around / 'large' / '0'}" in second


def test_changes_behind_links_above_are_noted(around):
    above = around.parent / "elsewhere"
    for name in ("a", "b", "c", "d", "x.db", "y.db"):
        (above / name).touch()
    sqlite3.connect(above / "y.db").execute("create table t (x)").connection.close()
    with own_folder(trial(around), is_new=True):
        os.chmod("../elsewhere/a", 0o600)
        Path("../elsewhere/b").touch()
        os.rename("../elsewhere/c", "mine")
        os.remove("../elsewhere/d")
        sqlite3.connect("file:../elsewhere/x.db?mode=rwc", uri=True).execute("create table t (x)").connection.close()
        sqlite3.connect("../elsewhere/y.db").execute("select * from t").connection.close()
    named = {os.path.basename(path): lost for path, lost in Written.read(trial(around)).outside.items()}
    assert named == {"a": False, "b": False, "c": True, "d": True, "x.db": False}
    assert "mine" in files_of(around)


def test_a_record_of_writes_that_cannot_be_written_costs_no_file(around):
    with own_folder(trial(around), is_new=True):
        (Path.cwd().parents[len(around.parts) - 2].parent / module.OUTSIDE).mkdir()
        Path("../elsewhere/x").write_text("x")
        sqlite3.connect("../elsewhere/x.db").execute("create table t (x)").connection.close()
        Path("mine").write_text("own")
    assert files_of(around) == {"mine": "own"} and Written.read(trial(around)).outside == {}


def test_a_search_in_the_temporary_folder_itself_does_not_tell_of_its_own_record(around, monkeypatch):
    monkeypatch.chdir(around.parents[1] / "tmp")
    with own_folder(trial(around), is_new=True):
        Path(around / "mine").write_text("x")
    monkeypatch.chdir(around)
    assert list(Written.read(trial(around)).outside) == [str(around / "mine")]


def test_a_damaged_record_of_writes_is_read_as_far_as_it_goes(tmp_path):
    record = tmp_path / "outside"
    record.write_text('["/a", false]\n7\n["/b", true]\n["/a", true]\n{"x": 1}\n["/c", tr')
    assert recorded(str(record)) == {"/a": True, "/b": True}
    assert recorded(str(tmp_path / "none")) == {}


def test_a_write_by_an_absolute_path_is_noted(around, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home" / ".cache").mkdir()
    with own_folder(trial(around), is_new=True):
        Path("~/.bashrc").expanduser().write_text("x")
        Path("~/.cache/x").expanduser().write_text("x")
        Path("~/.local").expanduser().mkdir()
        (tmp_path / "home" / "made").mkdir()
        torch.save([1], tmp_path / "home" / "model.pt")
        Path(tmp_path / "home" / "log.txt").write_text("x")
        Path(around / "results" / "search" / "ray" / "mine").write_text("x")
        Path(tempfile.gettempdir(), "scratch").write_text("x")
        os.makedirs(tmp_path / "home", exist_ok=True)
        os.remove(tmp_path / "tmp" / "scratch")
    named = {os.path.basename(path): lost for path, lost in Written.read(trial(around)).outside.items()}
    assert named == {".bashrc": True, "model.pt": True, "log.txt": True, "made": False}


def test_what_killed_and_forked_processes_write_outside_is_noted(around):
    def writes():
        again, of_child = around.parent / "elsewhere" / "again", around.parent / "elsewhere" / "of a child"
        if not os.fork():
            of_child.touch()
            os._exit(0)
        os.wait()
        for _ in range(3):
            again.touch()
            again.write_text("x")

    killed(around, writes)
    save_stale()
    named = {os.path.basename(path): lost for path, lost in Written.read(trial(around)).outside.items()}
    assert named == {"of a child": False, "again": True}


@pytest.mark.parametrize(
    ("name", "most", "links"),
    [("MAX_COPIED_FILES", 3, 2), ("MAX_COPIED_BYTES", 25, 3), ("MAX_ENTRIES", 1, 2), ("MAX_FILE_BYTES", 9, 5)],
)
def test_beyond_a_limit_files_are_links(around, monkeypatch, name, most, links):
    monkeypatch.setattr(surroundings, name, most)
    (around / "code.py").write_text("")
    found = surroundings_of(around, None, around / "results" / "search")
    below = [path for path in {**found.links, **found.opened} if path.startswith(f"{around}/")]
    assert len(below) >= links and str(around / "code.py") in found.copies
    with own_folder(trial(around), is_new=True):
        assert {Path(os.path.relpath(path, around)).exists() for path in below} == {True}


def test_a_start_folder_that_cannot_be_shown_is_refused(around, monkeypatch):
    monkeypatch.setattr(surroundings, "MAX_START_ENTRIES", 2)
    with pytest.raises(UnshowableError, match="has more than 2 entries"), own_folder(trial(around), is_new=True):
        pytest.fail("the trial ran")


def test_a_folder_above_with_too_many_entries_is_not_shown(around, monkeypatch):
    for number in range(9):
        (around.parent / str(number)).touch()
    monkeypatch.setattr(surroundings, "MAX_START_ENTRIES", 8)
    found = surroundings_of(around, None, around / "results" / "search")
    assert found.not_shown == [str(around.parent)] and str(around.parent / "0") not in found.links
    assert str(around / "model.pt") in found.copies


def test_nothing_is_written_behind_a_link_to_a_trials_folder(around, tmp_path):
    (tmp_path / "victim").mkdir()
    (trial(around).parent).mkdir()
    os.symlink(tmp_path / "victim", trial(around))
    with pytest.raises(OSError), own_folder(trial(around), is_new=True):
        pytest.fail("the trial ran")
    assert os.listdir(tmp_path / "victim") == []


def test_a_script_elsewhere_finds_its_own_folder(around, tmp_path):
    (tmp_path / "home" / "elsewhere" / "run.py").touch()
    with own_folder(trial(around), is_new=True, script=tmp_path / "home" / "elsewhere" / "run.py"):
        os.chdir("../elsewhere")
        Path("words.txt").write_text("own")
    assert contents(tmp_path / "home" / "elsewhere")["words.txt"] == "words"
    assert files_of(around) == {"above/home/elsewhere/words.txt": "own"}


@pytest.fixture
def small_data(monkeypatch):
    monkeypatch.setattr(module, "MIN_SHARED_BYTES", 10)


@pytest.mark.parametrize("place", ["raw/images", "../sets/images", "data/new/images", "new/.hidden/images"])
def test_large_new_data_is_kept_once_and_found_by_the_next_trial(around, small_data, place):
    before = contents(around)
    for number in range(3):
        with own_folder(trial(around, number), is_new=True):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            assert Path(place).exists() == (number > 0)
            if not number:
                Path(place).write_text("downloaded, more than 10 bytes")
                reported()
            assert Path(place).read_text() == "downloaded, more than 10 bytes"
    assert len([path for path in (around / "results").rglob("images") if path.is_file()]) == 1
    shutil.rmtree(around / "results")
    assert contents(around) == before and not (around.parent / "sets").exists()


@pytest.mark.parametrize("why", ["small", "after a report", "a model", "failed", "in a folder of the user"])
def test_other_new_files_are_the_trials_own(around, small_data, why):
    place = "checkpoints/images" if why.startswith("in") else "new/images"
    with contextlib.suppress(OSError), own_folder(trial(around), is_new=True):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if why == "after a report":
            reported()
            module._first_report_at -= 1
        Path(place).write_text("few" if why == "small" else "more than 10 bytes")
        if why == "a model":
            torch.save([1], "new/model.pt")
        if why == "failed":
            raise OSError("cut")
    assert (trial(around) / "files" / place).exists()
    with own_folder(trial(around, 1), is_new=True):
        assert not os.path.lexists(place)


def test_a_second_trial_that_made_the_same_data_keeps_its_own(around, small_data):
    with own_folder(trial(around), is_new=True):
        os.makedirs("raw/deep")
        Path("raw/deep/images").write_text("of the first trial")
        kept = trial_files.share(around / "results" / "search", "home/project/raw", str(around / "checkpoints"))
        assert kept
    assert files_of(around) == {"raw/deep/images": "of the first trial"}


def test_data_from_elsewhere_is_no_package(around, tmp_path):
    for place in ("home/project/numpy", "../../evil"):
        folder = tmp_path / "planted" / str(len(place))
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise SystemExit")
        trial_files.share(around / "results" / "search", place, str(folder))
    assert list(trial_files.shared(around / "results" / "search")) == []


def test_files_follow_the_checkpoint(around):
    with own_folder(trial(around), is_new=True):
        Path("log.txt").write_text("1")
        Path("helper.py").write_text("raise SystemExit")
        Path("last.pth").write_text("1")
        Path("gone.txt").write_text("1")
        os.symlink("log.txt", "latest")
    with own_folder(trial(around), is_new=False):
        assert Path("log.txt").read_text() == Path("last.pth").read_text() == "1" and Path("config.yaml").exists()
        assert not Path("helper.py").exists()  # the folder of results may come from elsewhere
        Path("latest").write_text("2")
        os.remove("gone.txt")
    assert files_of(around) == {"log.txt": "2", "latest": "2", "last.pth": "1", "helper.py": "raise SystemExit"}
    killed(around, lambda: Path("log.txt").write_text("3"))
    with own_folder(trial(around), is_new=False):
        assert Path("log.txt").read_text() == "3"
    with own_folder(trial(around), is_new=True):
        assert not Path("log.txt").exists()
    assert files_of(around) == {}


def test_the_files_of_a_killed_trial_are_saved_by_the_next_start(around):
    killed(around, lambda: Path("weights.pt").write_text("own"))
    assert not (trial(around) / "files").exists() and (trial(around) / trial_files.RUNNING).exists()
    save_stale()
    assert files_of(around) == {"weights.pt": "own"} and not (trial(around) / trial_files.RUNNING).exists()
    killed(around, lambda: Path("weights.pt").write_text("own"), number=1)
    (around / "results").rename(around / "away")
    save_stale()  # the disk may come back
    (around / "away").rename(around / "results")
    save_stale()
    assert files_of(around, 1) == {"weights.pt": "own"}
    killed(around, lambda: Path("weights.pt").write_text("own"), number=2)
    shutil.rmtree(around / "results" / "search")
    save_stale()  # removes the folder, because the search is gone
    assert os.listdir(around / "results") == []


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("last", ["move 1", "move 2", "move 3", "end"])
def test_a_kill_while_files_are_saved_loses_none(around, monkeypatch, is_new, last):
    if not is_new:  # the trial finds its files, and changes two of them
        with own_folder(trial(around), is_new=True):
            for name in "abc":
                Path(name).write_text("before")
    move_into, num_moves = trial_files.move_into, 0

    def moving(fd, source, name):
        nonlocal num_moves
        num_moves += 1
        os._exit(9) if last == f"move {num_moves}" else move_into(fd, source, name)

    pid = os.fork()
    if not pid:
        with contextlib.suppress(OSError), own_folder(trial(around), is_new=is_new):
            for name in "bcd" if not is_new else "abcd":
                Path(name).write_text(name)
            monkeypatch.setattr(trial_files, "move_into", moving)
            if last == "end":  # all is saved, but the folder is still there
                monkeypatch.setattr(MadeFolder, "remove", lambda made: os._exit(9))
            raise OSError("the end")  # the folder is then left
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    save_stale()
    expected = {name: name for name in "abcd"} | ({} if is_new else {"a": "before"})
    assert files_of(around) == expected
    copy_files(trial(around), around / "copy")
    assert contents(around / "copy") == expected


def test_a_killed_attempt_changes_nothing_of_a_later_one(around):
    killed(around, lambda: Path("weights.pt").write_text("first"))
    (late,) = (around.parents[1] / "tmp").iterdir()
    hidden = late.rename(around.parents[1] / "hidden")  # as if its processes had not ended, or on another node
    with own_folder(trial(around), is_new=True):
        Path("weights.pt").write_text("second")
    hidden.rename(late)
    save_stale()
    assert files_of(around) == {"weights.pt": "second"} and not late.exists()


def test_a_file_that_the_user_has_edited_is_not_replaced(around):
    for text in ("first", "second"):
        with own_folder(trial(around), is_new=False):
            Path("config.txt").write_text(text)
    assert files_of(around) == {"config.txt": "second"}
    (trial(around) / "files" / "config.txt").write_text("the user's")
    with own_folder(trial(around), is_new=False):
        assert not Path("config.txt").exists()
        Path("config.txt").write_text("third")
    assert files_of(around) == {"config.txt": "the user's", "config.txt~": "third"}


def test_nothing_is_put_behind_a_link(around, monkeypatch):
    """The user has replaced a folder by a link to another one since the trial wrote there."""
    monkeypatch.setattr(trial_files, "MIN_SHARED_BYTES", 10)
    monkeypatch.setattr(module, "MIN_SHARED_BYTES", 10)
    elsewhere = around.parent / "elsewhere"
    with own_folder(trial(around), is_new=True):
        Path("checkpoints/own.txt").write_text("own")
        Path("checkpoints/more").mkdir()
        Path("checkpoints/more/large.bin").write_bytes(bytes(20))
        time.sleep(0.01)
        reported()
    assert list(trial_files.shared(around / "results" / "search"))
    (around / "checkpoints").rename(around / "moved")
    (around / "checkpoints").symlink_to(elsewhere)
    with own_folder(trial(around), is_new=False):
        assert os.listdir("checkpoints") == ["words.txt"]
    assert os.listdir(elsewhere) == ["words.txt"]
    assert files_of(around) == {"checkpoints/own.txt": "own"}


def test_data_with_other_content_is_not_the_same(around, monkeypatch):
    monkeypatch.setattr(module, "MIN_SHARED_BYTES", 10)
    with contextlib.ExitStack() as both:
        begun = []
        for number in range(2):  # at once: neither finds what the other downloads
            tree = str(both.enter_context(temporary()) / "tree")
            begun.append(module.Shown(str(trial(around, number)), str(around), tree))
            trial_files.begin(trial(around, number), is_new=True)
            begun[-1].show(None)
        for shown, content in zip(begun, "ab", strict=True):
            (cache := Path(shown.tree + str(around / "cache"))).mkdir()
            (cache / "features.npy").write_text(content * 20)
            shown.save(ended_well=True)
    assert not (trial(around, 0) / "files").exists() and files_of(around, 1) == {"cache/features.npy": "b" * 20}


def test_a_script_above_the_start_folder_is_shown(around, monkeypatch):
    (around / "train.py").write_text("1")
    (around / "runs").mkdir()
    os.chdir(around / "runs")
    with own_folder(trial(around), is_new=True, script=around / "train.py"):
        assert Path("../train.py").read_text() == "1" and Path("../config.yaml").read_text() == "the user's"
        assert not Path("../train.py").is_symlink()
    os.chdir(around)


def test_a_folder_above_that_cannot_be_read_is_not_shown(around, monkeypatch):
    scandir = os.scandir

    def refused(path):
        if str(path) == str(around.parent):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert surroundings_of(around, None, trial(around).parents[1]).not_shown == [str(around.parent)]


def test_the_users_files_among_the_trials_stay(around):
    with own_folder(trial(around), is_new=True):
        Path("log.txt").write_text("own")
    files = trial(around) / "files"
    (files / "mine.txt").write_text("the user's")
    (files / "taken.txt").write_text("the user's")
    with open(files / "large.bin", "wb") as file:
        file.truncate(MAX_KEPT_BYTES + 1)
    os.symlink(around, files / "link")
    thin(trial(around))
    with own_folder(trial(around), is_new=True):
        Path("taken.txt").write_text("own")
    assert contents(files) == {
        "mine.txt": "the user's", "taken.txt": "the user's", "taken.txt~": "own",
        "large.bin": "\0" * (MAX_KEPT_BYTES + 1),
    }  # fmt: skip
    assert os.path.islink(files / "link")
    copy_files(trial(around), around / "copy")
    assert contents(around / "copy") == {"taken.txt~": "own"}


def test_nothing_is_removed_or_written_behind_a_link(around, tmp_path):
    with own_folder(trial(around), is_new=True):
        Path("model.pt").write_text("own")
    moved = tmp_path / "victim"
    os.rename(trial(around) / "files", moved)
    os.symlink(moved, trial(around) / "files")
    thin(trial(around))
    with own_folder(trial(around), is_new=True):
        Path("model.pt").write_text("new")
    assert contents(moved) == {"model.pt": "own"}
    os.remove(trial(around) / "files")  # the trial's folder was kept because its files could not be saved
    save_stale()
    assert files_of(around) == {"model.pt": "new"}


def test_large_files_of_trials_that_cannot_win_are_deleted(around):
    best = None
    for number in range(3):
        with own_folder(trial(around, number), is_new=True):
            Path("model.pt").write_bytes(b"0" * (MAX_KEPT_BYTES + 1))
            Path("log.txt").write_text("small")
    files = TrialFiles(around / "results" / "search", lambda: best)

    def left(ended):
        files.ended(ended)
        return [(trial(around, number) / "files" / "model.pt").exists() for number in range(3)]

    best = (0.5, "00000")
    assert left("00000") == [True, True, True] and left("00001") == [True, False, True]
    (trial(around, 0) / trial_files.RUNNING).touch()  # its worker has not left the folder
    files.ended("00000")
    best = (0.4, "00002")
    assert left("00002") == [True, False, True]
    os.remove(trial(around, 0) / trial_files.RUNNING)
    assert left("00001") == [False, False, True] and (trial(around, 0) / "files" / "log.txt").exists()


def test_the_copy_waits_for_a_worker_that_still_saves_files(around):
    trial_files.begin(trial(around), is_new=True)
    (around / "source").write_text("own")
    arguments = (trial(around), {"weights.pt": str(around / "source")}, {}, {})
    closing = threading.Timer(0.2, trial_files.end, arguments)
    closing.start()
    copy_files(trial(around), around / "copy")
    closing.join()
    assert contents(around / "copy") == {"weights.pt": "own"}
    copy_files(trial(around, 1), around / "none")
    assert not (around / "none").exists()


def test_a_worker_ends_only_after_its_trial_has_left_its_folder(monkeypatch):
    monkeypatch.setattr(FunctionTrainable, "cleanup", lambda worker: None)
    worker = object.__new__(trainable_of(lambda config: None, [{"CPU": 1.0}]))
    module.left.clear()
    threading.Timer(0.2, module.left.set).start()
    worker.cleanup()
    assert module.left.is_set()


def test_another_searchs_trial_whose_files_cannot_be_saved_ends_no_search(tmp_path, monkeypatch):
    def save(shown):
        raise FileNotFoundError(".running")

    removed, note = [], json.dumps({"trial": str(tmp_path), "start": "/", "tree": "/x", "attempt": "1"})
    (tmp_path / trial_files.RUNNING).write_text("1")
    made = SimpleNamespace(noted=lambda: note, remove=lambda: removed.append(True))
    monkeypatch.setattr(module, "stale_folders", lambda *arguments: [made])
    monkeypatch.setattr(module.Shown, "save", save)
    module.save_stale()
    with pytest.raises(FileNotFoundError):
        module.save_stale(tmp_path)
    assert not removed  # the next search tries again
