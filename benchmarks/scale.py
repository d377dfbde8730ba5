"""What the driver costs as a search grows: 100, 1,000 and 10,000 trials that do nothing but report ten times.

Each size is a process of its own with 16 simulated CPUs, so that 16 trials run at a time whatever the machine has.
Given are the search's seconds, the driver's own CPU seconds and what its resident memory grew by, all per 1,000
trials: flat figures mean that a trial costs the same in a large search as in a small one. Start-up is left out: time
and memory are taken from the first trial on. A second table has the cost of judging one report (decision, journal,
searcher) by how many trials a rung has seen, and how many nodes of eight trials, a report a second each, that serves.
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
TRIALS_A_NODE = 8


def search(num_samples: int, results: Path) -> None:
    """One search in this process; its figures go to `results`/figures.json."""
    from tuner import driver, run  # the driver first: it sets what ray reads when it is imported

    import ray  # isort: skip
    from ray.tune.execution.tune_controller import TuneController

    begun: dict[str, float] = {}
    journaled = driver.JournalCallback.on_trial_start

    def started(self: Any, *args: Any, **info: Any) -> None:
        if not begun:
            begun.update(at=time.perf_counter(), cpu_s=cpu_s(), mib=resident_mib())
        journaled(self, *args, **info)

    driver.JournalCallback.on_trial_start = started  # type: ignore[method-assign]
    ran = TuneController.cleanup
    figures: dict[str, float] = {}

    def cleanup(self: Any) -> None:
        figures.update(
            seconds=time.perf_counter() - begun["at"],
            cpu_s=cpu_s() - begun["cpu_s"],
            mib=resident_mib() - begun["mib"],
        )
        ran(self)

    TuneController.cleanup = cleanup  # type: ignore[method-assign]
    ray.init("local", num_cpus=NUM_CPUS, include_dashboard=False, log_to_driver=False)
    words = ["--space", "benchmarks/peers/instant.py", "--name", "scale", "--results", str(results)]
    code = run.main([*words, "--num-samples", str(num_samples), "--wandb", "disabled"])
    ray.shutdown()
    assert code == 0, code
    (results / "figures.json").write_text(json.dumps(figures))


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

    from tuner.decisions import JournalingScheduler
    from tuner.experiment import Experiment
    from tuner.halt import Halt
    from tuner.journal import Journal
    from tuner.ledger import Ledger
    from tuner.schedulers import build_scheduler
    from tuner.space import Space

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
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000], help="trials of a search")
    parser.add_argument("--search", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search:
        search(int(args.search[0]), Path(args.search[1]))
        return
    rows = []
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder)
            measure.run(["-m", "benchmarks.scale", "--search", str(size), folder], results / "log")
            found = json.loads((results / "figures.json").read_text())
            journal_mib = (results / "scale" / "journal.jsonl").stat().st_size / 2**20
        per = 1_000 / size
        cells = [found["seconds"] * per, found["cpu_s"] * per, found["mib"] * per, journal_mib * per]
        rows.append([f"{size:,}", *(f"{cell:.1f}" for cell in cells)])
    print(f"\nTrials that report ten times and return, {NUM_CPUS} at a time; per 1,000 trials:\n")
    measure.show(["trials", "seconds", "driver's CPU (s)", "driver's memory (MiB)", "journal (MiB)"], rows)
    judged = {size: judged_s(size, 2_000) for size in args.sizes}
    print("\nOne report, judged and journaled:\n")
    measure.show(
        ["trials at the rung", "ms", "nodes served"],
        [[f"{size:,}", f"{s * 1e3:.2f}", f"{1 / s / TRIALS_A_NODE:,.0f}"] for size, s in judged.items()],
    )


if __name__ == "__main__":
    main()
