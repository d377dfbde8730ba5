"""What the driver costs as a search grows: 100, 1,000 and 10,000 trials that do nothing but report, at most ten times.

Each size is a process of its own with 16 simulated CPUs, so that 16 trials run at a time whatever the machine has.
Given are seconds, the driver's own CPU seconds and what its resident memory grew by, from the 21st trial's start (all
workers run by then) to the last one's end, per 1,000 trials: flat figures mean that a trial costs the same in a large
search as in a small one. What the driver does once after the last trial (Ray's snapshot, the answer, the report) and
its peak of memory are given as they are. A second table has what a report costs the driver in all, and how many nodes
of eight trials with a report a second each that serves.

`--syncs` measures instead what it costs that nothing is lost when the power goes: each search once with the waits for
the disk and once without, in turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.peers import measure
from tuner.core.events import Report
from tuner.engine.workers.reports import persisted
from tuner.record.reading import read

NUM_CPUS = 16
WARM_UP = 20  # trials that are not counted: the driver starts a worker for each of the first
TRIALS_A_NODE = 8


def search(num_samples: int, results: Path, scheduler: str) -> None:
    """One search in this process; its figures go to `results`/figures.json."""
    import ray

    from tuner import run
    from tuner.engine.controller import changes as engine
    from tuner.tuning import assembly
    from tuner.tuning.checks import request

    marks: dict[str, dict[str, float]] = {}
    journaled, checkpoint, num_started = assembly.JournalCallback.on_trial_start, engine.Controller.checkpoint, 0

    def started(self: Any, *args: Any, **info: Any) -> None:
        nonlocal num_started
        journaled(self, *args, **info)
        num_started += 1
        if num_started == WARM_UP + 1:
            marks["warm"] = now()

    def forced(self: Any, force: bool = False, wait: bool = False) -> None:
        if force:  # once, when the last trial has ended
            marks["ended"] = now()
        checkpoint(self, force=force, wait=wait)

    assembly.JournalCallback.on_trial_start = started
    engine.Controller.checkpoint = forced
    request.local_cluster = lambda: {"CPU": float(NUM_CPUS), "GPU": 0.0}  # the search is held to what is there
    ray.init("local", num_cpus=NUM_CPUS, include_dashboard=False, log_to_driver=False)
    words = ["--space", "benchmarks/peers/instant.py", "--name", "scale", "--results", str(results)]
    words += ["--num-samples", str(num_samples), "--searcher", "random", "--scheduler", scheduler]
    if concurrent := os.environ.get("CONCURRENT"):
        words += ["--max-concurrent-trials", concurrent]
    code = run.main([*words, "--wandb", "disabled"])
    marks["done"] = now()
    ray.shutdown()
    assert code == 0, code
    (results / "figures.json").write_text(json.dumps(marks))


def now() -> dict[str, float]:
    """What this process has used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident_mib = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
    cpu_s, peak_mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 2**10
    return {"seconds": time.perf_counter(), "cpu_s": cpu_s, "mib": resident_mib, "peak_mib": peak_mib}


