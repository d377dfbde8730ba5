"""Journals written by hand: whole lines, as `Journal` chains them."""

import json

from tuner.record.format import FIELD, FORMAT
from tuner.record.lines import Chain, text_of
from tuner.record.reading import scan


def lines_of(*events):
    """The bytes of a journal with these events, whatever is wrong with them."""
    chain = Chain()
    return b"".join(chain.line_of(json.dumps(event).encode()) for event in events)


def append(path, *events):
    """Appends events to a journal."""
    chain = scan(path).chain
    with open(path, "ab") as file:
        file.write(b"".join(chain.line_of(text_of(event)) for event in events))


def rewrite(path, change, journal=None):
    """Replaces the events of a journal by `change(events)`; an open `journal` goes on after them."""
    first, *events = change(scan(path).events)
    path.write_bytes(lines_of({**first, FIELD: FORMAT}, *events))
    if journal is not None:
        journal._size, journal._chain = path.stat().st_size, scan(path).chain
