"""Compares searches on recorded learning curves, and says which method is best after how much training.

uv run --group benchmarks python -m benchmarks.search_quality --tables FOLDER --out results.csv
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main() -> None:
    for name in THREADS:  # one search a core; set before numpy is imported, here and in the processes
        os.environ[name] = "1"
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # deprecations within other libraries
    from benchmarks.search_quality.methods import OPPONENTS, OWN_DEFAULT

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search_quality", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="tables (.npz), or folders of tables")
    parser.add_argument("--settings", type=int, help="use only the first settings of each table, for slow models")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64], help="numbers of trials at once")
    parser.add_argument("--repeats", type=int, default=30, help="searches per table, method and number of workers")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[OWN_DEFAULT, *OPPONENTS],
        help="ours:SEARCHER+SCHEDULER[,eta=3,grace=1,samples=100], or opponents (default: "
        f"{OWN_DEFAULT} and all opponents):\n" + "\n".join(OPPONENTS),
    )
    parser.add_argument("--out", type=Path, required=True, help="file of results; a cut run continues from it")
    parser.add_argument("--plot", type=Path, help="file to draw regret over budget to, such as plot.svg")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="searches simulated at once")
    parser.add_argument("--summary-only", action="store_true", help="summarise the results, simulate nothing")
    parser.add_argument("--brief", action="store_true", help="print half of the budgets, and no intervals")
    given = parser.parse_args()
    numbers = {"workers": given.workers, "settings": [1 if given.settings is None else given.settings]}
    numbers |= {"repeats": [given.repeats], "processes": [given.processes]}
    for name, values in numbers.items():
        if min(values) < 1:
            parser.error(f"--{name} {min(values)}: must be at least 1")
    if given.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib: uv run --group benchmarks ..., or leave --plot out")

    from benchmarks.search_quality.command import execute
    from tuner.errors import RequestError

    try:
        failed = execute(given)
    except RequestError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(f"cut; the same command continues from {given.out}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
