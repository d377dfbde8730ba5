"""Searches and processes that are killed, and what is left of them beside unbroken ones."""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from journals import read

from tuner.record.results import load

SPACES = Path(__file__).parent / "spaces"
TRIAL_ACTORS = ("ray::TrialFunction", "ray::ResourceTrainable")  # titles of their processes: idle, and in a call
COMMAND = [sys.executable, "-m", "tuner.run", "--wandb", "disabled"]
# Ray resumes as many paused trials as there are CPUs for, so a trial takes all of them.
ONE_AT_A_TIME = ["--max-concurrent-trials", "1", "--cpus-per-trial", str(len(os.sched_getaffinity(0)))]


def run_whole(results, name, options):
    """The search without a kill."""
    subprocess.run([*COMMAND, *options, "--results", str(results), "--name", name], check=True, capture_output=True)
    return results / name


def troubled(folder, troubles, saves=False):
    """Writes a space of one trial for each of the troubles; returns its path."""
    text, usual = (SPACES / "troubled.py").read_text(), 'TROUBLES, SAVES = ["none"], False'
    (folder / "troubled.py").write_text(text.replace(usual, f"TROUBLES, SAVES = {list(troubles)}, {saves}"))
    return str(folder / "troubled.py")


@dataclass
class Killed:
    """A search that was killed and resumed: its folder, and the sessions that a kill ended."""

    folder: Path
    survived: int
    sessions: list[subprocess.Popen]

    def left(self, seconds=90):
        """Processes of its sessions that still live so long after the last one.

        Of a killed one, Ray's agents try for 60 s to tell a GCS that is gone of the raylet's end (ray 2.60).
        """
        end = time.monotonic() + seconds
        while (left := [pid for session in self.sessions for pid in left_of(session)]) and time.monotonic() < end:
            time.sleep(0.2)
        return left


def run_killed(results, name, options, kills, most_s=1.5, seed=0, of_everything=0):
    """The search, killed by SIGKILL at `kills` random moments and resumed each time.

    A moment is some events after the search went on, and a part of `most_s` seconds: an epoch's length and more. The
    last `of_everything` kills are of Ray's processes too, as when the machine goes down; the others are of the driver.
    """
    stream, survived, sessions = random.Random(f"{name} {seed}"), 0, []
    command = [*COMMAND, *options, "--results", str(results), "--name", name]
    journal = results / name / "journal.jsonl"
    for number in range(kills):
        events = num_lines(journal) + stream.randint(1, 12)
        process = start(command)
        sessions.append(process)
        while process.poll() is None and num_lines(journal) < events:
            time.sleep(0.05)
        time.sleep(stream.uniform(0, most_s))
        if process.poll() is None:
            survived += 1
            family = left_of(process) if number >= kills - of_everything else [process.pid]
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            time.sleep(stream.uniform(0, 2))  # Ray's processes may or may not have noticed when the next one begins
        if (results / name / "experiment.json").exists():
            command = [*COMMAND, "--resume", name, "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Killed(results / name, survived, sessions)


def num_lines(journal):
    """Whole lines of a journal that may not be there yet."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def start(command, **options):
    """A search whose processes are known by a mark in their environment (`left_of`)."""
    mark = uuid.uuid4().hex
    usual = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": os.environ | {"TUNER_TEST": mark}}
    usual["preexec_fn"] = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` ignores it
    process = subprocess.Popen(command, **usual | options, start_new_session=True)
    process.mark = f"TUNER_TEST={mark}".encode()
    return process


def outcome_of(trial):
    """All that must not depend on where a search was cut."""
    curve = [(report.epoch, report.metrics["loss"]) for report in trial.reports]
    return trial.id, trial.config, trial.status, trial.reason, curve


def decided(folder):
    """Every decision in its order, without its time."""
    events = [event for event in read(folder / "journal.jsonl") if event["event"] == "decision"]
    return [{name: value for name, value in event.items() if name != "time"} for event in events]


def is_acted_upon(event):
    """Whether an event is a decision that lets something else happen than the trial's next epoch."""
    return event["event"] == "decision" and (event["action"] in ("stop", "pause") or bool(event.get("copied")))


def assert_same(whole, other):
    """Settings, curves to the bit, ends, and decisions in their order."""
    assert [outcome_of(trial) for trial in load(other).trials] == [outcome_of(trial) for trial in load(whole).trials]
    assert decided(other) == decided(whole)


def cut(folder, target, num_events):
    """A copy of an experiment as if its driver had died after `num_events` events."""
    shutil.copytree(folder, target)
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (target / "journal.jsonl").write_bytes(b"".join(lines[:num_events]))


def repeated_and_lost(folder):
    """How many epochs were reported twice, and how many of a trial's lie between two reports but have none."""
    seen = Counter((e["trial"], e["epoch"]) for e in read(folder / "journal.jsonl") if e["event"] == "report")
    last = {trial: max(epoch for other, epoch in seen if other == trial) for trial, _ in seen}
    return sum(seen.values()) - len(seen), sum(last.values()) - len(seen)


def left_of(process):
    """The processes that live of what `start` started, W&B's and Ray's among them."""
    pids = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended
            if process.mark in environment.read_bytes():  # a zombie's is empty
                pids.append(int(environment.parent.name))
    return pids


def seen(processes, look):
    """(process, what `look` says of it) for each of psutil's processes, without those that end meanwhile."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield process, look(process)


def killed_at(step, work):
    """Does some work in a process that ends at once before its change number `step` of files; True if it ended so."""
    changes = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "shutil.rmtree", "ctypes.dlsym")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have started threads
        child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    count = itertools.count(1)
    sys.addaudithook(lambda event, _: os._exit(9) if event in changes and next(count) == step else None)
    try:
        work()
    finally:
        os._exit(0)
