"""Drops Ray's own long line about each dead worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DEAD = "A worker died or was killed while executing"  # how Ray's line starts


@contextmanager
def no_reports_of_dead_workers() -> Iterator[None]:
    """Drops Ray's line of 1,000 characters about each dead worker; tuner's own line names the trial and the cause."""
    from ray._private import worker

    theirs = worker.print_to_stdstream

    def shown(data: dict[str, Any], ignore_prefix: bool) -> None:
        if data.get("pid") != "raylet" or not any(DEAD in line for line in data["lines"]):
            theirs(data, ignore_prefix)

    worker.print_to_stdstream = shown
    try:
        yield
    finally:
        worker.print_to_stdstream = theirs
