"""A journal folded into records as it grows: what has been read once is not read again."""

from __future__ import annotations

from pathlib import Path

from tuner.errors import RequestError
from tuner.journal import BEGINNINGS, Event, has_seal, opened
from tuner.records import Folding, TrialRecord

CHUNK_BYTES = 1 << 20  # at a time: 10,000 trials are 30 MB of journal, which need not be in memory with their records


class Reading:
    """One journal.

    `lines` have been read; `state` is the search's, `reason` why it ended before its last trial, if so; `took_s` its
    sessions without the time between; `beginnings` is how often it was read from its first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.beginnings = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.beginnings += 1
        self.state, self.reason, self.lines, self.took_s = "running", "", 0, 0.0
        self.updated: float | None = None
        self._folding = Folding()
        self._offset, self._inode, self._is_sealed = 0, 0, False

    def read_on(self) -> list[TrialRecord]:
        """Takes in what was appended since, a torn last line left out; gives the records of all trials.

        A journal that has shrunk, or is another file by now, is read from its beginning.

        Raises:
            RequestError: a line is none that this project wrote.
        """
        try:
            with open(self._path, "rb") as file:
                size, inode = file.seek(0, 2), self._path.stat().st_ino
                if size < self._offset or (self._inode and inode != self._inode):
                    self._begin_anew()
                self._inode = inode
                file.seek(self._offset)
                rest = b""
                while chunk := file.read(CHUNK_BYTES):
                    *lines, rest = (rest + chunk).split(b"\n")
                    self._take(lines)
        except FileNotFoundError:
            self._begin_anew()
        return self._folding.records()

    def _take(self, lines: list[bytes]) -> None:
        if self.lines == 0 and lines:
            self._is_sealed = has_seal(lines[0])
        number, is_sealed, add, note = self.lines, self._is_sealed, self._folding.add, self._note
        try:
            for line in lines:  # 5 us each, and 10,000 trials have 170,000
                number += 1
                event = opened(line, is_sealed)
                add(event)
                note(event)
        except (ValueError, KeyError, TypeError) as error:
            self._begin_anew()  # half of an event may have been taken in
            what = f"{self._path} is damaged at line {number} ({error}); --resume goes on from the lines before it"
            raise RequestError(what) from None
        self.lines = number
        self._offset += sum(map(len, lines)) + len(lines)

    def _note(self, event: Event) -> None:
        """The state of the search and how long it has run."""
        kind, time = event["event"], event["time"]
        if kind in BEGINNINGS:
            self.state, self.reason = "running", ""
        else:
            if kind == "experiment_finished":
                self.state, self.reason = event["state"], event.get("reason", "")
            self.took_s += time - (self.updated if self.updated is not None else time)
        self.updated = time
