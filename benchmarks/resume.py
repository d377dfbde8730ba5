"""How long a resume replays a journal of `--lines` lines, for each searcher; Ray's own start is not counted.

Ray's own controller runs each search without workers (`tests/workerless.py`), until its journal has the lines. Then a
process of its own resumes it, up to its first trial: `replay` is the time in which the journal's events go through
searcher and scheduler, `to the first trial` adds the reading of the journal and Ray's preparation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from benchmarks.peers import measure

PAIRS = [
    ("random", "asha"),
    ("random", "asha-promotion"),
    ("refine", "asha"),
    ("forest", "asha-promotion"),
    ("hyperopt", "asha"),
    ("optuna", "asha"),
    ("nsga2", "asha"),
    ("bohb", "bohb"),
]


def in_this_process(folder: Path, searcher: str, scheduler: str, num_lines: int) -> None:
    """Searches until the journal in `folder` has its lines, or resumes it if it has; prints the seconds of a resume."""
    import pytest
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    import workerless

    from benchmarks.peers.instant import without_syncs
    from tuner.tuning.proposals import Proposals

    class Enough(BaseException):
        pass

    journal, took = folder / "search" / "journal.jsonl", dict[str, float]()
    is_resumed, add = journal.exists(), Proposals.add_configurations

    class Workerless(workerless.Workerless):
        num_cpus, num_epochs = 4, 0

        def answer_of(self, worker: Any, method: str, *args: Any) -> Any:
            self.num_epochs += method == "train"
            is_due = self.num_epochs % 100 == 0 and journal.read_bytes().count(b"\n") >= num_lines
            if is_resumed or is_due:
                raise Enough
            return super().answer_of(worker, method, *args)

    def timed(self: Proposals, experiments: Any) -> None:
        start = time.process_time()
        add(self, experiments)
        took["replay"] = time.process_time() - start

    without_syncs()  # in the search alone, for which `main` sets NO_SYNC
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workerless.MANAGER, Workerless)
        patch.setattr(Proposals, "add_configurations", timed)
        start = time.process_time()
        try:
            choices = {"searcher": searcher, "scheduler": scheduler, "max_epochs": 8, "num_samples": num_lines}
            workerless.run(folder / "search", concurrent=4, **choices)
        except Enough:
            took["first"] = time.process_time() - start
    if is_resumed:
        print("\n" + json.dumps(took))
        return
    with journal.open("rb") as file:
        lines = list(islice(file, num_lines))
    journal.write_bytes(b"".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=15_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--searchers", nargs="+", help="only these")
    parser.add_argument("--search", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search:
        in_this_process(Path(args.search[0]), *args.search[1:], args.lines)
        return
    print(measure.machine(), file=sys.stderr)
    rows = []
    for searcher, scheduler in PAIRS:
        if args.searchers and searcher not in args.searchers:
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "benchmarks.resume", "--lines", str(args.lines)]
            command += ["--search", folder, searcher, scheduler]
            options: dict[str, Any] = {"cwd": measure.REPOSITORY, "stderr": subprocess.DEVNULL, "check": True}
            unsynced = measure.environment({"NO_SYNC": "1"})
            subprocess.run(command, **options, env=unsynced, stdout=subprocess.DEVNULL)
            path = Path(folder) / "search" / "journal.jsonl"
            journal = path.read_bytes()
            took = []
            for _ in range(args.repeats):
                done = subprocess.run(command, **options, env=measure.environment(), stdout=subprocess.PIPE)
                took.append(json.loads(done.stdout.splitlines()[-1]))
                path.write_bytes(journal)
            num_trials = journal.count(b'"trial_suggested"')
            seconds = [measure.spread([each[name] for each in took], 1) for name in ("replay", "first")]
            rows.append([searcher, scheduler, f"{num_trials:,}", *seconds])
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    measure.show(["searcher", "scheduler", "trials", "replay (s)", "to the first trial (s)"], rows)


if __name__ == "__main__":
    main()
