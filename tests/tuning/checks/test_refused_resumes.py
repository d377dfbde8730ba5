"""A resume is refused with what the folder lacks or the command changes; a search killed at its start begins anew."""

import contextlib
import itertools
import os
import shutil
import socket
from collections import Counter
from pathlib import Path

import pytest
from asking import request_of
from journals import scan
from killing import SPACES, killed_at

from tuner import run
from tuner.errors import RequestError
from tuner.record.results import load
from tuner.tuning import session
from tuner.tuning.resume.loading import journaled_events


@pytest.fixture
def saved(tmp_path, monkeypatch, capsys):
    """A search `mine` over a copy of tiny.py, as it is on disk once it has begun."""
    shutil.copy(SPACES / "tiny.py", tmp_path / "space.py")
    monkeypatch.chdir(tmp_path)
    request = request_of("--space", "space.py", "--name", "mine", "--num-samples", 6)
    session.make_folder(request.experiment)
    session.open_journal(request).close()
    for name in (".lock", ".driver"):
        (request.experiment.folder / name).touch()
    return request.experiment.folder


def test_what_a_power_failure_left_of_a_start_is_in_nobodys_way(refused, saved):
    """A damaged first line before any trial, a folder without an experiment, and one by which a search tried to write.

    After a restart, a container's process has the same number as before.
    """
    (saved / "journal.jsonl").write_bytes(bytes(9) + (saved / "journal.jsonl").read_bytes()[9:])
    assert journaled_events(saved, begun=False) == []
    for name in ("experiment.json", ".experiment.json.copy"):
        (saved / name).unlink()
    (saved.parent / f".tuner-{os.getpid()}").mkdir()
    message = refused("--space", "space.py", "--name", "mine")
    assert "mine already exists; it has no experiment.json: remove it, or give another name" in message
    request_of("--space", "space.py", "--name", "other")


@pytest.mark.parametrize("named", ["latest", "mine", "results/mine", "results/mine/", "TMP/results/mine"])
def test_what_was_saved_can_be_resumed_by_name_and_by_folder(saved, capsys, named):
    named = named.replace("TMP/results", str(saved.parent.absolute()))
    assert run.main(["--resume", named, "--dry-run", "--num-samples", "9"]) == 0
    assert "settings    9 by random" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--space", "space.py", "--name", "mine"], "already exists; continue it with --resume mine, or give another"),
        (["--space", "space.py", "--name", "latest"], "--resume latest means the newest experiment; give another"),
        (["--resume", "mien"], "no experiment 'mien' in TMP/results; did you mean 'mine'?"),
        (["--resume", "latest", "--results", "TMP/gone"], "no such folder TMP/gone; give the --results of a search"),
        (["--resume", "a/mine", "--results", "b"], "--resume a/mine names a folder, --results b another; give one"),
        (["--resume", "mine", "--seed", "3"], "--seed was 0, now 3"),
        (["--resume", "mine", "--space", "quadratic"], "--space was 'space.py', now 'quadratic'"),
        (["--resume", "mine", "--num-samples", "5"], "--num-samples 5 is below the previous 6"),
        (["--resume", "mine", "--cpus-per-trial", "4096"], "--cpus-per-trial 4096"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_resume_is_refused(refused, saved, tmp_path, argv, message):
    assert message.replace("TMP", str(tmp_path)) in refused(*argv)


def test_a_resume_may_replace_the_number_of_trials_by_a_budget(saved, capsys):
    assert run.main(["--resume", "mine", "--dry-run", "--num-samples", "0", "--epoch-budget", "500"]) == 0
    assert "settings    as many as the budget pays for, by random" in capsys.readouterr().out


def test_brackets_are_not_extended(refused, saved):
    request = request_of("--space", "space.py", "--name", "other", "--scheduler", "hyperband", "--max-epochs", 4)
    shutil.copytree(saved, request.experiment.folder)
    session.open_journal(request).close()
    assert "the brackets of --scheduler hyperband were built for 4" in refused("--resume", "other", "--max-epochs", "8")


def test_a_space_that_has_changed_is_refused_with_what_changed(refused, saved, tmp_path):
    text = (tmp_path / "space.py").read_text()
    (tmp_path / "space.py").write_text(text.replace("tune.loguniform(1e-4, 1e-1)", "tune.loguniform(1e-4, 1)"))
    message = refused("--resume", "mine", "--space", "space.py")
    assert "the space has changed: lr was" in message and "start anew with --name" in message


@pytest.mark.parametrize(
    ("left", "what"),
    [
        (None, "missing or empty: its trials are unknown"),
        (b"", "missing or empty"),
        (bytes(9), "missing or empty"),
        (b'{"time": 1, "ev', "missing or empty"),
        (b'{"time": 1, "event": "repo\n', "damaged at line 1"),
    ],
)
def test_a_journal_that_has_lost_its_events_is_refused_once_the_search_has_begun(refused, saved, left, what):
    path = saved / "journal.jsonl"
    path.unlink() if left is None else path.write_bytes(left)
    assert f"journal.jsonl is {what}" in refused("--resume", "mine")


OTHERS = {
    "a folder": os.mkdir,
    "a pipe": os.mkfifo,
    "a file": lambda path: path.write_text("x"),
    "a link": lambda path: path.symlink_to("experiment.json"),
    "a dead link": lambda path: path.symlink_to("gone"),
}


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        *(("journal.jsonl", other, "is no regular file: its trials are unknown") for other in ("a folder", "a pipe")),
        ("journal.jsonl", "a link", "is no regular file: its trials are unknown"),
        *((name, other, "is no folder; move") for name in ("ray", "best") for other in ("a file", "a dead link")),
        *(("ray", other, "is no folder; move it away, and resume again") for other in ("a pipe", "a link")),
        *((name, "a folder", "is no regular file; move it away, and resume") for name in ("experiment.json", ".lock")),
        *((name, "a pipe", "is no regular file; move it away, and resume") for name in (".driver", "trials.csv")),
    ],
)
def test_what_lies_at_the_place_of_a_file_or_folder_is_named(refused, saved, name, other, message):
    path = saved / name
    path.unlink(missing_ok=True)
    OTHERS[other](path)
    assert f"results/mine/{name} {message}" in refused("--resume", "mine", "--trust")


