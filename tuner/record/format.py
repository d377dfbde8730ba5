"""The number of the format in which tuner writes an experiment's folder and the service's state folder.

Raise `FORMAT` with each change of these folders' content. Raise it also if, after a change of a rule or searcher, the
replay of a journal would decide or propose otherwise. The code reads no other format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.errors import RequestError

FORMAT = 12
JOURNAL = "journal.jsonl"  # the file in an experiment's folder that has all that happened in the search
FIELD = "format"  # a field of experiment.json, best/config.json and a journal's first line; a file in the state folder


class OtherFormat(RequestError):
    """A folder's content was written in another format, or not by tuner."""


def check_format(number: Any, path: Path) -> None:
    """Raises OtherFormat unless `number` is FORMAT; `number` is the format that `path` records, None if it has none."""
    if type(number) is not int or number != FORMAT:
        has = "no format number" if number is None else f"format {str(number)[:20]}"
        raise OtherFormat(
            f"{path} has {has}; this version of tuner reads format {FORMAT} only: use the version that wrote it, or "
            f"move it away and start anew"
        )
