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
import tempfile
from bisect import bisect_right
from pathlib import Path

from benchmarks.end_to_end import SIDES as SCRIPTS
from benchmarks.end_to_end import Search, Side, draw_settings, search, tuner_command, tuner_reports
from benchmarks.peers import measure, workload
from benchmarks.peers.workload import Workload

SHARES = (0.25, 0.5, 1.0)  # of the first side's time, and of its epochs
MAX_EPOCHS = 10


def tuner(*options: str) -> Side:
    def command(work: Workload, results: Path) -> list[str]:
        words = ["--space", "benchmarks/peers/cifar_images.py", "--num-samples", str(len(work.settings))]
        return tuner_command(work, results, *words, "--seed", str(work.seed), *options)

    return Side(command, tuner_reports)


SIDES = {"auto": tuner(), "random+asha": tuner("--searcher", "random", "--scheduler", "asha"), "ray": SCRIPTS["ray"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        workload.save_images(folder, args.num_images)
        for seed in args.seeds:
            work = Workload(draw_settings(args.num_samples, seed), MAX_EPOCHS, asha=True, num_workers=0, seed=seed)
            report(seed, {side: search(SIDES[side], work, folder, f"{side}-{seed}") for side in args.sides})


def report(seed: int, searches: dict[str, Search]) -> None:
    """Prints how long each side took, and its best loss at equal times and at equal epochs."""
    first = next(iter(searches.values()))
    times = [share * first.seconds for share in SHARES]
    epochs = [int(share * len(first.reports)) for share in SHARES]
    header = [f"seed {seed}", "seconds", "epochs", *(f"after {seconds:.0f} s" for seconds in times)]
    header += [*(f"{num} epochs" for num in epochs), "at its end"]
    rows = []
    for side, run in searches.items():
        reported = [bisect_right(run.reports, seconds, key=lambda report: report[0]) for seconds in times]
        losses = [run.best_of(num) for num in (*reported, *epochs, len(run.reports))]
        rows.append([side, f"{run.seconds:.1f}", str(len(run.reports)), *(f"{loss:.3f}" for loss in losses)])
    measure.show(header, rows)


if __name__ == "__main__":
    main()
