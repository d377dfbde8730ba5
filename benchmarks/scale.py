"""What the driver costs as a search grows: 100, 1,000 and 10,000 trials that do nothing but report, at most ten times.

Each size is a process of its own with 16 simulated CPUs, so that 16 trials run at a time whatever the machine has.
Given are seconds, the driver's own CPU seconds and what its resident memory grew by, from the 21st trial's start (all
workers run by then) to the last one's end, per 1,000 trials: flat figures mean that a trial costs the same in a large
search as in a small one. What the driver does once after the last trial (Ray's snapshot, the answer, the report) and
its peak of memory are given as they are.

More tables: the cost of judging one report (decision, journal, searcher) by how many trials a rung has seen; what a
report costs the driver in all, and how many nodes of eight trials with a report a second each that serves; trials of
one second with one report each, as in Ray's own benchmark of its bookkeeping.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.peers import measure

NUM_CPUS = 16
WARM_UP = 20  # trials that are not counted: the driver starts a worker for each of the first
TRIALS_A_NODE = 8
# https://docs.ray.io/en/latest/tune/tutorials/tune-scalability.html, on a machine with 16 CPUs
RAYS = ["Ray Tune, as published", "10,000", "625.0", "715.3", "1.14"]


def search(num_samples: int, results: Path, scheduler: str) -> None:
    """One search in this process; its figures go to `results`/figures.json."""
    import ray

    from tuner import run
    from tuner.engine.controller import changes as engine
    from tuner.tuning import assembly, session

    marks: dict[str, dict[str, float]] = {}
    journaled, checkpoint, num_started = assembly.JournalCallback.on_trial_start, engine.Controller.checkpoint, 0

    def started(self: Any, *args: Any, **info: Any) -> None:
        nonlocal num_started
        journaled(self, *args, **info)
        num_started += 1
        if num_started in (1, WARM_UP + 1):
            marks["first" if num_started == 1 else "warm"] = now()

    def forced(self: Any, force: bool = False, wait: bool = False) -> None:
        if force:  # once, when the last trial has ended
            marks["ended"] = now()
        checkpoint(self, force=force, wait=wait)

    assembly.JournalCallback.on_trial_start = started  # type: ignore[method-assign]
    engine.Controller.checkpoint = forced  # type: ignore[method-assign]
    session.local_cluster = lambda: {"CPU": float(NUM_CPUS), "GPU": 0.0}  # the search is held to what is there
    ray.init("local", num_cpus=NUM_CPUS, include_dashboard=False, log_to_driver=False)
    words = ["--space", "benchmarks/peers/instant.py", "--name", "scale", "--results", str(results)]
    words += ["--num-samples", str(num_samples), "--searcher", "random", "--scheduler", scheduler]
    words += ["--wandb", "disabled"]
    code = run.main(words)
    marks["done"] = now()
    ray.shutdown()
    assert code == 0, code
    (results / "figures.json").write_text(json.dumps(marks))


def now() -> dict[str, float]:
    """What this process has used so far."""
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return {"seconds": time.perf_counter(), "cpu_s": cpu_s(), "mib": resident_mib(), "peak_mib": peak_mib}


def measured(num_samples: int, scheduler: str = "asha", **options: str) -> dict[str, dict[str, float]]:
    """The marks of a search in a process of its own, and the size of its journal."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        words = ["--search", str(num_samples), folder, scheduler]
        measure.run([*measure.README_PYTHON, "-m", "benchmarks.scale", *words], results / "log", options)
        marks: dict[str, dict[str, float]] = json.loads((results / "figures.json").read_text())
        return {**marks, "journal": {"mib": (results / "scale" / "journal.jsonl").stat().st_size / 2**20}}


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def resident_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def judged_s(num_trials: int, num_reports: int) -> float:
    """Seconds for one report with `num_trials` at the rung already, a mean over `num_reports`."""
    from ray import tune

    from tuner.engine.controller.halt import Halt
    from tuner.record.journal import Journal, Ledger
    from tuner.space import Space
    from tuner.spec.experiment import Experiment
    from tuner.tuning.scheduling.decisions import JournalingScheduler
    from tuner.tuning.scheduling.schedulers import build_scheduler

    space = Space(params={"x": tune.uniform(0, 1)}, train=print)
    experiment = Experiment(max_epochs=100)
    controller = SimpleNamespace(get_live_trials=lambda: ())
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal.jsonl")
        judge = JournalingScheduler(build_scheduler(experiment, space), experiment, Ledger(journal), Halt(), ())
        spent = 0.0
        for number in range(num_trials + num_reports):
            trial = SimpleNamespace(
                trial_id=f"{number:05d}", config={}, checkpoint=None, last_result={}, is_finished=lambda: False
            )
            judge.on_trial_add(controller, trial)
            begin = time.perf_counter()
            judge.on_trial_result(controller, trial, {"training_iteration": 1, "loss": 1 / (1 + number)})
            spent += time.perf_counter() - begin if number >= num_trials else 0.0
        journal.close()
    return spent / num_reports


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[100, 1_000, 10_000], help="trials of a search")
    parser.add_argument("--num-seconds", type=int, default=1_600, help="trials of one second, 0 = leave them out")
    parser.add_argument("--num-reports", type=int, default=100, help="of a trial, for their cost; 0 = leave it out")
    parser.add_argument("--search", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not all(size > WARM_UP for size in (*args.sizes, args.num_seconds or WARM_UP + 1)):
        parser.error(f"--sizes and --num-seconds: must be above {WARM_UP}, as the first {WARM_UP} trials do not count")
    if args.search:
        search(int(args.search[0]), Path(args.search[1]), args.search[2])
        return
    if args.sizes:
        grown(args.sizes)
    if args.num_reports:
        reporting(args.num_reports)
    if args.num_seconds:
        unhurried(args.num_seconds)


def grown(sizes: list[int]) -> None:
    """The tables of searches of these sizes."""
    rows = []
    for size in sizes:
        marks = measured(size)
        per = 1_000 / (size - WARM_UP)
        used = {name: (marks["ended"][name] - marks["warm"][name]) * per for name in ("seconds", "cpu_s", "mib")}
        after_s, peak = marks["done"]["cpu_s"] - marks["ended"]["cpu_s"], marks["done"]["peak_mib"]
        cells = [*used.values(), marks["journal"]["mib"] * 1_000 / size]
        rows.append([f"{size:,}", *(f"{cell:.1f}" for cell in cells), f"{after_s:.1f}", f"{peak:.0f}"])
    print(
        f"\nTrials that return at once, {NUM_CPUS} at a time, asha. Per 1,000 trials: seconds, the driver's CPU seconds"
    )
    print("and memory, the journal. Once: CPU seconds after the last trial, peak of memory.\n")
    header = ["trials", "seconds", "CPU (s)", "memory (MiB)", "journal (MiB)", "after (s)", "peak (MiB)"]
    measure.show(header, rows)
    judged = {size: judged_s(size, 2_000) for size in sizes}
    print("\nOne report, judged and journaled:\n")
    measure.show(["trials at the rung", "ms"], [[f"{size:,}", f"{s * 1e3:.2f}"] for size, s in judged.items()])


def reporting(num_reports: int) -> None:
    """The table of what a report costs the driver in all."""
    num_samples = 10 * NUM_CPUS
    marks = measured(num_samples, "fifo", NUM_REPORTS=str(num_reports))
    total = (num_samples - WARM_UP) * num_reports
    cpu_ms = (marks["ended"]["cpu_s"] - marks["warm"]["cpu_s"]) * 1e3 / total
    rate = total / (marks["ended"]["seconds"] - marks["warm"]["seconds"])
    print("\nReports; nodes of eight trials with a report a second each, by one core of a driver:\n")
    cells = [f"{total:,}", f"{rate:,.0f}", f"{cpu_ms:.2f}", f"{1e3 / cpu_ms / TRIALS_A_NODE:.0f}"]
    measure.show(["reports", "a second here", "driver's CPU (ms)", "nodes"], [cells])


def unhurried(num_samples: int) -> None:
    """The table of trials of one second."""
    marks = measured(num_samples, TRIAL_S="1", NUM_REPORTS="1")
    took, ideal = marks["ended"]["seconds"] - marks["warm"]["seconds"], (num_samples - WARM_UP) / NUM_CPUS
    print(f"\nTrials of one second with one report, {NUM_CPUS} at a time:\n")
    ours = ["tuner, with journal and table", f"{num_samples:,}", f"{ideal:.1f}", f"{took:.1f}", f"{took / ideal:.2f}"]
    measure.show(["", "trials", "ideal (s)", "seconds", "ratio"], [ours, RAYS])


if __name__ == "__main__":
    main()
