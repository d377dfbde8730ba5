"""The number of the format in which tuner writes an experiment's folder and the service's state folder.

Raise `FORMAT` with each change of what is written there, and of a rule or a searcher after which the replay of a
journal would decide or propose otherwise. No code reads another format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.errors import RequestError

FORMAT = 4
FIELD = "format"  # of experiment.json, of best/config.json and of a journal's first line


class OtherFormat(RequestError):
    """What a folder has was written in another format, or is not tuner's."""


def check_format(number: Any, path: Path) -> None:
    """Raises OtherFormat unless `number`, the format that `path` records (None = it records none), is `FORMAT`."""
    if type(number) is not int or number != FORMAT:
        has = "no format number" if number is None else f"format {str(number)[:20]}"
        raise OtherFormat(
            f"{path} has {has}; this version of tuner reads format {FORMAT} only: use the version that wrote it, or "
            f"move it away and start anew"
        )
