"""Searches whose processes are killed, beside the same searches left alone.

The first table kills drivers by SIGKILL at random moments, some with all of Ray, and resumes them each time; the
second kills a trial's worker every few seconds. Their searches are of a space whose epochs take half a second. The
third has searches over raylets of this machine, one fault in each, beside a search on one node without any.
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
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import killing
from killing import ONE_AT_A_TIME, SPACES, run_killed, run_whole
from raylets import FAULTS, Search, epochs_lost, figures, raylets

from benchmarks.peers.measure import show
from tuner.core.events import Report
from tuner.record.reading import read
from tuner.record.results import load

TITLES = tuple(title.encode() for title in (*killing.TRIAL_ACTORS, "ray::WorkerActor"))
SLOW = ["--space", str(SPACES / "tiny.py:slow")]
DDP = ["--strategy", "ddp", "--workers-per-trial", "2"]
TWO = ["--max-concurrent-trials", "2"]
EVERY_S = 4.0  # between two kills of a worker
SMALL = ["--num-samples", "6", "--max-epochs", "4"]


@dataclass(frozen=True)
class Case:
    """A search of the first table: how often it is killed, and how many of these kills take all of Ray."""

    searcher: str
    scheduler: str
    kills: int
    of_everything: int = 0
    options: tuple[str, ...] = (*ONE_AT_A_TIME,)
    what: str = ""

    @property
    def name(self) -> str:
        return f"{self.searcher} + {self.scheduler}{self.what}"


CASES = [
    Case("random", "asha", 4, 2),
    Case("hyperopt", "asha", 3),
    Case("bohb", "bohb", 3),
    Case("refine", "asha", 3),
    Case("optuna", "asha", 1),
    Case("random", "hyperband", 2),
    Case("random", "pbt", 2),
    Case("random", "median", 1),
    Case("random", "asha", 2, 1, (*ONE_AT_A_TIME, *DDP), ", ddp in 2 workers"),
    Case("random", "fifo", 2, 1, (*TWO,), ", two at a time"),
]


def of_drivers(case: Case, results: Path, seed: int) -> list[str]:
    """A row of the first table."""
    name = folder_name(case.name)
    options = [*SLOW, *SMALL, *case.options, "--searcher", case.searcher, "--scheduler", case.scheduler]
    whole = run_whole(results, f"{name}-whole", options)
    killed = run_killed(results, name, options, case.kills, seed=seed, of_everything=case.of_everything)
    repeated, lost = killing.repeated_and_lost(killed.folder)
    back = killing.repeated_and_lost(whole)[0]  # population based training itself goes back to epochs of others
    same = "curves" if curves(killed.folder) == curves(whole) else "NO"
    if case.options[: len(ONE_AT_A_TIME)] == (*ONE_AT_A_TIME,):  # otherwise the order of decisions is not fixed
        with contextlib.suppress(AssertionError):
            killing.assert_same(whole, killed.folder)
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
    process = killing.start(
        [*killing.COMMAND, *options, "--max-failures", "1000", "--results", str(results), "--name", folder.name]
    )
    at_kill, journal = 0, folder / "journal.jsonl"
    while process.poll() is None:
        time.sleep(stream.uniform(0.5, 1.5) * every_s)
        reports = sum(isinstance(event, Report) for event in read(journal))
        # A slow machine needs longer than `every_s` to start a worker again: without a report between two kills, the
        # search would not end.
        if reports > at_kill and (workers := [pid for pid in killing.left_of(process) if is_worker(pid)]):
            os.kill(stream.choice(workers), signal.SIGKILL)
            kills, at_kill = kills + 1, reports
    chaos_s = time.monotonic() - begun
    assert process.returncode == 0, process.returncode
    ended = Search(folder, process)
    retries = sum(event["will_retry"] for event in ended.named("trial_failed"))
    same = "curves" if curves(folder) == curves(quiet) else "NO"
    return [name, f"{kills}", f"{retries}", f"{epochs_lost(ended)}", same, f"{quiet_s:.0f}", f"{chaos_s:.0f}"]


def of_nodes(names: list[str], results: Path) -> list[list[str]]:
    """The third table."""
    rows = []
    with raylets(results, 1) as bed:
        alone = bed.search("alone")
        alone.end()
    for name in names:
        with raylets(results, FAULTS[name].num_nodes) as bed:
            search = FAULTS[name].search(bed, name)
        completed = sum(event["status"] == "completed" for event in search.named("trial_ended"))
        retries = sum(event["will_retry"] for event in search.named("trial_failed"))
        same = "figures" if figures(search) == figures(alone) else "NO"
        counts = [search.process.returncode, completed, retries, epochs_lost(search)]
        rows.append([FAULTS[name].what, *map(str, counts), same])
    return rows


def folder_name(name: str) -> str:
    """A row's name as an experiment's."""
    return "".join(letter for letter in name if letter.isalnum())


def is_worker(pid: int) -> bool:
    """Whether a process trains: a trial's actor, or one of its ddp workers."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(TITLES)
    return False


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    return {trial.id: [(r.epoch, r.metrics["loss"]) for r in trial.reports] for trial in load(folder).trials}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("drivers", "workers", "nodes"), help="one of the three tables")
    parser.add_argument("--num-samples", type=int, default=30, help="trials of a search of the second table")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--cases", default="", help="those searches of the tables whose name matches this regex")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        results = Path(folder)
        if args.only in (None, "drivers"):
            cases = [case for case in CASES if re.search(args.cases, case.name)]
            rows = [of_drivers(case, results, args.seed) for case in cases]
            show(["search", "kills survived", "epochs repeated", "reports lost", "equal", "processes left"], rows)
        if args.only in (None, "workers"):
            options = [*SLOW, "--num-samples", str(args.num_samples), "--max-epochs", "3"]
            options += ["--searcher", "random", "--scheduler", "fifo"]
            # A ddp trial needs 5 s to start again: killed more often than that it would never end an epoch.
            kinds = {"two trials at a time": (TWO, EVERY_S), "ddp in 2 workers": (DDP, 3 * EVERY_S)}
            rows = [
                of_workers(name, [*options, *more], results, every_s, args.seed)
                for name, (more, every_s) in kinds.items()
                if re.search(args.cases, name)
            ]
            show(["search", "kills", "retries", "epochs lost", "equal", "quiet (s)", "with kills (s)"], rows)
        if args.only in (None, "nodes"):
            names = [name for name in FAULTS if re.search(args.cases, name)]
            show(
                ["what happens", "exit code", "completed", "retries", "epochs lost", "equal"], of_nodes(names, results)
            )


if __name__ == "__main__":
    main()
