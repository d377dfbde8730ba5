"""A whole search from process start to the answer: the service beside the scripts that users have now.

Every side trains the same 16 settings of the PyTorch tutorial's space on the same 4,000 + 1,000 images of
CIFAR-10, two trials at a time, one core and one torch thread each:

* `tuner`: this service, its journal, console table and offline W&B on;
* `ray`: the tutorial's way as a plain Ray Tune script;
* `optuna`: two processes on one journal file, the tutorial's training.

Epochs and losses are counted in the records that each side wrote itself, after its time was taken. Sides take
turns, `--repeats` rounds. With `--asha` every side stops trials by its own ASHA, so epochs are to be compared
too.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import measure, workload
from benchmarks.peers.workload import Workload

Reports = list[tuple[float, float]]  # unix seconds (NaN where a side writes none) and loss


@dataclass(frozen=True)
class Side:
    """How one side is started, given the workload and its results folder, and how its reports are read."""

    command: Callable[[Workload, Path], list[str]]
    reports: Callable[[Path], Reports]


@dataclass(frozen=True)
class Search:
    """One finished search of one side: its length, and the loss of each report by seconds since the command."""

    seconds: float
    reports: Reports

    def best_of(self, num_epochs: int) -> float:
        """Returns the best loss of the first reports; infinite without any."""
        return min((loss for _, loss in self.reports[:num_epochs] if math.isfinite(loss)), default=math.inf)


def tuner_command(work: Workload, results: Path, *options: str) -> list[str]:
    words = ["--max-epochs", work.max_epochs, "--max-concurrent-trials", work.num_concurrent, "--cpus-per-trial", 1]
    words += ["--results", results, "--name", "search"]
    return [*measure.README_PYTHON, "-m", "tuner.run", *options, *map(str, words)]


def fixed_command(work: Workload, results: Path) -> list[str]:
    options = ["--space", "benchmarks/peers/cifar_fixed.py", "--num-samples", "1"]  # a grid has every setting
    options += ["--searcher", "random", "--scheduler", "asha" if work.asha else "fifo"]
    options += ["--grace-period", "1", "--reduction-factor", "2", "--wandb", "offline"]
    return tuner_command(work, results, *options)


def peer(program: str) -> Callable[[Workload, Path], list[str]]:
    return lambda work, results: [*measure.PYTHON, "-m", f"benchmarks.peers.{program}", "--results", str(results)]


def tuner_reports(results: Path) -> Reports:
    from tuner.core.events import Report
    from tuner.record.reading import read

    events = read(results / "search" / "journal.jsonl")
    return [(event.time, event.metrics["loss"]) for event in events if isinstance(event, Report)]


def ray_reports(results: Path) -> Reports:
    lines = [line for path in results.glob("search/*/result.json") for line in path.read_text().splitlines()]
    return [(float(line["timestamp"]), line["loss"]) for line in map(json.loads, lines)]


def optuna_reports(results: Path) -> Reports:
    from benchmarks.peers.optuna_two import open_study

    trials = open_study(results, asha=False).trials
    return [(math.nan, loss) for trial in trials for loss in trial.intermediate_values.values()]


SIDES = {
    "tuner": Side(fixed_command, tuner_reports),
    "ray": Side(peer("ray_script"), ray_reports),
    "optuna": Side(peer("optuna_two"), optuna_reports),
}


def draw_settings(num_settings: int) -> list[dict[str, Any]]:
    """Settings of the tutorial's space; batch sizes go round, since they decide how long an epoch takes."""
    rng = np.random.default_rng(0)
    return [
        {
            "l1": 2 ** int(rng.integers(2, 9)),
            "l2": 2 ** int(rng.integers(2, 9)),
            "lr": float(10 ** rng.uniform(-4, -1)),
            "batch_size": (2, 4, 8, 16)[i % 4],
        }
        for i in range(num_settings)
    ]


def search(side: Side, work: Workload, folder: Path, name: str) -> Search:
    """Runs a search of one side in a folder of this name, beside the workload's images."""
    work.save(folder)
    results = folder / name
    results.mkdir()
    run = measure.run(side.command(work, results), results / "log", {workload.VARIABLE: str(folder)})
    return Search(run.seconds, sorted((when - run.started, loss) for when, loss in side.reports(results)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--asha", action="store_true", help="stop trials early, 10 epochs at most")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--num-settings", type=int, default=16)
    parser.add_argument("--max-epochs", type=int, help="default: 4, with --asha 10")
    parser.add_argument("--num-images", type=int, default=5000, help="a fifth of them is the validation part")
    parser.add_argument("--num-workers", type=int, default=2, help="processes of each loader of the peers")
    args = parser.parse_args()
    max_epochs = args.max_epochs or (10 if args.asha else 4)
    work = Workload(draw_settings(args.num_settings), max_epochs, args.asha, args.num_workers)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload.save_images(folder, args.num_images)
        searches = measure.in_turn(args.sides, args.repeats, lambda side, at: search(SIDES[side], work, folder, at))
    medians = {side: statistics.median(each.seconds for each in runs) for side, runs in searches.items()}
    rows = []
    for side, runs in searches.items():
        epochs = "/".join(sorted({str(len(each.reports)) for each in runs}))
        best = min(each.best_of(len(each.reports)) for each in runs)
        ratio = medians[side] / medians.get("tuner", math.nan)
        rows.append([side, measure.spread([each.seconds for each in runs]), epochs, f"{best:.3f}", f"{ratio:.2f}"])
    measure.show(["side", "seconds", "epochs trained", "best validation loss", "x tuner"], rows)


if __name__ == "__main__":
    main()
