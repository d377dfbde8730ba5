"""What can happen in a search: one class a kind of event. The journal's lines are made of their fields, in this order.

`time` is in unix seconds, `trial` the id of the event's trial, and `order` the number of the event's line. A line
leaves out a field of `OPTIONAL` that is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

RETURNED = "its function returned"  # the reason in `TrialEnded` of a trial that ended by itself
TRAINED = "trained its"  # begins the reason of a trial's end, such as `trained its 9 epochs`, the maximum at that time
STATES = ("finished", "interrupted", "failed")  # states of a search that has ended
ENDED = ("completed", "pruned", "failed")  # statuses of a trial that needs no worker any more
DIVERGED = "the training diverged"  # ends the reason of a trial that was stopped for a value that is not finite
# The statuses of a trial as users see and count them: those in which it has ended, and the others.
ENDINGS = ("pruned", "diverged", "completed", "failed")
STATUSES = ("suggested", "running", "paused", *ENDINGS, "interrupted")


def shown_status(status: str, reason: str) -> str:
    """Returns the status as users see it: `diverged` if a value that is not finite ended the trial."""
    return "diverged" if status == "pruned" and reason.endswith(DIVERGED) else status


class ExperimentStarted(NamedTuple):
    """A search began; `past` has the settings and trials of `--start-from`."""

    id: str | None = None
    name: str = ""
    num_samples: int | None = None
    max_epochs: int | None = None
    space_sha256: str = ""
    past: dict[str, Any] | None = None
    time: float = 0.0
    order: int = 0


class ExperimentResumed(NamedTuple):
    """A session of a search began by `--resume`."""

    id: str | None = None
    name: str = ""
    num_samples: int | None = None
    max_epochs: int | None = None
    space_sha256: str = ""
    time: float = 0.0
    order: int = 0


class TrialSuggested(NamedTuple):
    """The searcher proposed a setting; with --confirm, the setting of the trial `confirms` and another seed."""

    config: dict[str, Any]
    confirms: str | None = None
    seed: int | None = None
    trial: str = ""
    time: float = 0.0
    order: int = 0


class TrialStarted(NamedTuple):
    """A trial got a worker, the process `pid` on `node`; pbt may have changed its setting."""

    config: dict[str, Any]
    resources: dict[str, Any]
    node: str
    pid: int | None = None
    trial: str = ""
    time: float = 0.0
    order: int = 0


class Report(NamedTuple):
    """Metrics after `epoch` epochs.

    Attributes:
        checkpoint: path in the experiment's folder.
        final: whether the trial's function has returned these metrics.
        left_out: name -> why this metric is not recorded.
        doubt: what the trial's checkpoints may lack.
    """

    epoch: int
    metrics: dict[str, Any]
    checkpoint: str | None = None
    time: float = 0.0
    order: int = 0
    final: bool | None = None
    left_out: Mapping[str, str] | None = None
    doubt: str | None = None
    trial: str = ""


class Decision(NamedTuple):
    """The scheduler's decision after a report, and its reason.

    `value` and `cutoff` are of the metric `Experiment.compared` and keep its sign in mode max. `band` groups the
    brackets of HyperBand and BOHB. `compared` is the value compared with the cutoff if it is not `value`, as in the
    median rule: the trial's best. `copied` is the trial whose state this trial copied (pbt). `budget` marks a decision
    of the search's budget instead of its rule.
    """

    epoch: int
    value: float | None
    action: str
    reason: str
    rung: float | None = None
    bracket: int | None = None
    band: int | None = None
    cutoff: float | None = None
    recorded: int = 0
    compared: float | None = None
    copied: str | None = None
    budget: bool | None = None
    trial: str = ""
    time: float = 0.0
    order: int = 0

    @property
    def compared_value(self) -> float | None:
        return self.value if self.compared is None else self.compared

    @property
    def margin(self) -> float:
        """|compared value - cutoff|; infinite if either is missing or not finite."""
        value, cutoff = self.compared_value, self.cutoff
        margin = math.inf if value is None or cutoff is None else abs(value - cutoff)
        return margin if margin < math.inf else math.inf  # of NaN, too


class TrialFailed(NamedTuple):
    """A trial failed; a retry goes on from the checkpoint of `from_epoch`, 0 = from the start."""

    error: str
    kind: str = ""  # oom, cuda, user or worker_lost
    will_retry: bool = False
    from_epoch: int | None = None
    trial: str = ""
    time: float = 0.0
    order: int = 0


class TrialEnded(NamedTuple):
    """A trial has completed, was pruned, failed or was interrupted."""

    status: str
    reason: str
    trial: str = ""
    time: float = 0.0
    order: int = 0


class LengthLearned(NamedTuple):
    """The trial ended by itself after `epochs` epochs, so that asha's rungs moved."""

    epochs: int
    rungs: list[int]
    reason: str = ""
    trial: str = ""
    time: float = 0.0
    order: int = 0


class GraceLearned(NamedTuple):
    """The first rung moved to `grace_period`."""

    grace_period: int
    rungs: list[int]
    reason: str = ""
    trial: str = ""
    time: float = 0.0
    order: int = 0


class SchedulerChanged(NamedTuple):
    """Another scheduler decides from now on."""

    scheduler: str = ""
    reason: str = ""
    time: float = 0.0
    order: int = 0


class StoodStill(NamedTuple):
    """The search stood still for some seconds before the next event, such as on a suspended laptop."""

    seconds: float
    time: float = 0.0
    order: int = 0


class ExperimentFinished(NamedTuple):
    """A session ended.

    Attributes:
        state: one of STATES.
        refused: whether an error ended it that the user must correct.
        out_of_time: whether a budget ended it.
        unchecked: parameter -> why nobody knows whether the training used it.
    """

    state: str
    reason: str = ""
    refused: bool = False
    out_of_time: bool = False
    unchecked: dict[str, str] | None = None
    time: float = 0.0
    order: int = 0


Beginning: TypeAlias = ExperimentStarted | ExperimentResumed  # a session begins with one of these
TrialEvent: TypeAlias = (
    TrialSuggested | TrialStarted | Report | Decision | TrialFailed | TrialEnded | LengthLearned | GraceLearned
)
Event: TypeAlias = Beginning | TrialEvent | SchedulerChanged | StoodStill | ExperimentFinished
KINDS: dict[str, type[Event]] = {
    "experiment_started": ExperimentStarted,
    "experiment_resumed": ExperimentResumed,
    "trial_suggested": TrialSuggested,
    "trial_started": TrialStarted,
    "report": Report,
    "decision": Decision,
    "trial_failed": TrialFailed,
    "trial_ended": TrialEnded,
    "length_learned": LengthLearned,
    "grace_learned": GraceLearned,
    "scheduler_changed": SchedulerChanged,
    "search_stood_still": StoodStill,
    "experiment_finished": ExperimentFinished,
}
NAMES = {kind: name for name, kind in KINDS.items()}
OPTIONAL = frozenset({
    "past", "confirms", "seed", "checkpoint", "final", "left_out", "doubt", "compared", "copied", "budget",
    "from_epoch", "unchecked",
})  # fmt: skip


def kind_of(event: Event) -> str:
    return NAMES[type(event)]


def first_start(history: Sequence[Event]) -> ExperimentStarted | None:
    """Returns the event that began the search's first session; None if the journal lacks it."""
    return next((event for event in history if isinstance(event, ExperimentStarted)), None)


def trial_of(event: Event) -> str | None:
    """Returns the id of an event's trial; None if it is of the whole search."""
    return getattr(event, "trial", None)
