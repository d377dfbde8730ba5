"""Gives events to what follows a running search."""

from journals import complete

from tuner.tuning.tracker import Tracker


def following(experiment, history=()):
    """A Tracker of a search in this state."""
    return Tracker(experiment, map(complete, history))


def heard(follower, *events):
    """Has the state and its Tracker or Budget get events, which may lack what the test does not need."""
    for event in map(complete, events):
        follower.state.apply(event)
        follower.hear(event)
