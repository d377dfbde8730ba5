"""Finds which part of the journal of population-based training can be continued, if checkpoints are gone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

from tuner.core.events import ENDED, Decision, Event, Report, TrialEnded
from tuner.record.checkpoints import damage, within

logger = logging.getLogger(__name__)


def with_checkpoints(folder: Path, history: list[Event], *, is_task: bool) -> list[Event]:
    """Cuts the events before a report whose checkpoint an unfinished trial needs but which is gone or damaged.

    Repeats this until all needed checkpoints are whole. Any other scheduler lets such a trial repeat its epochs, and
    does not judge them again. pbt would compare repeated epochs with other trials' later ones, and cannot train again
    the state that a trial has copied.
    """
    while (lost := _first_lost(folder, history, is_task)) is not None:
        report = cast("Report", history[lost])
        logger.warning(
            "%s, which trial %s needs, is gone or damaged: the search continues from the %d events before its report; "
            "a copy of the whole journal is kept", folder / str(report.checkpoint), report.trial, lost,
        )  # fmt: skip
        history = history[:lost]
    return history


def _first_lost(folder: Path, history: list[Event], is_task: bool) -> int | None:
    """Returns the index of the first report whose checkpoint is needed and lost; None if there is none."""
    needed: dict[str, int] = {}  # unfinished trial -> index of the report whose checkpoint it would continue from
    paths: dict[int, str] = {}
    for number, event in enumerate(history):
        if isinstance(event, Report) and event.checkpoint:
            needed[event.trial], paths[number] = number, event.checkpoint
        elif isinstance(event, Decision) and event.copied in needed:
            needed[event.trial] = needed[event.copied]
        elif isinstance(event, TrialEnded) and event.status in ENDED:
            needed.pop(event.trial, None)
    places = {number: within(folder, paths[number]) for number in needed.values()}
    lost = (number for number, path in places.items() if not path.is_dir() or damage(path, plain=is_task))
    return min(lost, default=None)
