"""Decides which reports of a command count, because a program may report the same epoch in several ways."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# What may report an epoch; the first that the program uses counts.
WAYS = (
    "tuner_trial", "tune.report", "the Trainer", "Keras", "wandb.log", "MLflow", "TensorBoard", "printed lines",
)  # fmt: skip
PRINTED = WAYS[-1]
NUM_WITH_CHECKPOINT = 4  # the first ones, which report when an epoch ends: what is saved by then belongs to it


@dataclass
class Ways:
    """Knows which way counts.

    Attributes:
        metric: the one that the scheduler compares. If the first report by an earlier way has the value of the only
            one so far, it is of the same epoch.
        by: the way that counts.
        num: the number of reports that counted.
        value: the metric's value in the last one.
        left_out: the ways of which the output says that they are left out.
    """

    metric: str
    by: str = PRINTED
    num: int = 0
    value: Any = None
    left_out: set[str] = field(default_factory=set)

    def announce(self, by: str) -> None:
        """Let no later way count, because this one will report."""
        if not self.num:
            self.by = min(self.by, by, key=WAYS.index)

    def counts(self, by: str, metrics: Mapping[str, Any], has_checkpoint: bool = False) -> bool:
        """Take a report, and return whether it counts.

        Raises:
            RuntimeError: this way is earlier than that of the reports before, and does not just repeat the only one.
        """
        if WAYS.index(by) > WAYS.index(self.by):
            if by not in self.left_out:
                self.left_out.add(by)
                print(f"tuner: reports by {by} are left out, because {self.by} reports", flush=True)
            return False
        if self.num and by != self.by:
            if self.num > 1 or has_checkpoint or metrics.get(self.metric, self) != self.value:
                raise RuntimeError(
                    f"the program reports {self.metric} by {self.by}, and then another value or a checkpoint by {by}, "
                    "so that each epoch would count twice: log it by another name, give no --report, or let "
                    f"{by} report first"
                )
            print(f"tuner: {by} repeats the report by {self.by}; from now on, reports come by {by}", flush=True)
            self.by = by
            return False
        if not self.num and by != PRINTED:
            print(f"tuner: reports come by {by}", flush=True)
        self.by, self.num, self.value = by, self.num + 1, metrics.get(self.metric)
        return True


def in_sanity_check() -> bool:
    """Whether the caller runs in the sanity check of a Lightning Trainer; that check's numbers belong to no epoch."""
    frames = (frame for frame, _ in traceback.walk_stack(inspect.currentframe()))
    return any(frame.f_code.co_name == "_run_sanity_check" for frame in frames)
