"""How many examples all fuzz tests take together: 250 by default, 4,000 every night."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings

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
LEAST = 2  # examples of a test, or of one of its pieces


@dataclass(frozen=True)
class Tier:
    """So many examples in all tests together, the same ones each time or others each time."""

    total: int
    same: bool

    def settings(self, part: str, **other) -> settings:
        """Hypothesis' settings of one test, or of one of its `pieces`."""
        pieces = other.pop("pieces", 1)
        return settings(
            max_examples=max(LEAST, round(self.total * SHARES[part] / pieces)),
            derandomize=self.same,
            database=None,
            print_blob=not self.same,
            deadline=None,  # a busy machine answers slowly
            suppress_health_check=list(HealthCheck),
            **other,
        )

    def check(self, part: str, strategy, holds) -> None:
        """Asks `holds` about the examples of a test, and shrinks one for which it does not."""

        @self.settings(part)
        @given(strategy)
        def each(example):
            holds(example)

        each()


FEW = Tier(250, same=True)
MANY = Tier(4_000, same=False)
assert round(sum(SHARES.values()), 6) == 1
TIERS = [
    pytest.param(FEW, id="few"),
    pytest.param(MANY, id="many", marks=[pytest.mark.nightly, pytest.mark.timeout(1800)]),
]
