"""The default searcher and scheduler beside Ray's ASHA in real searches, to check `search_quality` against training.

Each side trains 40 settings of the PyTorch tutorial's space on the images of `end_to_end`, 10 epochs at most, two
trials at a time, one core and one torch thread each:

* `auto`: `tuner.run` with its default searcher and scheduler;
* `random+asha`: `tuner.run` with random settings and ASHA, reduction factor 2;
* `ray`: a plain Ray Tune script with random settings and ASHA, reduction factor 2 (`peers/ray_script.py`).

The first two share a training loop, so they differ only in which settings are trained, and for how long. Losses are
compared at equal wall time, from the start of the command, and at equal numbers of epochs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.end_to_end import draw_settings, peer
from benchmarks.peers import measure, workload
from benchmarks.peers.workload import Workload

SHARES = (0.25, 0.5, 1.0)  # of the first side's time, and of its epochs
MAX_EPOCHS = 10


@dataclass(frozen=True)
class Search:
    """One finished search: its length, and each report's time since the command's start, with its loss, by time."""

    seconds: float
    reports: list[tuple[float, float]]

    @property
    def num_epochs(self) -> int:
        return len(self.reports)

    def best_after(self, seconds: float) -> float:
        """Returns the best loss that was reported up to a time; infinite before the first report."""
        return self.best_of(bisect_right(self.reports, seconds, key=lambda report: report[0]))

    def best_of(self, num_epochs: int) -> float:
        """Returns the best loss of the first epochs."""
        return min((loss for _, loss in self.reports[:num_epochs] if loss == loss), default=float("inf"))


def tuner_command(seed: int, results: Path, num_samples: int, *options: str) -> list[str]:
    words = [*measure.README_PYTHON, "-m", "tuner.run", "--space", "benchmarks/peers/cifar_images.py"]
    words += ["--num-samples", str(num_samples), "--max-epochs", str(MAX_EPOCHS), "--seed", str(seed), *options]
    words += ["--max-concurrent-trials", "2", "--cpus-per-trial", "1", "--results", str(results), "--name", "search"]
    return words


def tuner_reports(results: Path) -> list[tuple[float, float]]:
    from tuner.record.reading import read

    events = read(results / "search" / "journal.jsonl")
    return [(event["time"], event["metrics"]["loss"]) for event in events if event["event"] == "report"]


def ray_reports(results: Path) -> list[tuple[float, float]]:
    lines = [line for path in results.glob("search/*/result.json") for line in path.read_text().splitlines()]
    return [(float(line["timestamp"]), line["loss"]) for line in map(json.loads, lines)]


Command = Callable[[int, Path, int], list[str]]
SIDES: dict[str, tuple[Command, Callable[[Path], list[tuple[float, float]]]]] = {
    "auto": (tuner_command, tuner_reports),
    "random+asha": (
        lambda seed, results, num: tuner_command(seed, results, num, "--searcher", "random", "--scheduler", "asha"),
        tuner_reports,
    ),
    "ray": (lambda seed, results, num: peer("ray_script")(_work(seed, num), results), ray_reports),
}


def _work(seed: int, num_samples: int) -> Workload:
    settings = draw_settings(num_samples, seed)
    return Workload(settings=settings, max_epochs=MAX_EPOCHS, asha=True, num_workers=0)


def search(side: str, seed: int, num_samples: int, folder: Path) -> Search:
    command, reports = SIDES[side]
    _work(seed, num_samples).save(folder)
    results = folder / f"{side}-{seed}"
    results.mkdir()
    run = measure.run(command(seed, results, num_samples), results / "log", {workload.VARIABLE: str(folder)})
    return Search(run.seconds, sorted((when - run.started, loss) for when, loss in reports(results)))


def main() -> None:
    from search_spaces.datasets.cifar10_files import load_sample

    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=list(SIDES), help="the first sets times and epochs"
    )
    parser.add_argument("--num-samples", type=int, default=40)
    parser.add_argument("--num-images", type=int, default=5000, help="a fifth of them is the validation part")
    args = parser.parse_args()
    print(measure.machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = load_sample("a benchmark needs no more").train
        workload.save_images(folder, images.inputs, images.targets, args.num_images)
        for seed in args.seeds:
            report(seed, {side: search(side, seed, args.num_samples, folder) for side in args.sides})


def report(seed: int, searches: dict[str, Search]) -> None:
    """Prints how long each side took, and its best loss at equal times and at equal epochs."""
    first = next(iter(searches.values()))
    header = [f"seed {seed}", "seconds", "epochs", *(f"after {share * first.seconds:.0f} s" for share in SHARES)]
    header += [*(f"{share * first.num_epochs:.0f} epochs" for share in SHARES), "at its end"]
    rows = []
    for side, run in searches.items():
        losses = [run.best_after(share * first.seconds) for share in SHARES]
        losses += [run.best_of(int(share * first.num_epochs)) for share in SHARES]
        losses.append(run.best_of(run.num_epochs))
        rows.append([side, f"{run.seconds:.1f}", str(run.num_epochs), *(f"{loss:.3f}" for loss in losses)])
    measure.show(header, rows)


if __name__ == "__main__":
    main()
