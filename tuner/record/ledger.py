"""Suppresses events that a replay of the journal would write to the journal a second time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tuner.record.events import Event
from tuner.record.journal import Journal


class Ledger:
    """Writes events to a journal, except those that the journal already has."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._muted = False
        self._has: Counter[tuple[str, str | None, Any]] = Counter()

    def mute(self) -> None:
        """Drops all events from now on, because the journal already has them."""
        self._muted = True

    def unmute(self, recorded: list[Event]) -> None:
        """Writes events again, except one repetition of each event in `recorded`.

        Args:
            recorded: the journal's events from its last report on.
        """
        self._muted = False
        self._has = Counter((e["event"], e.get("trial"), e.get("epoch")) for e in recorded)

    def write(self, event: str, trial: str | None = None, **fields: Any) -> None:
        """Writes an event as `Journal.write` does, unless the journal already has it."""
        if self._muted:
            return
        key = (event, trial, fields.get("epoch"))
        if self._has[key]:
            self._has[key] -= 1
            return
        self._journal.write(event, trial, **fields)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # for the same reason as in `Journal`
