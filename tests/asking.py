"""Requests as the command line makes them, without a search."""

from contextlib import ExitStack

from tuner import run
from tuner.tuning.checks.request import checked
from tuner.tuning.resume.loading import load_resumed


def call_of(*words):
    """What the command asks for with these words."""
    words = [str(word) for word in words]
    return run.call_of(words, run.parse(words))


def request_of(*words):
    """The checked request of the command with these words, which nobody runs."""
    with ExitStack() as stack:
        call = call_of(*words)
        call.dry_run = True
        return checked(call, load_resumed(call, stack) if call.resume else None)
