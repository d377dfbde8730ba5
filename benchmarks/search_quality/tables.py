"""Reads and writes tables of learning curves."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search_quality.simulate import Curves
from tuner.errors import RequestError


def write(
    path: Path, name: str, mode: str, space: dict[str, Any], settings: list[Any], metric: Any, seconds: Any
) -> Curves:
    """Writes a table and returns it as the benchmark reads it.

    Args:
        settings: a dictionary per setting; a choice's value is its value, not its index.
        metric, seconds: shape (settings, epochs).

    Raises:
        RequestError: there is no setting, a value is not one of its choice's, or the result is not a valid table.
    """
    if not settings:
        raise RequestError(f"{path}: no curve to write")
    try:
        rows = [[_number(described, setting[each]) for each, described in space.items()] for setting in settings]
    except (KeyError, ValueError) as error:
        raise RequestError(f"{path}: a setting does not fit the space: {error}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:  # given a path, numpy appends .npz to any other ending
        np.savez_compressed(
            file,
            space=json.dumps(space),
            settings=np.array(rows, dtype=np.float32),
            metric=np.array(metric, dtype=np.float32),
            seconds=np.array(seconds, dtype=np.float32),
            name=name,
            mode=mode,
        )
    return Curves.load(path)


def _number(described: dict[str, Any], value: Any) -> float:
    return described["values"].index(value) if described["type"] == "choice" else float(value)


@dataclass(frozen=True)
class Table:
    """A table's file, and how many of its settings are used: the first ones, or all (None)."""

    path: Path
    settings: int | None = None

    @property
    def name(self) -> str:
        """The table's name in the results."""
        return self.path.stem if self.settings is None else f"{self.path.stem}[:{self.settings}]"

    def load(self) -> Curves:
        """Reads the table.

        Raises:
            RequestError: the file is not a table.
        """
        curves, num = Curves.load(self.path), self.settings
        return dataclasses.replace(
            curves, settings=curves.settings[:num], values=curves.values[:num], seconds=curves.seconds[:num]
        )


def tables_of(named: list[Path], settings: int | None = None) -> list[Table]:
    """Lists the tables of files and folders.

    Raises:
        RequestError: a path does not exist, a folder has no table, or two tables have the same file name.
    """
    paths = []
    for path in named:
        inside = sorted(path.glob("*.npz")) if path.is_dir() else [path] if path.is_file() else []
        if not inside:
            what = "no .npz file there" if path.exists() else "no such file or folder"
            raise RequestError(f"--tables {path}: {what}; name a table or a folder of tables")
        paths += inside
    stems = [path.stem for path in paths]
    if twice := {stem for stem in stems if stems.count(stem) > 1}:
        raise RequestError(f"--tables: several tables are named {', '.join(sorted(twice))}; rename all but one of each")
    return [Table(path, settings) for path in paths]
