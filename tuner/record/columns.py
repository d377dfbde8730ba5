"""Declares the columns of the tables: a field of a row's class is a column of trials.csv, terminal, report and page."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal

ALL = "csv terminal report page"  # the places that show tables
Look = Literal["", "number", "duration", "text", "status", "trial", "parameters", "metrics", "list", "flag"]


@dataclass(frozen=True)
class Column:
    """What a table shows of one field of its rows.

    Attributes:
        name: the field, which is also the name in trials.csv.
        head, about: heading and tooltip; `{metric}` in a heading stands for the searched metric.
        look: how values are shown. A duration is in seconds, a trial is a link, and the page and trials.csv expand
            a trial's parameters and metrics to a column for each name.
        rare: whether the page hides the column until the user wants it.
        spare: whether the page hides the column while all its cells are empty.
    """

    name: str
    head: str
    about: str = ""
    look: Look = ""
    rare: bool = False
    spare: bool = False


def column(head: str = "", about: str = "", look: Look = "number", shown: str = "report page", **more: Any) -> Any:
    """Declares a field of a row as a column, with the attributes of `Column`.

    Args:
        head: the heading; empty = the field's name with spaces.
        shown: the places of ALL that show the column; empty = a field of the API alone.
        more: `rare` and `spare`, and in `TrialRow` also `value`: a function that computes the field from the record
            and the trial; without it, the trial's field of this name.
    """
    own = {"value": more.pop("value", None), "column": {"about": about, "look": look, **more}}
    return field(metadata={"head": head, "shown": shown.split(), **own})


@cache
def table_columns(row: type, place: str) -> tuple[Column, ...]:
    """Returns the columns of a class of rows that a place shows, in their order."""
    shown = [each for each in fields(row) if place in each.metadata.get("shown", ())]
    heads = [each.metadata["head"] or each.name.replace("_", " ") for each in shown]
    return tuple(Column(each.name, head, **each.metadata["column"]) for each, head in zip(shown, heads, strict=True))
