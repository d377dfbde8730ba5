"""How long until the command line answers, until a search has its first figure, and until the prompt is back.

`--help` beside what it must not import (`import ray.tune, torch`), and the README's search over `cifar`, started as the
README starts it: from the command to the first trial and its first report, and from the answer to the command's end.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.peers import measure
from tuner.core.events import kind_of
from tuner.record.reading import read

SEARCH = "-m tuner.run --space cifar --name search"
ANSWER = "folder      "  # the line of the answer that every search prints
ROWS = {  # key of a search's times -> the row
    "trial_started": "search: to the first trial",
    "report": "search: to the first report",
    "answer": "search: to the answer",
    "prompt": "from the answer to the prompt",
}


def search(results: Path) -> dict[str, float]:
    """Runs the README's command; returns the seconds of each of ROWS."""
    command = [*measure.README_PYTHON, *SEARCH.split(), "--results", str(results)]
    began, printed = time.time(), []
    with subprocess.Popen(
        command,
        cwd=measure.REPOSITORY,
        env=measure.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            printed.append((time.time() - began, line.rstrip()))
    ended = time.time() - began
    if process.returncode:
        raise SystemExit("\n".join(line for _, line in printed))
    first: dict[str, float] = {}
    for event in read(results / "search" / "journal.jsonl"):
        first.setdefault(kind_of(event), event.time - began)
    answer = next(at for at, line in printed if line.startswith(ANSWER))
    return {**first, "answer": answer, "prompt": ended - answer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="of each (default: 5)")
    args = parser.parse_args()
    print(measure.machine())
    measured: dict[str, list[float]] = {name: [] for name in ("`tuner.run --help`", "`import ray.tune, torch`")}
    measured |= {row: [] for row in ROWS.values()}
    help_s, imports_s, *_ = measured.values()
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        for index in range(args.repeats):
            help_s.append(measure.run([*measure.README_PYTHON, "-m", "tuner.run", "--help"], log).seconds)
            imports_s.append(measure.run([*measure.README_PYTHON, "-c", "import ray.tune, torch"], log).seconds)
            times = search(Path(name) / str(index))
            for key, row in ROWS.items():
                measured[row].append(times[key])
    scale = statistics.median(imports_s)
    rows = [[what, measure.spread(each), f"{statistics.median(each) / scale:.2f}"] for what, each in measured.items()]
    measure.show(["what", "seconds", "x imports"], rows)


if __name__ == "__main__":
    main()
