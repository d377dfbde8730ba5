"""A trial's own folder: what lies around the script is read there, and what the trial writes stays there."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from ray.tune.trainable import FunctionTrainable

from tuner.engine.workers import own_folder as module
from tuner.engine.workers.own_folder import own_folder
from tuner.engine.workers.reports import Reporter
from tuner.engine.workers.trainable import trainable_of
from tuner.record.storage import trial_files
from tuner.record.storage.trial_files import MOST_KEPT_BYTES, TrialFiles, copy_files, thin


@pytest.fixture
def around(tmp_path, monkeypatch):
    """A project with a script's surroundings, in whose folder the process runs."""
    project = tmp_path / "home" / "project"
    for name in ("data/train.csv", "checkpoints/model.pt", "checkpoints/old/model.pt", "model.pt", "config.yaml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("the user's")
    (tmp_path / "home" / "elsewhere").mkdir()
    (tmp_path / "home" / "elsewhere" / "words.txt").write_text("words")
    monkeypatch.chdir(project)
    yield project
    assert Path.cwd() == project


def trial(around, number=0):
    return around / "results" / "search" / "ray" / f"{number:05}"


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_trial_reads_what_is_around_the_script(around):
    with own_folder(trial(around), is_new=True):
        assert Path("data/train.csv").read_text() == Path("config.yaml").read_text() == "the user's"
        assert Path("../elsewhere/words.txt").read_text() == Path("../../home/elsewhere/words.txt").read_text()
        assert Path("../project/config.yaml").resolve() == around / "config.yaml"
        assert not os.path.exists("results")  # it has this folder in it, so that `**` would not end
        assert subprocess.check_output(["cat", "config.yaml"]) == b"the user's"
    assert contents(trial(around)) == {}


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
        sqlite3.connect("log.db").execute("create table t (x)").connection.close()
        subprocess.check_call([sys.executable, "-c", "open('child.txt', 'w').write('x')"])
        os.makedirs("runs/version_0")
        Path("runs/version_0/events").write_text("e")
        Path("../outside.txt").write_text("o")
        for number, name in enumerate(("model.pt", "fresh.pt", "checkpoints/model.pt", "checkpoints/old/model.pt"), 1):
            assert torch.load(name) == [number]
        assert Path("config.yaml").read_text() == "the user's, and more"
    files = trial(around) / "files"
    assert {str(path.relative_to(files)) for path in files.rglob("*") if not path.is_dir()} == {
        "model.pt", "fresh.pt", "checkpoints/model.pt", "checkpoints/old/model.pt", "checkpoints/renamed.pt",
        "checkpoints/old/other.pt", "config.yaml", "log.db", "child.txt", "runs/version_0/events",
        "above/home/outside.txt",
    }  # fmt: skip
    shutil.rmtree(around / "results")
    assert contents(around) == before


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
        Path("latest").write_text("by the link")
        assert Path("moved.yaml").read_text() == "by the link"
        os.chdir("checkpoints")
        Path("here.pt").write_text("own")
    assert (trial(around) / "files" / "checkpoints" / "here.pt").exists()
    with own_folder(trial(around), is_new=True):
        os.chdir("checkpoints")
        assert Path("model.pt").read_text() == "the user's"
        Path("model.pt").write_text("own")
    assert (trial(around) / "files" / "checkpoints" / "model.pt").read_text() == "own"
    shutil.rmtree(around / "results")
    assert contents(around) == before


@pytest.mark.parametrize("place", ["data_raw/images", "../datasets/images", "data/images", "new/.cache/images"])
def test_a_download_is_found_by_the_next_trial(around, place):
    with own_folder(trial(around, 0), is_new=True):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        Path(place).write_text("downloaded")
    assert (around / place).read_text() == "downloaded"
    with own_folder(trial(around, 1), is_new=True):
        assert Path(place).read_text() == "downloaded"
    assert not any(trial(around, 0).rglob("images"))


def test_two_trials_that_download_at_once_do_not_disturb_each_other(around):
    second = module.OwnFolder(trial(around, 1))
    assert second.open(True)
    (second.here / "raw_data").mkdir()
    (second.here / "raw_data" / "images").write_text("of the second")
    (second.here / "raw_data" / "more").write_text("more")
    with own_folder(trial(around, 0), is_new=True):
        os.mkdir("raw_data")
        Path("raw_data/images").write_text("of the first")
    second.close(share=True)
    assert contents(around / "raw_data") == {"images": "of the first", "more": "more"}
    assert contents(trial(around, 1)) == {}


def test_a_download_is_shared_at_the_first_report(around):
    report = Reporter(lambda metrics: None, "loss")
    with pytest.raises(OSError, match="later"), own_folder(trial(around), is_new=True):
        os.mkdir("raw_data")
        Path("raw_data/images").write_text("downloaded")
        Path("model.pt").write_text("own")
        with open("raw_data/images") as file:
            report({"loss": 1.0})
            assert file.read() == Path("raw_data/images").read_text() == "downloaded"
        assert (around / "raw_data" / "images").read_text() == "downloaded"
        Path("raw_data/more").write_text("more")
        report({"loss": 1.0})
        raise OSError("later")
    assert contents(around / "raw_data") == {"images": "downloaded", "more": "more"}
    assert contents(trial(around)) == {"files/model.pt": "own"}


@pytest.mark.parametrize(("error", "shared"), [(OSError("cut"), False), (SystemExit(0), True)])  # Ray stops by 0
def test_a_download_that_failed_is_not_shared(around, error, shared):
    with pytest.raises(type(error)), own_folder(trial(around), is_new=True):
        os.mkdir("raw_data")
        raise error
    assert (around / "raw_data").exists() == shared


def test_files_follow_the_checkpoint(around):
    with own_folder(trial(around), is_new=True):
        Path("log.txt").write_text("1")
    with own_folder(trial(around), is_new=False):
        assert Path("log.txt").read_text() == "1" and Path("config.yaml").exists()
        Path("log.txt").write_text("2")
    killed = module.OwnFolder(trial(around))
    killed.open(False)
    (killed.here / "log.txt").write_text("3")
    with own_folder(trial(around), is_new=False):
        assert Path("log.txt").read_text() == "3"
    with own_folder(trial(around), is_new=True):
        assert not Path("log.txt").exists()


def test_a_folder_with_too_many_files_is_used_itself(around, monkeypatch, capsys):
    monkeypatch.setattr(module, "MOST_LINKS", 1)
    with own_folder(trial(around), is_new=True):
        assert Path.cwd() == around
    assert "no folder of its own" in capsys.readouterr().err
    monkeypatch.setattr(module, "MOST_LINKS", 10)
    for number in range(20):
        (around / "checkpoints" / str(number)).touch()
    with own_folder(trial(around), is_new=True):
        Path("checkpoints/more").touch()  # a folder that is too large is shared
    assert (around / "checkpoints" / "more").exists()


def test_large_files_of_trials_that_cannot_win_are_deleted(around):
    best = None
    for number in range(3):
        with own_folder(trial(around, number), is_new=True):
            Path("model.pt").write_bytes(b"0" * (MOST_KEPT_BYTES + 1))
            Path("log.txt").write_text("small")
    files = TrialFiles(around / "results" / "search", lambda: best)

    def left(ended):
        files.ended(ended)
        return [(trial(around, number) / "files" / "model.pt").exists() for number in range(3)]

    best = (0.5, "00000")
    assert left("00000") == [True, True, True] and left("00001") == [True, False, True]
    (trial(around, 0) / "running").mkdir()  # its worker has not left the folder
    best = (0.4, "00002")
    assert left("00002") == [True, False, True]
    (trial(around, 0) / "running").rmdir()
    assert left("00001") == [False, False, True] and (trial(around, 0) / "files" / "log.txt").exists()


def test_the_files_of_a_killed_trial_are_copied_without_links(around, monkeypatch):
    monkeypatch.setattr(trial_files, "CLOSES_S", 0)
    killed = module.OwnFolder(trial(around))
    killed.open(True)
    (killed.here / "weights.pt").write_text("own")
    copy_files(trial(around), around / "copy")
    assert [path.name for path in (around / "copy").rglob("*") if path.is_file()] == ["weights.pt"]
    thin(trial(around))
    assert not (killed.here / "config.yaml").is_symlink() and (killed.here / "weights.pt").exists()
    copy_files(trial(around, 1), around / "none")
    assert not (around / "none").exists()


def test_the_copy_waits_for_a_worker_that_still_removes_links(around):
    worker = module.OwnFolder(trial(around))
    worker.open(True)
    (worker.here / "weights.pt").write_text("own")
    closing = threading.Timer(0.2, worker.close, kwargs={"share": True})
    closing.start()
    copy_files(trial(around), around / "copy")
    closing.join()
    assert contents(around / "copy") == {"weights.pt": "own"}


def test_a_link_that_a_killed_trial_left_is_not_followed(around, tmp_path):
    (tmp_path / "precious").write_text("mine")
    killed = module.OwnFolder(trial(around))
    killed.open(True)
    (killed.here / "log.txt").symlink_to(tmp_path / "precious")
    (killed.here / "loop").symlink_to("loop")
    (killed.here / "last.pt").write_text("own")
    (killed.here / "latest").symlink_to("last.pt")
    with own_folder(trial(around), is_new=False):
        Path("log.txt").write_text("own")
        assert Path("latest").read_text() == "own"
    assert (tmp_path / "precious").read_text() == "mine"
    assert (trial(around) / "files" / "latest").read_text() == "own"


def test_a_worker_ends_only_after_its_trial_has_left_its_folder(monkeypatch):
    monkeypatch.setattr(FunctionTrainable, "cleanup", lambda worker: None)
    worker = object.__new__(trainable_of(lambda config: None, [{"CPU": 1.0}]))
    module._left.clear()
    threading.Timer(0.2, module._left.set).start()
    worker.cleanup()
    assert module._left.is_set()
