"""What a pause and a continuation of a trial cost, from the times in the journal of a search: `... FOLDER`.

A pause costs the time from its decision to the start of the next trial in the same worker process. A continuation costs
the time from the trial's start to its next report, less the report's `train_s` and `validate_s`. The search must have
run one trial at a time, for example

    python -m tuner.run --space cifar --scheduler asha-promotion --max-concurrent-trials 1 --name c
    python -m benchmarks.pauses results/c
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from tuner.errors import RequestError
from tuner.record.reading import read


def costs(folder: Path) -> tuple[list[float], list[float]]:
    """Returns the seconds of each pause and of each continuation in a worker process that has trained before."""
    pauses: list[float] = []
    continuations: list[float] = []
    reported: set[str] = set()
    started: dict[str, float] = {}  # trial that continues -> when it started
    paused, worker = 0.0, None
    for event in read(folder / "journal.jsonl"):
        kind, time, trial = event["event"], event["time"], event.get("trial", "")
        if kind in ("experiment_resumed", "trial_failed"):
            paused, worker = 0.0, None
        elif kind == "trial_started":
            is_warm, worker = event["pid"] == worker, event["pid"]
            if is_warm and paused:
                pauses.append(time - paused)
            if is_warm and trial in reported:
                started[trial] = time
            paused = 0.0
        elif kind == "report":
            reported.add(trial)
            if trial in started:
                if "train_s" not in event["metrics"]:
                    raise SystemExit(f"{folder}: its reports have no train_s; search a Space(task=...)")
                epoch_s = event["metrics"]["train_s"] + event["metrics"]["validate_s"]
                continuations.append(time - started.pop(trial) - epoch_s)
        elif kind == "decision" and event["action"] == "pause":
            paused = time
    return pauses, continuations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an experiment's folder")
    try:
        found = costs(parser.parse_args().folder)
    except RequestError as error:
        sys.exit(str(error))
    for name, seconds in zip(("pause", "continuation"), found, strict=True):
        ordered = sorted(1000 * each for each in seconds)
        shown = f"median {statistics.median(ordered):.0f} ms, most {ordered[-1]:.0f} ms" if ordered else "none was warm"
        print(f"{name}: {len(ordered)}; {shown}")


if __name__ == "__main__":
    main()
