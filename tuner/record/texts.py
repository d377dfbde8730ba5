"""Formats numbers, parameters and metrics as text, and writes the commands that a user can run next."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tuner.record.data_folders import leads_out
from tuner.record.report_keys import SPEED, USAGE
from tuner.spec.command_process import is_own_python
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import is_in_main

# What stands before a parameter's or a metric's name where a column of ours has that name, as in Ray's own tables.
PARAMETER, METRIC = "config/", "metrics/"
MAX_NAME_CHARS = 200  # maximum characters of a nested name, because each of a million values may repeat a long name


def counted(count: int, noun: str) -> str:
    """A number of things in words: `1 epoch`, `2 epochs`."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def duration(seconds: float) -> str:
    """Formats a number of seconds: `45 s`, `3 min 5 s`, `2 h 10 min`, as `dom.js` does."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def exact_duration(seconds: float) -> str:
    """Formats a number of seconds, below ten with two digits (`0.12 s`), else as `duration` does."""
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def formatted(value: Any) -> str:
    """Formats a float with five significant digits, as the page does (0.12346, 1e+300), and other values by `str`."""
    return f"{float(f'{value:.5g}'):.15g}" if isinstance(value, float) else str(value)


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Flattens nested parameters: `{"a": {"b": 1}}` -> `{"a/b": 1}`."""
    return dict(flat_parameters(config))


def flat_parameters(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the items of `flat` one by one, because a caller may need only the first few of a million."""
    levels = [("", iter(config.items()))]  # a stack instead of recursion: a value may be nested hundreds of levels
    while levels:
        above, items = levels[-1]
        for name, value in items:
            name = f"{above}{name}"[:MAX_NAME_CHARS] if above else name
            if isinstance(value, dict) and value.keys() != {"grid_search"}:
                levels.append((f"{name}/"[:MAX_NAME_CHARS], iter(value.items())))
                break
            yield name, value
        else:
            levels.pop()


def column_names(names: Iterable[str], taken: Iterable[str], prefix: str) -> dict[str, str]:
    """Names a column for each of the user's names: the name itself, or `prefix` + name if the column is `taken`.

    The prefix is repeated until no other column has the name.
    """
    names, taken, columns = list(names), {*taken}, dict[str, str]()
    used = {*taken, *names}
    for name in names:
        column = name
        while name in taken and column in used:
            column = prefix + column
        used.add(column)
        columns[name] = column
    return columns


def figures(metrics: dict[str, Any], metric: str = "") -> str:
    """Formats finite metrics, as in `loss 1.2345, accuracy 0.5612`; leaves out usage and speed, except `metric`."""
    hidden = (USAGE | SPEED) - {metric}
    shown = {name: v for name, v in metrics.items() if isinstance(v, (int, float)) and math.isfinite(v)}
    return ", ".join(f"{name} {formatted(value)}" for name, value in shown.items() if name not in hidden)


def setting(config: dict[str, Any]) -> str:
    """Formats a trial's parameters in one line: `l1 64, lr 0.00123, batch_size 8`."""
    return ", ".join(f"{n} {v:.6g}" if isinstance(v, float) else f"{n} {v}" for n, v in flat(config).items())


def domain_text(described: dict[str, Any], most: int = 10) -> str:
    """Formats what `domains.describe` returns or a file has: `{4, 8}`, `loguniform(0.01, 0.1)`; cuts beyond `most`."""
    if isinstance(values := described.get("values"), list):
        shown = [formatted(value) for value in (values if len(values) <= most else values[: most - 1])]
        return "{" + ", ".join(shown + ["..."] * (len(values) > most)) + "}"
    ends = [formatted(described[end]) for end in ("lower", "upper") if end in described]
    ends += [f"step {formatted(described['q'])}"] if "q" in described else []
    return f"{described.get('kind', '')}({', '.join(ends)})"


def command(module: str, *words: str) -> str:
    """Returns a command of this package for the shell, by `uv run` if uv started this process in a project."""
    project, python = Path(sys.prefix).parent, shlex.quote(sys.executable)
    if not os.environ.get("UV"):  # uv sets it, and its own PATH
        python = "python" if is_own_python("python") else python
    elif (project / "pyproject.toml").is_file():  # uv looks for it only in the working directory and above
        elsewhere = "" if Path.cwd().is_relative_to(project) else f"--project {shlex.quote(str(project))} "
        python = f"uv run {elsewhere}python"
    return " ".join([f"{python} -m tuner.{module}", *words])


def resume_call(e: Experiment, *options: str) -> str:
    """Returns the command or Python call that continues a search; `options` are words such as `--num-samples 20`."""
    if is_in_main(e.space):
        named = [f"resume={e.name!r}"] + ([] if e.results == "results" else [f"results={e.results!r}"])
        named += [f"data_dir={e.data_dir!r}"] if leads_out(e.data_dir) else []
        for option in options:
            name, value = option.removeprefix("--").split(" ", 1)
            is_number = value.replace(".", "", 1).isdigit()
            named.append(f"{name.replace('-', '_')}={value if is_number else repr(value)}")
        return f"tuner.search({e.space.partition(':')[2] or 'space'}, {', '.join(named)})"
    data = [f"--data-dir {shlex.quote(e.data_dir)}"] if leads_out(e.data_dir) else []
    return command("run", f"--resume {shlex.quote(e.name)}", *results_option(e), *data, *options)


def results_option(e: Experiment) -> list[str]:
    return [] if e.results == "results" else [f"--results {shlex.quote(e.results)}"]


def with_extra(name: str) -> str:
    """Says how to get the packages of an extra of this project, from anywhere."""
    root = Path(__file__).parents[2]  # of a clone, or of the packages of a wheel
    if not (root / "constraints.txt").is_file():
        return f"install tuner-hpo[{name}]"
    place = shlex.quote(str(root))
    begin = f"begin the command with `uv run --project {place} --extra {name}`"
    return f"{begin}, or without uv: pip install -e {place}'[{name}]' -c {place}/constraints.txt"
