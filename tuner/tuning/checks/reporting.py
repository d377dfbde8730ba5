"""Checks the source of a train function or script, whose own code must report each trial's metrics."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from tuner.spec.reach import python_files
from tuner.spec.script import Script
from tuner.spec.source import check_reports, never_reports


def check_text(train: Any, metric: str) -> None:
    """Raises RequestError if a script never reports a metric, or if a function's file calls `report` without a dict."""
    if isinstance(train, Script):
        never_reports(train.path, {**train.sources(), **python_files(Path(train.path).parent)}, metric)
        return
    while hasattr(train, "func"):  # functools.partial
        train = train.func
    file = inspect.getsourcefile(train) if inspect.isfunction(train) else None
    if file and Path(file).is_file():
        check_reports(Path(file).read_text(encoding="utf-8", errors="replace"), file)
