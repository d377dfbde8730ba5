"""Draws the columns of a table that fit the terminal, and colours them; shows it in a notebook's cell."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any

from tuner.errors.terminal import BOLD, CYAN, FAINT, GREEN, RED, fitted, painted

NUMBER = re.compile(r"[-+]?(\d+\.?\d*(e[-+]\d+)?|nan|inf)")
STATUS = re.compile(r"(?<=\| )(completed|running|failed|pruned|diverged)(?= +\|)")
COLOURS = {"completed": GREEN, "running": CYAN, "failed": RED, "pruned": FAINT, "diverged": RED}
BEST = re.compile(r"best \S+ \S+ \(trial (\S+)\)")  # a part of the progress line


def columns_of(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns the columns that have a value: the header and the cells, padded to one width; numbers align right."""
    columns = []
    for name, *cells in zip(header, *rows, strict=True):
        if any(cells):
            width, number = max(map(len, (name, *cells))), all(map(NUMBER.fullmatch, filter(None, cells)))
            columns.append([each.rjust(width) if number else each.ljust(width) for each in (name, *cells)])
    return columns


def drawn(columns: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table with these columns."""
    if not columns:
        return []
    header, *rows = ["| " + " | ".join(cells) + " |" for cells in zip(*columns, strict=True)]
    border = "+".join("-" * (len(column[0]) + 2) for column in columns)
    return [f"+{border}+", header, f"|{border}|", *rows, f"+{border}+"]


def narrowed(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Draws the first columns, as many as fit `width` characters, and a line that names the others."""
    room, num_shown = width - 1, 0
    for column in columns:
        room -= len(column[0]) + 3
        if room < 0:
            break
        num_shown += 1
    left_out = ", ".join(column[0].strip() for column in columns[num_shown:])
    note = f"not shown: {left_out}; --table wide shows all columns" if left_out else ""
    return [*drawn(columns[:num_shown]), *(fitted(note, width) if note else [])]


def coloured(lines: Sequence[str]) -> list[str]:
    """Colours the statuses in a table, and the best trial in it and in the progress line below it."""
    best = next((match[1] for line in reversed(lines) if (match := BEST.search(line))), "")
    painted_lines = []
    for line in lines:
        if line.startswith("| "):
            line = STATUS.sub(lambda match: painted(match[0], COLOURS[match[0]]), line, count=1)
            start = f"| {best} |"
            line = f"| {painted(best, f'{BOLD};{GREEN}')} |{line[len(start) :]}" if line.startswith(start) else line
        else:
            line = BEST.sub(lambda match: painted(match[0], f"{BOLD};{GREEN}"), line)
        painted_lines.append(line)
    return painted_lines


class Cell:
    """An output of the running notebook cell, whose text can be replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Shows a text, which replaces the previous one."""
        display: Any = importlib.import_module("IPython.display").display
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook; False for IPython in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
