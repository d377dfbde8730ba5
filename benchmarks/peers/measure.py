"""Programs run as subprocesses and timed from start to exit, and figures printed as a table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """One timed process: when it started (unix s) and how long it took."""

    started: float
    seconds: float


def run(command: Sequence[str | Path], log: Path, extra: Mapping[str, str] | None = None) -> Run:
    """Run `python command...` at the repository's root, output to `log`; a failure ends the benchmark."""
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY), OMP_NUM_THREADS="1", **(extra or {}))
    # With it set, every worker that Ray starts compiles torch again; users who measure do not set it.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("w") as output:
        started, begin = time.time(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        seconds = time.perf_counter() - begin
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise SystemExit(f"{words}: exit code {done.returncode}\n{log.read_text()[-4000:]}")
    return Run(started, seconds)


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table, columns aligned: the first to the left, figures to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    for first, *figures in [header, rule, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=True)]
        print(f"| {' | '.join([first.ljust(widths[0]), *cells])} |", flush=True)
