"""How many examples the fuzz tests take: a few by default, 16 times as many every night."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings

from tuner.serve.reading.stream import event_frames


class Tier:
    """The same examples each time, or 16 times as many, and others each time."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def settings(self, num: float, **other) -> settings:
        """Hypothesis' settings of a test that has so many examples by default."""
        return settings(
            max_examples=max(2, round(self.factor * num)),
            derandomize=self.factor == 1,
            database=None,
            print_blob=self.factor > 1,
            deadline=None,  # a busy machine answers slowly
            suppress_health_check=list(HealthCheck),
            **other,
        )

    def check(self, num: int, strategy, holds) -> None:
        """Asks `holds` about the examples of a test, and shrinks one for which it does not."""
        self.settings(num)(given(strategy)(lambda example: holds(example)))()


TIERS = [
    pytest.param(Tier(1), id="few"),
    pytest.param(Tier(16), id="many", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
]


def ends_soon(journal, after, *_, **__):
    """A journal's stream that ends once it has sent what there is."""
    looks = itertools.count()
    return event_frames(journal, after, lambda: next(looks) > 1, pause_s=0)
