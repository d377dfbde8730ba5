"""How many examples all fuzz tests take together: 250 by default, 4,000 every night."""

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings

from tuner.serve.reading.stream import event_frames

SHARES = {  # of all examples; a whole folder with all its views takes 60 ms, one file 5 ms
    "experiments": 0.14,
    "ray folders": 0.08,
    "journals": 0.20,
    "options": 0.14,
    "audits": 0.10,
    "checkpoints": 0.09,
    "queues": 0.11,
    "clusters": 0.06,
    "routes": 0.064,
    "sequences": 0.016,
}


@dataclass(frozen=True)
class Tier:
    """So many examples in all tests together, the same ones each time or others each time."""

    total: int
    same: bool

    def settings(self, part: str, pieces: int = 1, **other) -> settings:
        """Hypothesis' settings of one test, or of one of its `pieces`."""
        return settings(
            max_examples=max(2, round(self.total * SHARES[part] / pieces)),
            derandomize=self.same,
            database=None,
            print_blob=not self.same,
            deadline=None,  # a busy machine answers slowly
            suppress_health_check=list(HealthCheck),
            **other,
        )

    def check(self, part: str, strategy, holds) -> None:
        """Asks `holds` about the examples of a test, and shrinks one for which it does not."""
        self.settings(part)(given(strategy)(lambda example: holds(example)))()


TIERS = [
    pytest.param(Tier(250, same=True), id="few"),
    pytest.param(Tier(4_000, same=False), id="many", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
]


def ends_soon(journal, after, *_, **__):
    """A journal's stream that ends once it has sent what there is."""
    looks = itertools.count()
    return event_frames(journal, after, lambda: next(looks) > 1, pause_s=0)
