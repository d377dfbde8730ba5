"""Which reports of a script or command count: an epoch may be reported in several ways, or be none."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What may report an epoch; the first that the program uses counts. `tuner_trial` ranks with `tune.report`.
WAYS = "tune.report", "the Trainer", "Keras", "wandb.log", "MLflow", "TensorBoard", "printed lines"
TUNE, TRAINER, PRINTED = WAYS[0], WAYS[1], WAYS[-1]
NUM_WITH_CHECKPOINT = 3  # the first ones, which report when an epoch ends: what is saved by then belongs to it
ONE_WAY = "each epoch would count twice; keep one way, or let {first} report first: what comes after it is left out"


@dataclass
class Ways:
    """Decides which of a trial's reports count.

    Args:
        metric: the one that the scheduler compares. If the first report by another way repeats its value, it is of the
            same epoch.
    """

    metric: str
    by: str = PRINTED  # the way that counts
    num: int = 0  # the number of reports that counted
    value: Any = None  # of the metric, in the last one
    replaced: str = ""  # the way of the first report, if `by` began with the same epoch
    left_out: set[str] = field(default_factory=set)  # the ways that were said to be left out

    def counts(self, by: str, metrics: Mapping[str, Any]) -> bool:
        """Whether a report by this way counts; without metrics, it only announces the first one.

        Raises:
            RuntimeError: reports by a way of lower order have counted, and this is another epoch.
        """
        if not metrics:
            self.by = by if not self.num and _order(by) < _order(self.by) else self.by
            return False
        if _order(by) > _order(self.by) or by == self.replaced:
            if by not in self.left_out:
                self.left_out.add(by)
                print(f"tuner: reports by {by} are left out, because {self.by} reports", flush=True)
            return False
        if self.num and by != self.by:
            if self.num > 1 or self.replaced or metrics.get(self.metric, self) != self.value:
                ways = f"the program reports by {self.by} and by {by}"
                raise RuntimeError(f"{ways}: {ONE_WAY.format(first=by)}")
            print(f"tuner: {by} repeats the report by {self.by}; from now on, reports come by {by}", flush=True)
            self.by, self.replaced = by, self.by
            return False
        if not self.num and by != PRINTED:
            print(f"tuner: reports come by {by}", flush=True)
        self.by, self.num, self.value = by, self.num + 1, metrics.get(self.metric)
        return True


def in_sanity_check() -> bool:
    """Whether the caller runs in the sanity check of a Lightning Trainer; that check's numbers belong to no epoch."""
    frames = (frame for frame, _ in traceback.walk_stack(inspect.currentframe()))
    return any(frame.f_code.co_name == "_run_sanity_check" for frame in frames)


def _order(way: str) -> int:
    return WAYS.index(way) if way in WAYS else 0