def measured(num_samples: int, scheduler: str, **options: str) -> tuple[dict[str, float], dict[str, float], float]:
    """What a search in a process of its own used between its marks and after them, and its journal's MiB."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        words = ["--search", str(num_samples), folder, scheduler]
        measure.run([*measure.README_PYTHON, "-m", "benchmarks.scale", *words], results / "log", options)
        marks = json.loads((results / "figures.json").read_text())
        journal_mib = (results / "scale" / "journal.jsonl").stat().st_size / 2**20
    used = {name: marks["ended"][name] - marks["warm"][name] for name in marks["warm"]}
    after = {"cpu_s": marks["done"]["cpu_s"] - marks["ended"]["cpu_s"], "peak_mib": marks["done"]["peak_mib"]}
    return used, after, journal_mib


def price(repeats: int) -> None:
    """Prints what the waits for the disk cost the driver, a short trial, and a large checkpoint."""
    sides = {"with": {}, "without": {"NO_SYNC": "1"}}
    short = {"TRIAL_S": "0.2", "NUM_REPORTS": "2", "SAVES": "1", "CONCURRENT": "2"}

    def trial_ms(options: dict[str, str]) -> float:
        used, *_ = measured(120, "fifo", **short, **options)
        return 2e3 * used["seconds"] / (120 - WARM_UP)

    def written_s(options: dict[str, str]) -> float:
        """Seconds in which a worker copies and syncs a checkpoint of 1 GiB."""
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(os, "fsync", noted if options else os.fsync):
            source, target = Path(folder) / "source", Path(folder) / "experiment" / "ray" / "00000" / "checkpoint"
            source.mkdir()
            (source / "state.pt").write_bytes(bytes(1 << 30))
            os.sync()
            began = time.perf_counter()
            persisted(lambda checkpoint: SimpleNamespace(path=shutil.copytree(checkpoint, target)), source)
            return time.perf_counter() - began

    def waits(options: dict[str, str]) -> float:
        """Per cent of its time that a driver waits whose workers take no time (`benchmarks.long_life`)."""
        with tempfile.TemporaryDirectory() as folder:
            words = ["--trials", "400", "--max-epochs", "100", "--text-bytes", "0", "--search", folder]
            command = [*measure.README_PYTHON, "-m", "benchmarks.long_life", *words]
            measure.run(command, Path(folder) / "log", options)
            reports = [e.time for e in read(Path(folder) / "long" / "journal.jsonl") if isinstance(e, Report)]
            paces.append(len(reports) / (reports[-1] - reports[0]))
            return 100 * float((Path(folder) / "waits").read_text()) / (reports[-1] - reports[0])

    paces: list[float] = []
    rows = {
        "waits of a driver, 400 trials of asha in workers that take no time (%)": waits,
        "a trial of 0.2 s with two checkpoints, two at a time (ms)": trial_ms,
        "a checkpoint of 1 GiB (s)": written_s,
    }
    kind = subprocess.run(["df", "--output=fstype", tempfile.gettempdir()], capture_output=True, text=True).stdout
    print(f"The waits for the disk: {kind.split()[-1]} in {tempfile.gettempdir()}\n")
    cells = []
    for name, figure in rows.items():
        turns = measure.in_turn(list(sides), repeats, lambda side, _, figure=figure: figure(sides[side]))
        cells.append([name, *(measure.spread(turns[side]) for side in sides)])
    measure.show(["what", *(f"{side} them" for side in sides)], cells)
    print(f"\nThe driver of the first row had {measure.spread(paces)} reports a second.")


def noted(handle: int) -> None:
    """Takes the place of a sync that is left out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[100, 1_000, 10_000], help="trials of a search")
    parser.add_argument("--num-reports", type=int, default=100, help="of a trial, for their cost; 0 = leave it out")
    parser.add_argument("--syncs", action="store_true", help="measure what the waits for the disk cost")
    parser.add_argument("--repeats", type=int, default=3, help="of --syncs (default: 3)")
    parser.add_argument("--search", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search:
        search(int(args.search[0]), Path(args.search[1]), args.search[2])
        return
    if args.syncs:
        print(measure.machine())
        price(args.repeats)
        return
    if not all(size > WARM_UP for size in args.sizes):
        parser.error(f"--sizes: must be above {WARM_UP}, as the first {WARM_UP} trials do not count")
    rows = []
    for size in args.sizes:
        used, after, journal_mib = measured(size, "asha")
        cells = [used[name] * 1_000 / (size - WARM_UP) for name in ("seconds", "cpu_s", "mib")]
        cells.append(journal_mib * 1_000 / size)
        once = [f"{after['cpu_s']:.1f}", f"{after['peak_mib']:.0f}"]
        rows.append([f"{size:,}", *(f"{cell:.1f}" for cell in cells), *once])
    if rows:
        print(f"Trials that return at once, {NUM_CPUS} at a time, asha: per 1,000 trials, and once for the search.\n")
        header = ["trials", "seconds", "CPU (s)", "memory (MiB)", "journal (MiB)", "after (s)", "peak (MiB)"]
        measure.show(header, rows)
    if args.num_reports:
        num_samples = 10 * NUM_CPUS
        used, *_ = measured(num_samples, "fifo", NUM_REPORTS=str(args.num_reports))
        total = (num_samples - WARM_UP) * args.num_reports
        cpu_ms = used["cpu_s"] * 1e3 / total
        print("\nReports; nodes of eight trials with a report a second each, by one core of a driver:\n")
        cells = [
            f"{total:,}",
            f"{total / used['seconds']:,.0f}",
            f"{cpu_ms:.2f}",
            f"{1e3 / cpu_ms / TRIALS_A_NODE:.0f}",
        ]
        measure.show(["reports", "a second here", "driver's CPU (ms)", "nodes"], [cells])


if __name__ == "__main__":
    main()
