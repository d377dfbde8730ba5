"""Records what `test_recorded.py` resumes: `python tests/record.py [CASE ...]` runs the searches with this checkout.

Each case becomes `recorded/<date>-<commit>/<case>/` with three entries:

* `unbroken.json`: settings, reports, decisions and ends of the search without a break;
* `interrupted/`: the experiment's folder after SIGINT in the middle of the search;
* `killed/`: the folder after SIGKILL of the driver in the middle of the search.

The folders hold only what a resumed search reads: experiment.json and its copy, the journal, and the checkpoints.
Paths of the recording machine are removed from experiment.json.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from killing import COMMAND, ONE_AT_A_TIME, left_of, num_lines, run_whole, start

from tuner.record.saved_experiment import COPY, FILE, load_experiment, save_experiment
from tuner.spec.experiment import Experiment

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests" / "recorded"
SPACES = "tests/recorded/spaces"  # relative, so that another checkout finds them
EPOCH_S = "0.1"  # long enough for a signal to arrive in the middle of a search
# Shares of the unbroken search's events after which each search is broken off.
SIGNALS = {"interrupted": (signal.SIGINT, 0.4), "killed": (signal.SIGKILL, 0.6)}
PAIRS = [
    ("random", "asha"), ("random", "hyperband"), ("random", "median"), ("random", "pbt"), ("random", "fifo"),
    ("grid", "asha"), ("refine", "asha"), ("refine", "median"), ("hyperopt", "asha"), ("hyperopt", "hyperband"),
    ("optuna", "asha"), ("optuna", "median"), ("bohb", "bohb"), ("random", "asha-promotion"),
    ("optuna", "asha-promotion"),
]  # fmt: skip
FOREST = ("--space", f"{SPACES}/function.py", "--searcher", "forest")  # it learns from 10 trials on
TASK = ("--space", f"{SPACES}/task.py", *ONE_AT_A_TIME)


@dataclass(frozen=True)
class Case:
    """A search to record: its name and the options of the command."""

    name: str
    options: tuple[str, ...]


def pair(searcher: str, scheduler: str) -> Case:
    options = ("--space", f"{SPACES}/function.py", "--searcher", searcher, "--scheduler", scheduler, *ONE_AT_A_TIME)
    # Ray's own pbt, which older versions used, ends with few seeds if one trial runs at a time.
    return Case(f"{searcher}-{scheduler}", (*options, *(("--seed", "5") if scheduler == "pbt" else ())))


CASES = [
    *(pair(*names) for names in PAIRS),
    Case("task", TASK),
    Case("ddp", (*TASK, "--strategy", "ddp", "--workers-per-trial", "2")),
    Case("forgetful", ("--space", f"{SPACES}/forgetful.py", "--scheduler", "fifo", *ONE_AT_A_TIME)),
    Case("two-at-a-time", ("--space", f"{SPACES}/function.py", "--scheduler", "asha", "--max-concurrent-trials", "2")),
    Case("task-promotion", (*TASK, "--scheduler", "asha-promotion", "--brackets", "2")),
    Case("forest-asha-promotion", (*FOREST, "--scheduler", "asha-promotion", "--num-samples", "36", *ONE_AT_A_TIME)),
    # What `auto` chose, whatever a later version chooses.
    Case("auto", ("--space", f"{SPACES}/function.py", "--num-samples", "20", *ONE_AT_A_TIME)),
]


def record(case: Case, target: Path) -> None:
    """Runs the search three times and keeps what each run leaves."""
    with tempfile.TemporaryDirectory() as temporary:
        results = Path(temporary)
        whole = run_whole(results, "unbroken", case.options)
        target.mkdir(parents=True)
        (target / "unbroken.json").write_text(json.dumps(essence(whole / "journal.jsonl")) + "\n")
        for name, (number, share) in SIGNALS.items():
            num_events = int(share * num_lines(whole / "journal.jsonl"))
            process = broken_off(results, name, case.options, number, num_events)
            keep(results / name, target / name)
            end_all_of(process)


def broken_off(results: Path, name: str, options: tuple[str, ...], number: int, num_events: int) -> subprocess.Popen:
    """Starts the search and sends a signal once its journal holds so many events; returns its ended driver."""
    command = [*COMMAND, *options, "--results", str(results), "--name", name]
    os.environ["EPOCH_S"] = EPOCH_S
    process = start(command)
    del os.environ["EPOCH_S"]
    end = time.monotonic() + 600
    while num_lines(results / name / "journal.jsonl") < num_events:
        if process.poll() is not None or time.monotonic() > end:
            end_all_of(process)
            raise RuntimeError(f"{' '.join(command)}: the search ended or stood still before event {num_events}")
        time.sleep(0.01)
    os.kill(process.pid, number)
    process.wait(30)
    return process


def end_all_of(process: subprocess.Popen) -> None:
    """Kills what the search started and did not end."""
    for pid in left_of(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def essence(journal: Path) -> dict:
    """What another version must repeat: not times, nor the words of reasons, which may be rewritten.

    Reads JSON by itself, so that a changed reader of journals is not compared with itself.
    """
    events = [json.loads(line) for line in journal.read_bytes().split(b"\n")[:-1]]  # a torn last line is left out
    decision = ("trial", "epoch", "rung", "bracket", "value", "cutoff", "recorded", "action")
    return {
        "settings": {e["trial"]: e["config"] for e in events if e["event"] == "trial_suggested"},
        "reports": [[e["trial"], e["epoch"], e["metrics"]["loss"]] for e in events if e["event"] == "report"],
        "decisions": [[e[field] for field in decision] for e in events if e["event"] == "decision"],
        "ends": {e["trial"]: e["status"] for e in events if e["event"] == "trial_ended"},
    }


def keep(folder: Path, target: Path) -> None:
    """Copies what a resumed search reads, without the paths of this machine."""
    experiment, facts = load_experiment(folder)
    space = {**facts["space"], "path": experiment.space}
    command = ["python", *facts["command"][1:]]
    command[command.index("--results") + 1] = Experiment.results
    target.mkdir()
    experiment = replace(experiment, results=Experiment.results)
    save_experiment(experiment, target, {**facts, "space": space, "command": command})
    shutil.copy(folder / "journal.jsonl", target)
    for checkpoint in folder.glob("ray/*/checkpoint_*"):
        shutil.copytree(checkpoint, target / checkpoint.relative_to(folder))
    assert {FILE, COPY} < {path.name for path in target.iterdir()}


def main(names: list[str]) -> None:
    """Records the named cases, or all."""
    os.chdir(ROOT)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout
    version = RECORDED / f"{time.strftime('%Y-%m-%d')}-{commit.strip()}"
    for case in CASES:
        if not names or case.name in names:
            began = time.monotonic()
            record(case, version / case.name)
            print(f"{case.name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
