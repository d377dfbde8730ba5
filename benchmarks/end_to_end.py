"""A whole search from process start to the answer: the service beside the scripts that users have now.

Every side trains the same 16 settings of the PyTorch tutorial's space on the same 4,000 + 1,000 images of
CIFAR-10, two trials at a time, one core and one torch thread each:

* `tuner`: this service, its journal, console table and offline W&B on;
* `ray`: the tutorial's way as a plain Ray Tune script; `ray --reuse`: the same with `reuse_actors=True`;
* `optuna`: two processes on one journal file, the tutorial's training;
* `syne_tune`: Syne Tune's local backend with two workers, the tutorial's training.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import measure, workload
from benchmarks.peers.workload import Workload

Losses = Iterator[float]


@dataclass(frozen=True)
class Side:
    """How one side is started, given the workload and its results folder, and how its losses are read."""

    command: Callable[[Workload, Path], list[str]]
    losses: Callable[[Path], Losses]


def tuner_command(work: Workload, results: Path) -> list[str]:
    options = {
        "--searcher": "random",
        "--scheduler": "asha" if work.asha else "fifo",
        "--grace-period": "1",
        "--reduction-factor": "2",
        "--space": "benchmarks/peers/cifar_fixed.py",
        # One sample of a grid that holds every setting.
        "--num-samples": "1",
        "--max-epochs": str(work.max_epochs),
        "--max-concurrent-trials": str(work.num_concurrent),
        "--cpus-per-trial": "1",
        "--wandb": "offline",
        "--results": str(results),
        "--name": "search",
    }
    return [*measure.README_PYTHON, "-m", "tuner.run", *(word for option in options.items() for word in option)]


def peer(program: str, *options: str) -> Callable[[Workload, Path], list[str]]:
    return lambda work, results: [
        *measure.PYTHON,
        "-m",
        f"benchmarks.peers.{program}",
        *options,
        "--results",
        str(results),
    ]


def tuner_losses(results: Path) -> Losses:
    from tuner.record.reading import read

    for event in read(results / "search" / "journal.jsonl"):
        if event["event"] == "report":
            yield event["metrics"]["loss"]


def ray_losses(results: Path) -> Losses:
    for path in results.glob("search/*/result.json"):
        for line in path.read_text().splitlines():
            yield json.loads(line)["loss"]


def optuna_losses(results: Path) -> Losses:
    from optuna import load_study
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(results / "journal.log")))
    for trial in load_study(study_name="search", storage=storage).trials:
        yield from trial.intermediate_values.values()


def syne_tune_losses(results: Path) -> Losses:
    import pandas

    yield from pandas.read_csv(results / "search" / "results.csv.zip")["loss"]


SIDES = {
    "tuner": Side(tuner_command, tuner_losses),
    "ray": Side(peer("ray_script"), ray_losses),
    "ray --reuse": Side(peer("ray_script", "--reuse"), ray_losses),
    "optuna": Side(peer("optuna_two"), optuna_losses),
    "syne_tune": Side(peer("syne_tune_local"), syne_tune_losses),
}


@dataclass(frozen=True)
class Search:
    """One finished search of one side."""

    seconds: float
    num_epochs: int
    best_loss: float


def draw_settings(num_settings: int, seed: int = 0) -> list[dict[str, Any]]:
    """Settings of the tutorial's space; batch sizes go round, since they decide how long an epoch takes."""
    rng = np.random.default_rng(seed)
    return [
        {
            "l1": 2 ** int(rng.integers(2, 9)),
            "l2": 2 ** int(rng.integers(2, 9)),
            "lr": float(10 ** rng.uniform(-4, -1)),
            "batch_size": (2, 4, 8, 16)[i % 4],
        }
        for i in range(num_settings)
    ]


def search(side: Side, work: Workload, folder: Path, results: Path) -> Search:
    results.mkdir(parents=True)
    run = measure.run(side.command(work, results), results / "log", {workload.VARIABLE: str(folder)})
    losses = list(side.losses(results))
    return Search(run.seconds, len(losses), min(filter(math.isfinite, losses), default=math.nan))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--asha", action="store_true", help="stop trials early, 10 epochs at most")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--num-settings", type=int, default=16)
    parser.add_argument("--max-epochs", type=int, help="default: 4, with --asha 10")
    parser.add_argument("--num-images", type=int, default=5000, help="a fifth of them is the validation part")
    parser.add_argument("--num-workers", type=int, default=2, help="processes of each loader of the peers")
    return parser.parse_args()


def main() -> None:
    from search_spaces.datasets.cifar10_files import load_sample

    args = parse()
    work = Workload(
        settings=draw_settings(args.num_settings),
        max_epochs=args.max_epochs or (10 if args.asha else 4),
        asha=args.asha,
        num_workers=args.num_workers,
    )
    searches: dict[str, list[Search]] = {name: [] for name in args.sides}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work.save(folder)
        images = load_sample("a benchmark needs no more").train
        workload.save_images(folder, images.inputs, images.targets, args.num_images)
        for repeat in range(args.repeats):
            for side, runs in searches.items():
                runs.append(search(SIDES[side], work, folder, folder / f"{side}-{repeat}"))
                print(f"# round {repeat + 1}, {side}: {runs[-1]}", flush=True)
    report(searches)


def report(searches: dict[str, list[Search]]) -> None:
    medians = {side: statistics.median(s.seconds for s in runs) for side, runs in searches.items()}
    scale = medians.get("tuner", math.nan)
    rows = [
        [
            side,
            f"{medians[side]:.1f}",
            f"{min(s.seconds for s in runs):.1f}-{max(s.seconds for s in runs):.1f}",
            "/".join(sorted({str(s.num_epochs) for s in runs})),
            f"{min(s.best_loss for s in runs):.3f}",
            f"{medians[side] / scale:.2f}",
        ]
        for side, runs in searches.items()
    ]
    header = ["side", "seconds (median)", "range", "epochs trained", "best validation loss", "x tuner"]
    measure.show(header, rows)


if __name__ == "__main__":
    main()
