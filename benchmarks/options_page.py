"""Writes `docs/options.md`, the page of all options, from the table of options: `python -m benchmarks.options_page`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from tuner.run import Command
from tuner.spec.option_values import GROUPS, Row, allowed_in, helps_of, option, rows_of
from tuner.spec.space import Space

PAGE = Path(__file__).parents[1] / "docs" / "options.md"
WORDS = {int: "whole number", float: "number", str: "string", bool: "no value"}
COLUMNS = "option", "values", "default", "what it does", "also given in", "allowed with several metrics"
HEAD = """# All options

The options of a search, in the order of `--help`. `tuner.search` takes most of them by name, such as `num_samples=20`.
The fifth column says where else an option may be given: as a field of the space, with `--resume`, or in a request to
the [service](dashboard.md), which starts a search or resumes one. The last column says what is allowed in a search for
several metrics.
"""


def main() -> None:
    PAGE.write_text(page())


def page() -> str:
    """Returns the page's text: one table a group."""
    helps, rows = helps_of(Command), rows_of(Command)
    lines = [HEAD]
    for group in GROUPS:
        lines += [f"## {group.capitalize()}", "", f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}"]
        for name, row in rows.items():
            if row.group == group:
                where = "; ".join(also(name, row))
                cells = f"`{option(name)}`", values(name, row), default(name), helps[name], where, several(row)
                lines.append(f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |")
        lines.append("")
    return "\n".join(lines)


def values(name: str, row: Row) -> str:
    kinds = allowed_in(Command)[name]
    texts = ", ".join(f"`{each}`" for each in kinds if isinstance(each, str))
    if tuple in kinds:
        return f"one or more of {texts}" if texts else "one or more strings"
    words = ["time" if row.is_time else WORDS[each] for each in kinds if isinstance(each, type)]
    bounds = f", {row.bounds[0]:,} to {row.bounds[1]:,}" if row.bounds else ""
    return " or ".join([*(f"{each}{bounds}" for each in words), *([texts] if texts else [])])


def default(name: str) -> str:
    value = getattr(Command, name)
    return "" if value in ("", ()) or value is False else f"`{value}`"


def also(name: str, row: Row) -> Iterator[str]:
    fields = {field.name for field in dataclasses.fields(Space)}
    yield from (f"field `{each}`" for each in (name, f"{name}s") if each in fields)
    if row.on_resume:
        yield "resume"
    if row.http:
        yield "request to start" if row.http == "start" else "request to start or resume"


def several(row: Row) -> str:
    if row.several is None:
        return "all"
    return f"only {', '.join(row.several)}" if row.several else "only the default"


if __name__ == "__main__":
    main()
