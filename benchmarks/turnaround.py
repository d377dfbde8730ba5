"""What a trial costs beside its training: trials that only report ten times, 500 of them.

`tuner`, with its journal and console table on and W&B off, then with W&B offline, against Ray Tune alone with
everything off that can be off. Seconds a trial are taken from the first trial's start to the last one's end,
on every side; the whole process is given beside them. Sides take turns in one run. A second table has trials
of 0.2 s each, to see whether W&B's files slow trials of that length down.

`--pauses FOLDER` reads instead what pauses and continuations of trials cost in a recorded search that ran one trial at
a time. A pause costs the time from its decision to the start of the next trial in the same worker process. A
continuation costs the time from the trial's start to its next report, less the report's `train_s` and `validate_s`.

    python -m tuner.run --space cifar --scheduler asha-promotion --max-concurrent-trials 1 --name c
    python -m benchmarks.turnaround --pauses results/c
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import measure
from tuner.core.events import Decision, ExperimentResumed, Report, TrialEnded, TrialFailed, TrialStarted
from tuner.errors import RequestError
from tuner.record.reading import read

SIDES = ("ray", "tuner", "tuner, W&B offline")


def command(side: str, num_samples: int, num_cpus: int, results: Path) -> list[str]:
    sizes = ["--results", str(results), "--num-samples", str(num_samples)]
    if side == "ray":
        return [*measure.PYTHON, "-m", "benchmarks.peers.instant_ray", *sizes, "--num-cpus", str(num_cpus)]
    words = ["--space", "benchmarks/peers/instant.py", "--name", "instant", "--max-concurrent-trials", str(num_cpus)]
    words += ["--searcher", "random", "--scheduler", "fifo", "--wandb", "offline" if "offline" in side else "disabled"]
    return [*measure.README_PYTHON, "-m", "tuner.run", *sizes, *words]


def trials_s(side: str, num_samples: int, results: Path) -> float:
    """Seconds from the first trial's start to the last one's end."""
    if side == "ray":
        return float(json.loads((results / "spans.json").read_text())["trials_s"])
    events = read(results / "instant" / "journal.jsonl")
    started = [event.time for event in events if isinstance(event, TrialStarted)]
    ended = [event.time for event in events if isinstance(event, TrialEnded)]
    num_reports = sum(isinstance(event, Report) for event in events)
    assert len(ended) == num_samples and num_reports == 10 * num_samples, (len(ended), num_reports)
    return max(ended) - min(started)


def compare(num_samples: int, num_cpus: int, trial_s: float, repeats: int) -> None:
    """Prints the table of trials of one length."""

    def timed(side: str, name: str) -> tuple[float, float]:
        results = Path(folder) / name
        results.mkdir()
        words = command(side, num_samples, num_cpus, results)
        process_s = measure.run(words, results / "log", {"TRIAL_S": str(trial_s)}).seconds
        return trials_s(side, num_samples, results), process_s

    with tempfile.TemporaryDirectory() as folder:
        turns = measure.in_turn(SIDES, repeats, timed)
    medians = {side: [statistics.median(each) for each in zip(*turn, strict=True)] for side, turn in turns.items()}
    rows = [
        [side, f"{span / num_samples:.4f}", f"{span / medians['ray'][0]:.2f}", f"{process_s:.1f}"]
        for side, (span, process_s) in medians.items()
    ]
    print(f"\n{num_samples} trials of {trial_s:g} s, {num_cpus} at a time, median of {repeats}:\n")
    measure.show(["side", "s / trial", "x ray", "whole process (s)"], rows)


def pauses(folder: Path) -> dict[str, list[float]]:
    """Returns the seconds of each pause and of each continuation in a worker process that has trained before."""
    seconds: dict[str, list[float]] = {"pause": [], "continuation": []}
    reported: set[str] = set()
    started: dict[str, float] = {}  # trial that continues -> when it started
    paused, worker = 0.0, None
    for event in read(folder / "journal.jsonl"):
        if isinstance(event, ExperimentResumed | TrialFailed):
            paused, worker = 0.0, None
        elif isinstance(event, TrialStarted):
            is_warm, worker = event.pid == worker, event.pid
            if is_warm and paused:
                seconds["pause"].append(event.time - paused)
            if is_warm and event.trial in reported:
                started[event.trial] = event.time
            paused = 0.0
        elif isinstance(event, Report):
            reported.add(event.trial)
            if event.trial in started:
                if "train_s" not in event.metrics:
                    raise RequestError(f"{folder}: its reports have no train_s; search a Space(task=...)")
                epoch_s = event.metrics["train_s"] + event.metrics["validate_s"]
                seconds["continuation"].append(event.time - started.pop(event.trial) - epoch_s)
        elif isinstance(event, Decision) and event.action == "pause":
            paused = event.time
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-samples", type=int, default=500, help="trials that return at once")
    parser.add_argument("--num-slow", type=int, default=100, help="trials that take 0.2 s")
    parser.add_argument("--num-cpus", type=int, default=2, help="trials at a time")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pauses", type=Path, metavar="FOLDER", help="an experiment's folder; searches nothing")
    args = parser.parse_args()
    if args.pauses:
        try:
            costs = pauses(args.pauses)
        except RequestError as error:
            sys.exit(str(error))
        measure.show(
            ["what", "number", "ms"],
            [[name, str(len(each)), measure.spread([1000 * s for s in each], 0)] for name, each in costs.items()],
        )
        return
    compare(args.num_samples, args.num_cpus, 0.0, args.repeats)
    compare(args.num_slow, args.num_cpus, 0.2, args.repeats)


if __name__ == "__main__":
    main()
