"""Compares searches on recorded learning curves, and says which method is best after how much training.

uv run --group benchmarks python -m benchmarks.search_quality --tables FOLDER --out results.jsonl
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from pathlib import Path

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def main(words: list[str] | None = None) -> None:
    for name in THREADS:  # one search a core; set before numpy is imported, here and in the processes
        os.environ[name] = "1"
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # deprecations within other libraries
    from benchmarks.search_quality.methods import OPPONENTS, OWN_DEFAULT, POOLED
    from tuner.errors import RequestError

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search_quality", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="tables (.npz), or folders of tables")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16, 64], help="numbers of trials at once")
    parser.add_argument("--repeats", type=int, default=30, help="searches per table, method and number of workers")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[OWN_DEFAULT, *OPPONENTS],
        help="ours:SEARCHER+SCHEDULER[,eta=3,grace=1,samples=100], or opponents (default: "
        f"{OWN_DEFAULT} and all opponents):\n" + "\n".join(OPPONENTS),
    )
    parser.add_argument(
        "--pool",
        action="store_true",
        help=f"also run these methods as they choose among the rows not tried yet:\n{', '.join(POOLED)}",
    )
    parser.add_argument("--out", type=Path, required=True, help="file of results; a cut run continues from it")
    parser.add_argument("--plot", type=Path, help="file to draw regret over budget to, such as plot.svg")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="searches simulated at once")
    options = parser.parse_args(words)
    numbers = {"repeats": options.repeats, "processes": options.processes, "workers": min(options.workers)}
    for name, value in numbers.items():
        if value < 1:
            parser.error(f"--{name} {value}: must be at least 1")
    if options.pool and not any(name.startswith(POOLED) for name in options.methods):
        parser.error(f"--pool: no method of --methods can choose among rows; add one of {', '.join(POOLED)}")
    try:
        num_failed = execute(options)
    except RequestError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(f"cut; the same command continues from {options.out}")
    sys.exit(1 if num_failed else 0)


def execute(options: argparse.Namespace) -> int:
    """Simulates the searches that the results lack, and prints the summary; returns how many searches failed.

    Raises:
        RequestError: an input is wrong; nothing was simulated.
    """
    from rich.progress import Progress

    from benchmarks.search_quality import runs, summary
    from benchmarks.search_quality.methods import POOL, POOLED
    from benchmarks.search_quality.simulate import Curves
    from benchmarks.search_quality.tables import tables_of

    paths = tables_of(options.tables)
    curves = {table: Curves.load(path) for table, path in paths.items()}
    free = list(dict.fromkeys(options.methods))
    pooled = [name for name in free if options.pool and name.startswith(POOLED)]
    names = free + [name + POOL for name in pooled]
    for table, each in curves.items():
        runs.check(paths[table], each, names)
    at = {
        workers: {table: found for table, each in curves.items() if (found := runs.budgets(each, workers)) is not None}
        for workers in dict.fromkeys(options.workers)
    }
    for workers, each in at.items():
        if small := [table for table in curves if table not in each]:
            needed = f"{workers} workers need tables of {runs.FEWEST * workers:g} settings"
            print(f"{needed}; left out: {', '.join(small)}", file=sys.stderr)
    results = runs.Results(options.out)
    # The repeats come first, so that a cut run has some of everything.
    searches = [
        (paths[table], name, workers, repeat)
        for repeat in range(options.repeats)
        for workers in at
        for table in at[workers]
        for name in names
        if runs.Key(table, name, workers, repeat) not in results.outcomes
    ]
    failures: Counter[str] = Counter()
    with Progress() as progress:
        bar = progress.add_task("", total=len(searches))
        for key, outcome in runs.run_all(searches, options.processes):
            if isinstance(outcome, Exception):
                failures[f"{key.method}: {type(outcome).__name__}: {outcome}"] += 1
            else:
                results.add(key, outcome)
            progress.update(bar, advance=1, description=f"{key.method} on {key.table}")
    for error, number in failures.items():
        print(f"{number} searches failed: {error}", file=sys.stderr)
    compared = []
    for workers, budgets_of in at.items():
        relative = {table: seconds / curves[table].full_training_s for table, seconds in budgets_of.items()}
        compared.append(summary.compared(results.outcomes, free, workers, options.repeats, relative))
        print("\n".join(summary.lines(compared[-1])))
        if pooled:
            print("\nThe same, where a search chooses among the rows of the table that it has not tried:")
            of_pool = summary.compared(results.outcomes, pooled, workers, options.repeats, relative, POOL)
            print("\n".join(summary.lines(of_pool)))
    if options.plot:
        summary.draw(compared, options.plot)
    return failures.total()


if __name__ == "__main__":
    main()
