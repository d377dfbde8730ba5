"""Searches whose driver is killed, and what is left of them beside an unbroken one."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tuner.journal import read
from tuner.results import load

SPACES = Path(__file__).parent / "spaces"
COMMAND = [sys.executable, "-m", "tuner.run", "--wandb", "disabled"]
# Ray resumes as many paused trials as there are CPUs for, so a trial takes all of them.
ONE_AT_A_TIME = ["--max-concurrent-trials", "1", "--cpus-per-trial", str(len(os.sched_getaffinity(0)))]


def run_whole(results, name, options):
    """The search without a kill."""
    given = [*COMMAND, *options, "--results", str(results), "--name", name]
    subprocess.run(given, check=True, capture_output=True)
    return results / name


def run_killed(results, name, options, kills, most_s=1.5, seed=0):
    """The search, killed by SIGKILL at `kills` random moments and resumed each time; its folder and kills survived.

    A moment is some events after the search went on, and a part of `most_s` seconds: an epoch's length and more.
    """
    stream, survived = random.Random(f"{name} {seed}"), 0
    given = [*COMMAND, *options, "--results", str(results), "--name", name]
    journal = results / name / "journal.jsonl"
    for _ in range(kills):
        events = num_lines(journal) + stream.randint(1, 12)
        process = start(given)
        while process.poll() is None and num_lines(journal) < events:
            time.sleep(0.05)
        time.sleep(stream.uniform(0, most_s))
        if process.poll() is None:
            survived += 1
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(2)  # Ray's processes notice that their driver is gone
        if (results / name / "experiment.json").exists():
            given = [*COMMAND, "--resume", name, "--results", str(results)]
    done = subprocess.run(given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return results / name, survived


def num_lines(journal):
    """Whole lines of a journal that may not be there yet."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def start(given, **options):
    """A search in a session of its own, which its processes are found by."""
    return subprocess.Popen(
        given, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True, **options}
    )


def told(trial):
    """All that must not depend on where a search was cut."""
    curve = [(report.epoch, report.metrics["loss"]) for report in trial.reports]
    return trial.id, trial.config, trial.status, trial.reason, curve


def decided(folder):
    """Every decision in its order, without its time."""
    events = [event for event in read(folder / "journal.jsonl") if event["event"] == "decision"]
    return [{name: value for name, value in event.items() if name != "time"} for event in events]


def assert_same(whole, other):
    """Settings, curves to the bit, ends, and decisions in their order."""
    assert [told(trial) for trial in load(other).trials] == [told(trial) for trial in load(whole).trials]
    assert decided(other) == decided(whole)


def repeated_and_lost(folder):
    """How many epochs were reported twice, and how many of a trial's lie between two reports but have none."""
    seen = Counter((e["trial"], e["epoch"]) for e in read(folder / "journal.jsonl") if e["event"] == "report")
    last = {trial: max(epoch for other, epoch in seen if other == trial) for trial, _ in seen}
    return sum(seen.values()) - len(seen), sum(last.values()) - len(seen)


def in_session(session):
    """The processes that live in a session and are no zombies: what a search has left behind."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = int(status.parent.name), status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(rest[3]) == session and rest[0] != "Z":
            found.append(pid)
    return found
