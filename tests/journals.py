"""Journals written by hand: whole lines, as `Journal` chains them."""

import json

from tuner.core.events import Decision
from tuner.record import journal, reading
from tuner.record.format import FIELD, FORMAT
from tuner.record.lines import Chain, document_of, event_of, json_of
from tuner.record.records import Folding


def lines_of(*events):
    """The bytes of a journal with these events, whatever is wrong with them."""
    chain = Chain()
    return b"".join(chain.line_of(json.dumps(event).encode()) for event in events)


def append(path, *events):
    """Appends events to a journal."""
    chain = scan(path).chain
    with open(path, "ab") as file:
        file.write(b"".join(chain.line_of(json_of(event)) for event in events))


def rewrite(path, change, journal=None):
    """Replaces the events of a journal by `change(events)`; an open `journal` goes on after them."""
    first, *events = change(scan(path).events)
    path.write_bytes(lines_of({**first, FIELD: FORMAT}, *events))
    if journal is not None:
        journal._size, journal._chain = path.stat().st_size, scan(path).chain


def scan(path, most_events=None):
    """As `reading.scan`, with the events as objects of JSON."""
    found = reading.scan(path, most_events)
    return found._replace(events=list(map(document_of, found.events)))


def read(path):
    return list(map(document_of, reading.read(path)))


def follow(path, **options):
    return map(document_of, reading.follow(path, **options))


def typed(events):
    """The events of objects of JSON."""
    return [complete(event)._replace(order=number) for number, event in enumerate(events, 1)]


def folding(events=()):
    return Folding(typed(events))


class Journal(journal.Journal):
    """A journal to which tests also write events by the names of their kinds."""

    def write(self, event, trial=None, **fields):
        if isinstance(event, str):
            own = {} if trial is None else {"trial": trial}
            event = complete({"event": event, **own, **fields})
        super().write(event)


USUAL = {  # kind -> fields that a test may leave out
    "trial_started": {"config": {}, "resources": {}, "node": ""},
    "trial_suggested": {"config": {}},
    "decision": {"epoch": 1, "value": None, "reason": "", "rung": None, "bracket": None, "cutoff": None, "recorded": 0},
    "trial_ended": {"reason": ""},
    "trial_failed": {"error": ""},
}


def complete(event):
    """The event of an object of JSON that may lack some fields."""
    return event_of({"time": 0.0, **USUAL.get(event["event"], {}), **event})


def ruled(epoch, rung, bracket, value, cutoff, recorded, action, reason, band=None, **more):
    return Decision(epoch, value, action, reason, rung, bracket, band, cutoff, recorded, **more)
