"""Searches whose processes are killed, beside the same searches left alone.

The first table kills drivers by SIGKILL at random moments, some with all of Ray, and resumes them each time; the
second kills a trial's worker every few seconds. All searches are of a space whose epochs take half a second.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from killing import (
    COMMAND,
    ONE_AT_A_TIME,
    SPACES,
    TRIAL_ACTORS,
    assert_same,
    left_of,
    repeated_and_lost,
    run_killed,
    run_whole,
    start,
)

from benchmarks.peers.measure import show
from tuner.record.events import Event
from tuner.record.reading import read
from tuner.record.results import load

TITLES = tuple(title.encode() for title in (*TRIAL_ACTORS, "ray::WorkerActor"))
SLOW = ["--space", str(SPACES / "slow.py")]
DDP = ["--strategy", "ddp", "--workers-per-trial", "2"]
TWO = ["--max-concurrent-trials", "2"]
PLAIN = ["--searcher", "random", "--scheduler", "asha"]
SMALL = ["--num-samples", "6", "--max-epochs", "4"]


@dataclass(frozen=True)
class Case:
    """A search of the first table: how often it is killed, and how many of these kills take all of Ray."""

    name: str
    options: tuple[str, ...]
    kills: int
    of_everything: int = 0
    in_order: bool = True  # one trial at a time: its decisions are fixed


def pair(searcher: str, scheduler: str, kills: int, of_everything: int = 0) -> Case:
    options = (*SLOW, *SMALL, *ONE_AT_A_TIME, "--searcher", searcher, "--scheduler", scheduler)
    return Case(f"{searcher} + {scheduler}", options, kills, of_everything)


CASES = [
    pair("random", "asha", 4, 2),
    pair("hyperopt", "asha", 3),
    pair("bohb", "bohb", 3),
    pair("refine", "asha", 3),
    pair("optuna", "asha", 1),
    pair("random", "hyperband", 2),
    pair("random", "pbt", 2),
    pair("random", "median", 1),
    Case("random + asha, ddp in 2 workers", (*SLOW, *SMALL, *ONE_AT_A_TIME, *DDP, *PLAIN), 2, 1),
    Case("random + fifo, two at a time", (*SLOW, *SMALL, *TWO, "--scheduler", "fifo"), 2, 1, in_order=False),
]


def of_drivers(case: Case, results: Path, seed: int) -> list[str]:
    """A row of the first table."""
    name = folder_name(case.name)
    whole = run_whole(results, f"{name}-whole", case.options)
    killed = run_killed(results, name, case.options, case.kills, seed=seed, of_everything=case.of_everything)
    repeated, lost = repeated_and_lost(killed.folder)
    back = repeated_and_lost(whole)[0]  # population based training itself goes back to epochs of others
    same = "curves" if curves(killed.folder) == curves(whole) else "NO"
    if case.in_order:
        with contextlib.suppress(AssertionError):
            assert_same(whole, killed.folder)
            same = "settings, curves, decisions"
    row = [case.name, f"{killed.survived}", f"{repeated - back}", f"{lost}", same, f"{len(killed.left())}"]
    print(" | ".join(row), file=sys.stderr, flush=True)
    return row


def of_workers(name: str, options: list[str], results: Path, every_s: float, seed: int) -> list[str]:
    """A row of the second table."""
    folder, stream, kills = results / folder_name(name), random.Random(seed), 0
    begun = time.monotonic()
    quiet = run_whole(results, f"{folder.name}-quiet", options)
    quiet_s, begun = time.monotonic() - begun, time.monotonic()
    process = start([*COMMAND, *options, "--max-failures", "1000", "--results", str(results), "--name", folder.name])
    at_kill, journal = 0, folder / "journal.jsonl"
    while process.poll() is None:
        time.sleep(stream.uniform(0.5, 1.5) * every_s)
        reports = sum(event["event"] == "report" for event in read(journal))
        # A slow machine needs longer than `every_s` to start a worker again: without a report between two kills, the
        # search would not end.
        if reports > at_kill and (workers := [pid for pid in left_of(process) if is_worker(pid)]):
            os.kill(stream.choice(workers), signal.SIGKILL)
            kills, at_kill = kills + 1, reports
    chaos_s = time.monotonic() - begun
    assert process.returncode == 0, process.returncode
    events = read(journal)
    failed = [event for event in events if event["event"] == "trial_failed"]
    same = "answer, curves" if curves(folder) == curves(quiet) else "answer"
    same = same if answer(folder) == answer(quiet) else "NO"
    again = sum(epochs_again(events, event) for event in failed)
    figures = [kills, sum(event["will_retry"] for event in failed), again]
    return [name, *map(str, figures), same, f"{quiet_s:.0f}", f"{chaos_s:.0f}"]


def folder_name(name: str) -> str:
    """A row's name as an experiment's."""
    return "".join(letter for letter in name if letter.isalnum())


def is_worker(pid: int) -> bool:
    """Whether a process trains: a trial's actor, or one of its ddp workers."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(TITLES)
    return False


def epochs_again(events: list[Event], failure: Event) -> int:
    """Reported epochs that a trial trained again after a failure; the one it was in comes on top."""
    before = events[: events.index(failure)]
    seen = [e["epoch"] for e in before if e["event"] == "report" and e["trial"] == failure["trial"]]
    return max(seen, default=0) - failure.get("from_epoch", 0)


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    return {trial.id: [(r.epoch, r.metrics["loss"]) for r in trial.reports] for trial in load(folder).trials}


def answer(folder: Path) -> tuple[str, int, float]:
    trial, report = load(folder).best()
    return trial.id, report.epoch, report.metrics["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("drivers", "workers"), help="one of the two tables")
    parser.add_argument("--parallel", type=int, default=1, help="searches of the first table at a time")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two kills of a worker")
    parser.add_argument("--num-samples", type=int, default=30, help="trials of a search of the second table")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--results", default="", help="a new folder for the searches, which stays")
    parser.add_argument("--cases", default="", help="those searches of both tables whose name matches this regex")
    args = parser.parse_args()
    cases = [case for case in CASES if re.search(args.cases, case.name)]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(args.results or folder)
        if args.only != "workers":
            with ThreadPoolExecutor(args.parallel) as pool:
                rows = list(pool.map(lambda case: of_drivers(case, results, args.seed), cases))
            show(["search", "kills survived", "epochs repeated", "reports lost", "equal", "processes left"], rows)
        if args.only != "drivers":
            options = [*SLOW, "--num-samples", str(args.num_samples), "--max-epochs", "3"]
            options += ["--searcher", "random", "--scheduler", "fifo"]
            # A ddp trial needs 5 s to start again: killed more often than that it would never end an epoch.
            kinds = {"two trials at a time": (TWO, args.every), "ddp in 2 workers": (DDP, 3 * args.every)}
            rows = [
                of_workers(name, [*options, *more], results, every_s, args.seed)
                for name, (more, every_s) in kinds.items()
                if re.search(args.cases, name)
            ]
            header = ["search", "kills", "retries", "epochs again", "equal", "quiet (s)", "with kills (s)"]
            show(header, rows)


if __name__ == "__main__":
    main()
