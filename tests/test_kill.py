"""The driver is killed without warning, or asked to stop, and `--resume` goes on as if nothing had happened."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import pytest
from killing import (
    COMMAND,
    ONE_AT_A_TIME,
    SPACES,
    assert_same,
    in_session,
    repeated_and_lost,
    run_killed,
    run_whole,
    start,
)

from tuner.journal import read
from tuner.results import load

pytestmark = pytest.mark.timeout(900)  # several searches each
SLOW = ["--space", str(SPACES / "slow.py")]
KILLS = {
    ("random", "asha"): 4, ("hyperopt", "asha"): 4, ("bohb", "bohb"): 4, ("refine", "asha"): 3, ("optuna", "asha"): 2,
    ("random", "hyperband"): 3, ("random", "pbt"): 3, ("random", "median"): 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def table():
    rows = []
    yield rows
    print(f"\n{'search':22}{'kills survived':>16}{'epochs repeated':>17}{'reports lost':>14}")
    for row in rows:
        print(f"{row[0]:22}{row[1]:16}{row[2]:17}{row[3]:14}")


@pytest.mark.slow
@pytest.mark.parametrize(("searcher", "scheduler"), KILLS)
def test_a_killed_search_ends_as_the_unbroken_one(tmp_path, table, searcher, scheduler):
    choices = ["--searcher", searcher, "--scheduler", scheduler, "--num-samples", "6", "--max-epochs", "4"]
    options = [*SLOW, *choices, *ONE_AT_A_TIME]
    whole = run_whole(tmp_path, "whole", options)
    killed, survived = run_killed(tmp_path, f"{searcher}-{scheduler}", options, KILLS[searcher, scheduler])
    table.append((f"{searcher} + {scheduler}", survived, *repeated_and_lost(killed)))
    assert_same(whole, killed)
    if scheduler != "pbt":  # which itself goes back to epochs of others
        assert repeated_and_lost(killed) == (0, 0)


@pytest.mark.slow
def test_two_at_a_time_no_epoch_is_lost_or_repeated(tmp_path, table):
    options = [*SLOW, "--scheduler", "fifo", "--num-samples", "6", "--max-concurrent-trials", "2"]
    whole = run_whole(tmp_path, "whole", options)
    killed, survived = run_killed(tmp_path, "killed", options, 4)
    table.append(("two at a time", survived, *repeated_and_lost(killed)))
    assert repeated_and_lost(killed) == (0, 0)
    one, other = ({t.id: [r.metrics["loss"] for r in t.reports] for t in load(f).trials} for f in (whole, killed))
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("twice", [False, True])
def test_a_signal_stops_the_search_and_leaves_no_process(tmp_path, number, twice):
    process = start([*COMMAND, *SLOW, "--results", str(tmp_path), "--name", "x"])
    wait_for(lambda: (tmp_path / "x" / "journal.jsonl").exists() and reports(tmp_path / "x") >= 2)
    started = time.monotonic()
    os.kill(process.pid, number)
    if twice:
        time.sleep(0.05)
        os.kill(process.pid, number)
    code = process.wait(30)
    assert time.monotonic() - started < 15
    assert code == 130 or (twice and code in (-number, 130))
    wait_for(lambda: not in_session(process.pid), 15)
    subprocess.run([*COMMAND, "--resume", "x", "--results", str(tmp_path)], check=True, capture_output=True)
    assert {trial.status for trial in load(tmp_path / "x").trials} <= {"completed", "pruned"}


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MiB, where this machine lets a test mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("freed", [True, False])
def test_a_full_disk_is_waited_for_or_left_with_the_state_kept(small_disk, tmp_path, freed):
    said = tmp_path / "said"
    with said.open("w") as file:
        process = start([*COMMAND, *SLOW, "--results", str(small_disk), "--name", "x"], stderr=file)
    folder = small_disk / "x"
    wait_for(lambda: (folder / "journal.jsonl").exists() and reports(folder) >= 2)
    fill(small_disk / "filler")
    wait_for(lambda: "No space left on device; the search waits until it can be written to" in said.read_text())
    events = len(read(folder / "journal.jsonl"))
    time.sleep(3)
    assert process.poll() is None and len(read(folder / "journal.jsonl")) == events
    if not freed:
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(15) == 130
        wait_for(lambda: not in_session(process.pid), 15)
    (small_disk / "filler").unlink()
    if not freed:
        process = start([*COMMAND, "--resume", "x", "--results", str(small_disk)])
    assert process.wait(120) == 0
    assert {trial.status for trial in load(folder).trials} <= {"completed", "pruned"}
    assert "Traceback" not in said.read_text()


def fill(path):
    """Takes all the room there is."""
    with path.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def reports(folder):
    return sum(event["event"] == "report" for event in read(folder / "journal.jsonl"))


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)
