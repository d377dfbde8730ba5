"""Programs run as subprocesses and timed from start to exit, and figures printed as a table."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tuner

Measured = TypeVar("Measured")

REPOSITORY = Path(__file__).parents[2]
UV = os.environ.get("UV") or shutil.which("uv")  # `uv run` tells its own path
README_PYTHON = [UV, "run", "python"] if UV else [sys.executable]  # how the README starts our commands
PYTHON = [sys.executable]


@dataclass(frozen=True)
class Run:
    """One timed process: when it started (unix s) and how long it took."""

    started: float
    seconds: float


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every side of a comparison is started with."""
    env = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"} | dict(extra or {})
    for name in tuner.ENVIRONMENT:  # set by a benchmark's own import of tuner; the peers run as their users have them
        env.pop(name, None)
    # With it set, every worker that Ray starts compiles torch again; users who measure do not set it.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def run(command: Sequence[str | Path], log: Path, extra: Mapping[str, str] | None = None) -> Run:
    """Run a command at the repository's root, output to `log`; a failure ends the benchmark."""
    with log.open("w") as output:
        started, begin = time.time(), time.perf_counter()
        done = subprocess.run(
            [*map(str, command)],
            cwd=REPOSITORY,
            env=environment(extra),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        seconds = time.perf_counter() - begin
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise SystemExit(f"{words}: exit code {done.returncode}\n{log.read_text()[-4000:]}")
    return Run(started, seconds)


def in_turn(sides: Sequence[str], repeats: int, measured: Callable[[str, str], Measured]) -> dict[str, list[Measured]]:
    """Calls `measured` with each side and a name of its own, in rounds: a slow minute meets all sides."""
    turns: dict[str, list[Measured]] = {side: [] for side in sides}
    for repeat in range(repeats):
        for side in sides:
            turns[side].append(measured(side, f"{side}-{repeat}"))
    return turns


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and in brackets the least and the most."""
    if not values:
        return "none"
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def machine() -> str:
    """The processor and how many of its cores this process may use; every table is printed with it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    wide = "AVX-512" if "avx512f" in facts.get("flags", "") else "no AVX-512"
    return f"{facts.get('model name', 'unknown processor')} ({wide}), {len(os.sched_getaffinity(0))} cores\n"


def show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table, columns aligned: the first to the left, figures to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    rule = ["-" * widths[0], *(f"{'-' * (width - 1)}:" for width in widths[1:])]
    for first, *figures in [header, rule, *rows]:
        cells = [cell.rjust(width) for cell, width in zip(figures, widths[1:], strict=True)]
        print(f"| {' | '.join([first.ljust(widths[0]), *cells])} |", flush=True)
