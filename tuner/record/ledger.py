"""The journal as those see it who write to it while it is replayed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tuner.record.events import Event
from tuner.record.journal import Journal


class Ledger:
    """Writes to the journal, but for what it has already."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._muted = False
        self._has: Counter[tuple[str, str | None, Any]] = Counter()

    def mute(self) -> None:
        """Nothing is written: all of it was."""
        self._muted = True

    def unmute(self, recorded: list[Event]) -> None:
        """Writes again, but not what is `recorded`: the events that follow the last report."""
        self._muted = False
        self._has = Counter((e["event"], e.get("trial"), e.get("epoch")) for e in recorded)

    def write(self, event: str, trial: str | None = None, **fields: Any) -> None:
        """As `Journal.write`."""
        if self._muted:
            return
        key = (event, trial, fields.get("epoch"))
        if self._has[key]:
            self._has[key] -= 1
            return
        self._journal.write(event, trial, **fields)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # as the journal's own
