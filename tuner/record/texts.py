"""Formats numbers, parameters and metrics as text, and writes the commands that a user can run next."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.record.report_keys import SPEED, USAGE

MOST_NAME = 200  # characters of a nested name: a million values under one long name would repeat it a million times


def counted(count: int, noun: str) -> str:
    """A number of things in words: `1 epoch`, `2 epochs`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def formatted(value: Any) -> str:
    """Formats a float with five significant digits, as the page's `number` does, and any other value by `str`.

    Metrics and parameters look the same in the terminal, in figures and on the page: 0.12346, 123460, 1e+300.
    """
    return f"{float(f'{value:.5g}'):.15g}" if isinstance(value, float) else str(value)


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Flattens nested parameters: `{"a": {"b": 1}}` -> `{"a/b": 1}`."""
    return dict(flat_parameters(config))


def flat_parameters(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the flattened names and values of a trial's parameters one by one; nested names are cut at MOST_NAME.

    It is a generator, so that a caller who needs the first few does not flatten all: 16 MB hold a million parameters.
    """
    levels = [("", iter(config.items()))]  # a stack instead of recursion: a value may be nested hundreds of levels
    while levels:
        above, items = levels[-1]
        for name, value in items:
            name = f"{above}{name}"[:MOST_NAME] if above else name
            if isinstance(value, dict) and value.keys() != {"grid_search"}:
                levels.append((f"{name}/"[:MOST_NAME], iter(value.items())))
                break
            yield name, value
        else:
            levels.pop()


def figures(metrics: dict[str, Any], metric: str = "") -> str:
    """Formats the finite numbers among the metrics: `loss 1.2345, accuracy 0.5612`.

    Leaves out resource usage and training speed, unless one of them is the metric of the search.
    """
    hidden = (USAGE | SPEED) - {metric}
    shown = {name: v for name, v in metrics.items() if isinstance(v, (int, float)) and math.isfinite(v)}
    return ", ".join(f"{name} {formatted(value)}" for name, value in shown.items() if name not in hidden)


def setting(config: dict[str, Any]) -> str:
    """Formats a trial's parameters in one line: `l1 64, lr 0.00123, batch_size 8`."""
    return ", ".join(f"{n} {v:.6g}" if isinstance(v, float) else f"{n} {v}" for n, v in flat(config).items())


def command(module: str, *words: str) -> str:
    """Returns a command of this package, started as this process was: under `uv run`, `python` may be another one."""
    return " ".join([f"{_python()} -m tuner.{module}", *words])


def _python() -> str:
    if not os.environ.get("UV"):  # uv sets it
        return "python"
    project = Path(sys.prefix).parent  # uv looks for it only in the working directory and above
    elsewhere = (project / "pyproject.toml").is_file() and not Path.cwd().is_relative_to(project)
    return f"uv run --project {shlex.quote(str(project))} python" if elsewhere else "uv run python"
