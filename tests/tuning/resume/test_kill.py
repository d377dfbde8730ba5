"""The driver is killed without warning, or asked to stop, and `--resume` goes on as if nothing had happened."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from journals import read
from killing import (
    COMMAND,
    ONE_AT_A_TIME,
    SPACES,
    assert_same,
    left_of,
    repeated_and_lost,
    run_killed,
    run_whole,
    start,
)
from tiers import further

from tuner.record.results import load

pytestmark = pytest.mark.timeout(900)  # several searches each
SLOW = ["--space", str(SPACES / "tiny.py:slow")]
DDP = ["--strategy", "ddp", "--workers-per-trial", "2"]
# One of each kind of replay; `benchmarks/chaos.py` has all pairs and more kills.
KILLS = {
    "random asha": 2, "random asha-promotion": 2, "forest asha-promotion": 2, "bohb bohb": 2, "random pbt": 1, "ddp": 2,
}  # fmt: skip


@pytest.mark.chaos
@pytest.mark.parametrize("search", KILLS)
def test_a_killed_search_ends_as_the_unbroken_one(tmp_path, search):
    searcher, scheduler = search.split() if search != "ddp" else ("random", "asha")
    number = "16" if searcher == "forest" else "6"  # the first forest needs reports of ten trials
    choices = ["--searcher", searcher, "--scheduler", scheduler, "--num-samples", number, "--max-epochs", "4"]
    options = [*SLOW, *choices, *ONE_AT_A_TIME, *(DDP if search == "ddp" else [])]
    whole = run_whole(tmp_path, "whole", options)
    killed = run_killed(tmp_path, search.replace(" ", "-"), options, KILLS[search], of_everything=search == "ddp")
    assert killed.survived
    assert_same(whole, killed.folder)
    if scheduler != "pbt":  # which itself goes back to epochs of others
        assert repeated_and_lost(killed.folder) == (0, 0)
    assert not killed.left()


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("more", [["--wandb", "disabled"], [*DDP, "--wandb", "offline"]], ids=["single", "ddp and W&B"])
def test_a_signal_stops_the_search_and_leaves_no_process(tmp_path, number, twice, more):
    process = begun(tmp_path, [*COMMAND[:-2], *SLOW, *more])
    if twice:
        os.kill(process.pid, number)
        time.sleep(0.05)
    assert_ends(process, number)
    assert statuses_of_resumed(tmp_path) <= {"completed", "pruned"}


@pytest.mark.slow
def test_an_epoch_of_an_hour_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setenv("EPOCH_S", "3600")
    process = begun(tmp_path, [*COMMAND, "--space", str(SPACES / "functions.py:hours"), "--scheduler", "fifo"], least=1)
    assert_ends(process, signal.SIGINT)
    monkeypatch.delenv("EPOCH_S")
    assert statuses_of_resumed(tmp_path) == {"completed"}


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 24 MiB, where this machine lets a test mount one: report.html takes 5 of them."""
    (folder := tmp_path / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("freed", further([True, False], 1))
def test_a_full_disk_is_waited_for_or_left_with_the_state_kept(small_disk, tmp_path, freed):
    folder = small_disk / "x"
    process, output = begun_aside(small_disk, tmp_path)
    fill(small_disk / "filler")
    wait_for(lambda: re.search("No space left on device.*; the search waits until it can be wr", output.read_text()))
    wait_for(lambda: stands_still(folder, small_disk))
    assert_goes_on_or_resumes(process, small_disk, (small_disk / "filler").unlink, freed)
    assert "Traceback" not in output.read_text()
    assert freed or not [event for event in read(folder / "journal.jsonl") if event["event"] == "trial_failed"]


@pytest.mark.parametrize("back", further([True, False], 1))
def test_a_folder_that_is_moved_away_is_waited_for_or_left(tmp_path, back):
    folder, away = tmp_path / "results" / "x", tmp_path / "away"
    process, output = begun_aside(tmp_path / "results", tmp_path)
    folder.rename(away)
    wait_for(lambda: "the search waits until it can be written to" in output.read_text())
    time.sleep(3)
    assert not folder.exists()
    assert_goes_on_or_resumes(process, tmp_path / "results", lambda: away.rename(folder), back)
    assert repeated_and_lost(folder) == (0, 0) and "Traceback" not in output.read_text()


@pytest.mark.slow
def test_no_resume_is_advised_for_a_folder_that_is_deleted(tmp_path):
    folder = tmp_path / "results" / "x"
    process, output = begun_aside(tmp_path / "results", tmp_path)
    for _ in range(20):  # the workers make files there meanwhile
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
    wait_for(lambda: "the search waits until it can be written to" in output.read_text())
    assert_ends(process, signal.SIGINT)
    *_, last = output.read_text().splitlines()
    assert last.startswith(f"interrupted; {folder} is gone, so nothing can continue this search")


def begun_aside(results, folder):
    """A slow search, and the file of what it prints to stderr."""
    output = folder / "output"
    with output.open("w") as file:
        return begun(results, [*COMMAND, *SLOW], stderr=file), output


def assert_goes_on_or_resumes(process, results, repair, repaired):
    """A search that waits ends after the repair; or it is stopped, and its resume after the repair ends."""
    assert process.poll() is None
    if not repaired:
        assert_ends(process, signal.SIGTERM)
    repair()
    if not repaired:
        process = start([*COMMAND, "--resume", "x", "--results", str(results)])
    assert process.wait(120) == 0
    assert {trial.status for trial in load(results / "x").trials} <= {"completed", "pruned"}


@pytest.mark.parametrize("number", further([signal.SIGSTOP, signal.SIGKILL], 1))
def test_a_search_does_not_notice_what_happens_to_wandb(tmp_path, number):
    small = ["--num-samples", "3", "--scheduler", "fifo", "--max-epochs", "4", "--wandb", "offline"]
    folder = tmp_path / "x"
    with (tmp_path / "output").open("w") as file:
        process = begun(tmp_path, [*COMMAND[:-2], *SLOW, *small], stdout=file, stderr=file)
    mirror = [pid for pid in left_of(process) if b"tuner.tuning.output.wandb_mirror" in command_of(pid)]
    os.kill(mirror[0], number)
    assert process.wait(120) == 0
    output = (tmp_path / "output").read_text()
    assert {(trial.status, len(trial.reports)) for trial in load(folder).trials} == {("completed", 4)}
    assert "Traceback" not in output and "best        trial" in output
    later = f"run later: python -m tuner mirror {folder} --mode offline --all\n"
    assert "NOTE: W&B" in output and later in output
    wait_for(lambda: not left_of(process), 15)


def command_of(pid):
    with contextlib.suppress(OSError):  # it has just ended
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def stands_still(folder, disk):
    """Whether nothing is journaled while the disk is kept full: Ray removes old checkpoints, which makes room."""
    events, end = len(read(folder / "journal.jsonl")), time.monotonic() + 3
    while time.monotonic() < end:
        fill(disk / "filler")
        time.sleep(0.02)
    return len(read(folder / "journal.jsonl")) == events


def fill(path):
    """Takes all the room there is."""
    with path.open("ab", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def begun(results, command, least=2, **streams):
    """The command's search `x`, which has reported so many epochs."""
    process = start([*command, "--results", str(results), "--name", "x"], **streams)
    wait_for(lambda: (results / "x" / "journal.jsonl").exists() and reports(results / "x") >= least)
    return process


def assert_ends(process, number):
    """A signal ends the search within 15 s, and all its processes."""
    os.kill(process.pid, number)
    assert process.wait(15) == 130
    wait_for(lambda: not left_of(process), 15)


def statuses_of_resumed(results):
    subprocess.run([*COMMAND, "--resume", "x", "--results", str(results)], check=True, capture_output=True)
    return {trial.status for trial in load(results / "x").trials}


def reports(folder):
    return sum(event["event"] == "report" for event in read(folder / "journal.jsonl"))


def wait_for(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)
