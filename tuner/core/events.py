"""Names what can happen in a search: each event is a dictionary with its kind, its time, and the trial's id, if any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]
BEGINNINGS = ("experiment_started", "experiment_resumed")  # a session begins with one of these events
STOOD_STILL = "search_stood_still"  # the event before which a search stood still, such as on a suspended laptop
RETURNED = "its function returned"  # the reason in the event `trial_ended` of a trial that ended by itself
TRAINED = "trained its"  # begins the reason of a trial's end, such as `trained its 9 epochs`, the maximum at that time
STATES = ("finished", "interrupted", "failed")  # states of a search that has ended
ENDED = ("completed", "pruned", "failed")  # statuses of a trial that needs no worker any more
DIVERGED = "the training diverged"  # ends the reason of a trial that was stopped for a value that is not finite
# The statuses of a trial as users see and count them: those in which it has ended, and the others.
ENDINGS = ("pruned", "diverged", "completed", "failed")
STATUSES = ("suggested", "running", "paused", *ENDINGS, "interrupted")


def shown_status(status: str, reason: str) -> str:
    """Returns the status as users see it: `diverged` if a value that is not finite ended the trial."""
    return "diverged" if status == "pruned" and reason.endswith(DIVERGED) else status


def first_start(history: Sequence[Event]) -> Event:
    """Returns the event that began the search's first session; an empty dict if the journal lacks it."""
    return next((event for event in history if event["event"] == "experiment_started"), {})
