"""What a trial costs beside its training: trials that only report ten times, 500 of them.

`tuner`, with its journal and console table on and W&B off, then with W&B offline, against Ray Tune alone with
everything off that can be off. Seconds a trial are taken from the first trial's start to the last one's end,
on every side; the whole process is given beside them. Sides take turns in one run. A second table has trials
of 0.2 s each, to see whether W&B's files slow trials of that length down.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import measure
from tuner.record.reading import read

SIDES = ("ray", "tuner", "tuner, W&B offline")


@dataclass(frozen=True)
class Timing:
    """Seconds from the first trial's start to the last one's end, and of the whole process."""

    trials_s: float
    process_s: float


def command(side: str, num_samples: int, num_cpus: int, results: Path) -> list[str]:
    sizes = ["--results", str(results), "--num-samples", str(num_samples)]
    if side == "ray":
        return ["-m", "benchmarks.peers.instant_ray", *sizes, "--num-cpus", str(num_cpus)]
    wandb = "offline" if "offline" in side else "disabled"
    options = ["--searcher", "random", "--scheduler", "fifo", "--wandb", wandb]
    options += ["--max-concurrent-trials", str(num_cpus)]
    space = ["--space", "benchmarks/peers/instant.py", "--name", "instant"]
    return ["-m", "tuner.run", *space, *sizes, *options]


def trials_s(side: str, num_samples: int, results: Path) -> float:
    if side == "ray":
        return float(json.loads((results / "spans.json").read_text())["trials_s"])
    events = read(results / "instant" / "journal.jsonl")
    started = [event["time"] for event in events if event["event"] == "trial_started"]
    ended = [event["time"] for event in events if event["event"] == "trial_ended"]
    num_reports = sum(event["event"] == "report" for event in events)
    assert len(ended) == num_samples and num_reports == 10 * num_samples, (len(ended), num_reports)
    return max(ended) - min(started)


def time_side(side: str, num_samples: int, num_cpus: int, trial_s: float, results: Path) -> Timing:
    results.mkdir(parents=True)
    words = command(side, num_samples, num_cpus, results)
    python = measure.PYTHON if side == "ray" else measure.README_PYTHON
    run = measure.run([*python, *words], results / "log", {"TRIAL_S": str(trial_s)})
    return Timing(trials_s(side, num_samples, results), run.seconds)


def compare(num_samples: int, num_cpus: int, trial_s: float, repeats: int) -> None:
    timings: dict[str, list[Timing]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for side, timed in timings.items():
                results = Path(folder) / f"{side}-{repeat}"
                timed.append(time_side(side, num_samples, num_cpus, trial_s, results))
    spans = {side: statistics.median(t.trials_s for t in timed) for side, timed in timings.items()}
    rows = [
        [
            side,
            f"{spans[side] / num_samples:.4f}",
            f"{spans[side] / spans['ray']:.2f}",
            f"{statistics.median(t.process_s for t in timed):.1f}",
        ]
        for side, timed in timings.items()
    ]
    print(f"\n{num_samples} trials of {trial_s:g} s, {num_cpus} at a time, median of {repeats}:\n")
    measure.show(["side", "s / trial", "x ray", "whole process (s)"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--num-samples", type=int, default=500, help="trials that return at once")
    parser.add_argument("--num-slow", type=int, default=100, help="trials that take 0.2 s")
    parser.add_argument("--num-cpus", type=int, default=2, help="trials at a time")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    compare(args.num_samples, args.num_cpus, 0.0, args.repeats)
    compare(args.num_slow, args.num_cpus, 0.2, args.repeats)


if __name__ == "__main__":
    main()
