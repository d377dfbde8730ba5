"""The epochs at which ASHA compares trials."""

from __future__ import annotations

import math


def milestones(max_epochs: int, grace_period: int, factor: float, bracket: int = 0) -> list[float]:
    """Returns the epochs of a bracket's rungs, in ascending order; bracket n lacks the n lowest rungs of bracket 0.

    A milestone may lie between two epochs. Trials then reach the rung at the later epoch.
    """
    num = int(math.log(max_epochs / grace_period) / math.log(factor) - bracket + 1)
    return [grace_period * factor ** (k + bracket) for k in range(num)]
