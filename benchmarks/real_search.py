"""The default beside Ray's ASHA and Optuna in real searches, to check `search_quality` against training.

All sides train the same network on the same images (`peers/small_images.py`), two trials at a time, one core and one
torch thread each:

* `tuner`: `tuner.run` with its default searcher and scheduler, and 60 trials;
* `ray`: Ray Tune's ASHA with random settings;
* `optuna`: Optuna's TPE with its pruner of successive halving, in two processes.

The peers have their default options, and as many trials as the time of tuner's search allows. The best validation
losses are compared at half of this time and at its end. Time starts with each command.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from scipy import stats

from benchmarks.peers import measure, small_images, workload

SIDES = ("tuner", "ray", "optuna")
LEVEL = 0.95


class Search(NamedTuple):
    """A finished search: its length, and each epoch's loss by seconds since the command."""

    seconds: float
    reports: list[tuple[float, float]]

    def best_after(self, seconds: float) -> float:
        """Returns the best loss up to this time; infinite without any."""
        return min((loss for when, loss in self.reports if when <= seconds and math.isfinite(loss)), default=math.inf)


def search(side: str, folder: Path, seed: int, num_samples: int, seconds: float) -> Search:
    """Runs a search of one side; a peer's search ends after `seconds`."""
    results = folder / f"{side}-{seed}"
    results.mkdir()
    command: list[str | Path] = [*measure.PYTHON, "-m", "benchmarks.peers.small_images", side]
    words = f"--seconds {seconds}"
    if side == "tuner":
        command = [*measure.README_PYTHON, "-m", "tuner.run", "--space", "benchmarks/peers/small_space.py"]
        at_once = f"--max-concurrent-trials {small_images.NUM_CONCURRENT} --cpus-per-trial 1"
        words = f"--num-samples {num_samples} {at_once} --name search"
    command += [*words.split(), "--seed", str(seed), "--results", results]
    reports = results / "reports.jsonl"
    reports.touch()
    environment = {workload.VARIABLE: str(folder), small_images.REPORTS: str(reports)}
    run = measure.run(command, results / "log", environment)
    lines = map(json.loads, reports.read_text().splitlines())
    return Search(run.seconds, [(when - run.started, loss) for when, loss in lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--num-samples", type=int, default=60)
    parser.add_argument("--num-images", type=int, default=3000, help="a fifth of them is the validation part")
    args = parser.parse_args()
    print(measure.machine())
    losses: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload.save_images(folder, args.num_images)
        rows = []
        for seed in args.seeds:
            seconds = math.inf
            for side in SIDES:
                run = search(side, folder, seed, args.num_samples, seconds)
                seconds = run.seconds if side == SIDES[0] else seconds
                at = {"half": run.best_after(seconds / 2), "end": run.best_after(seconds)}
                for when, loss in at.items():
                    losses.setdefault((side, when), []).append(loss)
                cells = [f"{loss:.4f}" for loss in at.values()]
                rows.append([f"{seed}, {side}", f"{run.seconds:.1f}", str(len(run.reports)), *cells])
                print(*rows[-1], sep="\t", flush=True)
    print()
    measure.show(["seed, side", "seconds", "epochs", "loss at half time", "loss at the end"], rows)
    print()
    measure.show(["tuner's loss minus", "at half time", "at the end"], [_row(losses, side) for side in SIDES[1:]])


def _row(losses: dict[tuple[str, str], list[float]], side: str) -> list[str]:
    """Returns the mean difference at both times, with its 95 % interval by Student's t over the seeds."""
    cells = [side]
    for when in ("half", "end"):
        pairs = zip(losses[SIDES[0], when], losses[side, when], strict=True)
        differences = [own - other for own, other in pairs]
        if len(differences) < 2 or not all(map(math.isfinite, differences)):
            cells.append("needs two seeds or more, and a loss of each")
            continue
        low, high = stats.ttest_1samp(differences, 0).confidence_interval(LEVEL)
        cells.append(f"{statistics.fmean(differences):+.4f} ({low:+.4f} to {high:+.4f})")
    return cells


if __name__ == "__main__":
    main()
