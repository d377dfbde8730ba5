"""The results file: one line per finished search, appended, so that a cut run goes on where it was."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.search_quality.regret import BETWEEN, NUM_BUDGETS, Floats
from tuner.errors import RequestError

NUM_REGRETS = BETWEEN * (NUM_BUDGETS - 1) + 1
HEADER = [
    "table",
    "method",
    "workers",
    "repeat",
    "took_s",
    *(f"regret_{at / BETWEEN + 1:g}" for at in range(NUM_REGRETS)),
]


class Key(NamedTuple):
    """Which search a line of the results is about."""

    table: str
    method: str
    workers: int
    repeat: int


class Row(NamedTuple):
    """A finished search: the real seconds that it took, and its regret at each budget."""

    key: Key
    took_s: float
    regrets: Floats


class Results:
    """Reads the results that a file has, drops its torn last line, and appends to it.

    Raises:
        RequestError: the file is not a results file, or a line before the last one is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: dict[Key, Row] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(0)
            whole, newline, _ = file.read().rpartition(b"\n")
            lines = whole.decode(errors="replace").splitlines() if newline else []
            self._read(lines)
            file.truncate(len(whole) + len(newline))
        if not lines:
            self._append(HEADER)

    def _read(self, lines: list[str]) -> None:
        for number, fields in enumerate(csv.reader(lines), 1):
            if number == 1:
                if fields != HEADER:
                    raise RequestError(f"{self._path}: not a file of results by this version; name another by --out")
                continue
            try:
                row = _parsed(fields)
            except ValueError as error:
                raise RequestError(f"{self._path}: line {number} is damaged ({error}); delete it") from None
            self.rows[row.key] = row

    def add(self, row: Row) -> None:
        """Appends a finished search; its row is kept as a later reading gets it, so both print the same."""
        fields = [*map(str, row.key), f"{row.took_s:.3f}", *(f"{regret:.5g}" for regret in row.regrets)]
        self.rows[row.key] = _parsed(fields)
        self._append(fields)

    def _append(self, fields: list[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(fields)
        with self._path.open("a") as file:
            file.write(line.getvalue())


def _parsed(fields: list[str]) -> Row:
    if len(fields) != len(HEADER):
        raise ValueError(f"{len(fields)} values instead of {len(HEADER)}")
    table, method, workers, repeat, took_s, *regrets = fields
    values = np.array(regrets, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("a regret is not finite")
    return Row(Key(table, method, int(workers), int(repeat)), float(took_s), values)
