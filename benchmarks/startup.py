"""How long until the command line answers, and until a search has its first figure.

`python -m tuner.run --help` beside what it must not import (`import ray.tune, torch`), and a cold search over
`cifar`: from the process's start to its first trial's start and to its first report, after one epoch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import measure
from tuner import journal

SEARCH = "-m tuner.run --space cifar --num-samples 1 --max-epochs 1 --scheduler fifo --wandb disabled"


def process_s(command: Sequence[str], log: Path) -> float:
    return measure.run(command, log).seconds


def search_s(folder: Path, data_dir: str) -> tuple[float, float]:
    """Seconds from the process's start to the first `trial_started` and to the first `report`."""
    folder.mkdir()
    options = ["--results", str(folder), "--name", "cold", *(["--data-dir", data_dir] if data_dir else [])]
    started = measure.run([*SEARCH.split(), *options], folder / "log").started
    first: dict[str, float] = {}
    for event in journal.read(folder / "cold" / "journal.jsonl"):
        first.setdefault(event["event"], event["time"] - started)
    return first["trial_started"], first["report"]


def row(what: str, seconds: Sequence[float]) -> list[str]:
    spread = f"{min(seconds):.2f}-{max(seconds):.2f}"
    return [what, f"{statistics.median(seconds):.2f}", spread, str(len(seconds))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=10, help="of the processes that only start")
    parser.add_argument("--searches", type=int, default=3, help="cold searches")
    parser.add_argument("--data-dir", default="", help="CIFAR-10, so that no download is waited for")
    args = parser.parse_args()

    imports, help_ = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(args.repeats):
            help_.append(process_s(["-m", "tuner.run", "--help"], folder / "log"))
            imports.append(process_s(["-c", "import ray.tune, torch"], folder / "log"))
        spans = [search_s(folder / str(i), args.data_dir) for i in range(args.searches)]
    trial_started, report = zip(*spans, strict=True)
    rows = [
        row("`tuner.run --help`", help_),
        row("`import ray.tune, torch`", imports),
        row("search: to the first trial", trial_started),
        row("search: to the first report", report),
    ]
    measure.show(["what", "seconds (median)", "range", "runs"], rows)
    print(f"\nimports / help: {statistics.median(imports) / statistics.median(help_):.1f}")


if __name__ == "__main__":
    main()