def test_a_journal_that_may_not_be_read_is_named(refused, saved, monkeypatch):
    def scan(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("tuner.tuning.resume.loading.scan", scan)
    message = refused("--resume", "mine")
    assert "journal.jsonl cannot be read (Permission denied): its trials are unknown; restore the file" in message


def test_a_search_that_was_killed_at_its_start_begins_and_is_refused_only_without_its_journal(saved, capsys):
    """It is killed before each change of its files, up to the one that says that it has begun."""
    seen = Counter()
    request = request_of("--space", "space.py", "--name", "other", "--num-samples", 6)
    folder = request.experiment.folder
    for step in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        if not killed_at(step, lambda: session.open_journal(request).close()):
            break
        if not (folder / "experiment.json").exists():
            continue
        for gone in (False, True):
            if gone:
                (folder / "journal.jsonl").unlink(missing_ok=True)
            try:
                seen[gone, bool(request_of("--resume", "other", "--trust").history)] += 1
            except RequestError as error:
                assert gone and "its trials are unknown" in str(error)
                seen["refused"] += 1
    assert set(seen) == {(False, False), (False, True), (True, False), "refused"}


def test_the_first_event_is_on_the_disk_before_experiment_json_says_so(saved, monkeypatch):
    """Otherwise a power failure might leave the word without the event."""
    request = request_of("--space", "space.py", "--name", "other")
    request.experiment.folder.mkdir()
    synced, sync = [], os.fsync

    def fsync(handle):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((path, path.read_text() if path.is_file() else os.listdir(path)))
        sync(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    session.open_journal(request).close()
    events = next(n for n, (path, text) in enumerate(synced) if "experiment_started" in text)
    name = next(n for n, (path, names) in enumerate(synced) if path.is_dir() and "journal.jsonl" in names)
    begun = next(n for n, (_, text) in enumerate(synced) if '"begun": true' in text)
    assert max(events, name) < begun


def test_a_foreign_folder_or_file_is_refused(refused, saved):
    (saved.parent / "folder").mkdir()
    (saved.parent / "folder" / "notes.txt").write_text("hello")
    assert "no experiment 'folder' in " in refused("--resume", "folder")
    (saved.parent / "file").write_text("hello")
    assert "/file is a file, not an experiment's folder" in refused("--resume", "file")


def test_an_experiment_that_changes_before_it_is_locked_is_refused(refused, saved, monkeypatch):
    def changed(folder):
        os.utime(folder / "experiment.json")
        return contextlib.nullcontext()

    monkeypatch.setattr("tuner.tuning.resume.loading.only_driver", changed)
    assert "another process has just changed this experiment" in refused("--resume", "mine")


def test_a_second_driver_is_refused_and_told_which_is_the_first(refused, saved):
    from tuner.record.storage.lock import only_driver

    with only_driver(saved):
        assert f"process {os.getpid()} on {socket.gethostname()} is running this" in refused("--resume", "mine")


def test_the_journal_of_another_search_is_refused_and_its_lines_are_not_taken(refused, saved):
    request = request_of("--space", "space.py", "--name", "other", "--num-samples", 6)
    session.make_folder(request.experiment)
    session.open_journal(request).close()
    whole = (saved / "journal.jsonl").read_bytes()
    foreign = (request.experiment.folder / "journal.jsonl").read_bytes()
    (saved / "journal.jsonl").write_bytes(foreign)
    assert "mine/journal.jsonl is the journal of another search (its `id` is" in refused("--resume", "mine")
    with pytest.raises(RequestError, match="is the journal of another search"):
        load(saved)
    (saved / "journal.jsonl").write_bytes(whole + foreign)
    assert [event["name"] for event in scan(saved / "journal.jsonl").events] == ["mine"]
