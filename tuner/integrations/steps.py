"""Makes reports of what a trial gives to a logger: W&B, MLflow and TensorBoard log metrics step by step."""

from __future__ import annotations

import atexit
import contextlib
import json
import numbers
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import Any

from tuner.errors import nearest
from tuner.spec.command_process import METRICS, VARIABLE


@dataclass
class Steps:
    """Collects what a trial logs, and sends one report a step.

    The numbers of one step are one report. It is sent once the step has each number that an earlier step had, at the
    latest when another step begins or the trial ends; so the first step waits for the second. Numbers that are logged
    without a step are sent once they have each metric of `needed`, as each report does. Other numbers wait for that
    report, and are part of it.

    Args:
        needed: the metrics that the scheduler compares; each report has them.
        metric: the searched metric; if it is none of `needed`, it may also come alone at the end.
        send: called with a report; without metrics, it only announces the first one.
        by: the logger's name, for messages.
    """

    needed: set[str]
    metric: str
    send: Callable[[dict[str, Any]], None]
    by: str
    sent: set[str] = field(default_factory=set)  # each name that was reported
    numbers: dict[str, Any] = field(default_factory=dict)  # name -> its latest number since the last report
    step: Any = None  # the last step; None before the first
    names: set[str] = field(default_factory=set)  # what was logged for this step
    is_sent: bool = False  # whether this step was reported
    usual: set[str] = field(default_factory=set)  # what was logged for any step that was reported
    late: dict[str, Any] = field(default_factory=dict)  # the searched metric, if this step was reported without it

    def log(self, data: Mapping[str, Any], step: Any = None, commit: bool | None = None) -> None:
        """Keep the numbers of `data`, and report a step that is complete.

        A step begins anew when a metric of `needed` comes again. What a reported step gets later is left out, and
        awaited in the steps after it; the searched metric of the last step is reported at the end. `commit` takes
        precedence, as in W&B.
        """
        values = numbers_in(data)
        found = self.needed & values.keys()
        begins = step is not None and (
            step != self.step or (bool(found) and (self.is_sent or bool(found & self.names)))
        )
        # Without `step`, numbers belong to the present step, but a metric's new value does not replace the one there.
        if self.is_whole() and (begins or (step is None and self.step is not None and found)):
            self._report()
        if begins:
            self.step, self.names, self.is_sent = step, set(), False
        elif step is not None and self.is_sent:
            self.late = {name: value for name, value in values.items() if name == self.metric} or self.late
            if late := sorted(values.keys() - self.usual - {self.metric}):
                print(f"{self.by}: {', '.join(late)} came after the report of step {step}; later steps wait for it")
            self.usual |= values.keys()
            return
        self.names |= values.keys()
        self.numbers.update(values)
        is_over = step is None if commit is None else commit
        is_usual = step is not None and commit is None and bool(self.usual) and self.usual <= self.names
        if (is_over or is_usual) and self.is_whole():
            self._report()
        elif self.is_whole() and not self.sent:
            self.send({})  # so that ways of lower order do not report before the first step is over

    def is_whole(self) -> bool:
        return self.needed <= self.numbers.keys()

    def restart(self) -> None:
        """Report the last step of a logger's run, and begin the next run."""
        if self.is_whole():
            self._report()
        self.forget()

    def forget(self) -> None:
        """Begin anew, without a report of what was logged."""
        self.numbers, self.step, self.names, self.is_sent, self.usual, self.late = {}, None, set(), False, set(), {}

    def end(self, summary: Mapping[str, Any] | None = None) -> str:
        """Report the last step, and what only the logger's `summary` has; return why there is no report, or "".

        If the scheduler compares another metric, also report the searched metric alone, if it came after the last
        report, or if it was never logged and the summary has it.
        """
        if self.is_whole():
            self._report()
        if self.sent and self.metric in self.needed:
            return ""
        self.numbers |= self.late
        last = numbers_in(summary or {})
        if not self.sent:
            self.numbers |= last
        elif self.metric in last and self.metric not in self.sent:
            self.numbers.setdefault(self.metric, last[self.metric])
        if self.is_whole() or (self.sent and self.metric in self.numbers):
            self._report()
        missing = sorted(self.needed - self.numbers.keys() - self.sent)
        logged = ", ".join(self.numbers) or "no number"
        return f"the metric {missing[0]!r}{nearest(missing[0], self.numbers)}; it logged {logged}" if missing else ""

    def _report(self) -> None:
        if self.late:
            print(f"{self.by}: {self.metric} came after the report of its step; later steps wait for it")
        report, self.numbers, self.late = self.numbers, {}, {}
        self.usual, self.is_sent, self.sent = self.usual | self.names, True, self.sent | report.keys()
        self.send(report)


def needed_metrics() -> tuple[str, str, Sequence[str]]:
    """Return the metrics of a command's trial: the one that the scheduler compares, the searched one, the others."""
    compared, metric, *others = json.loads(Path(os.environ[VARIABLE], METRICS).read_text())
    return compared, metric, others


def of_command(by: str, summary: Callable[[], Mapping[str, Any]] = dict) -> Steps:
    """Return the steps of a logger in this process of a command; the last one is reported when the process exits."""
    compared, metric, others = needed_metrics()

    def send(report: dict[str, Any]) -> None:
        from tuner_trial import report as send_report

        send_report(report, by=by)

    steps, pid = Steps({compared, *others}, metric, send, by), os.getpid()

    def end() -> None:
        with contextlib.suppress(SystemExit):  # the search has stopped the trial, which ends anyway
            if (why := steps.end(summary())) and steps.numbers:
                print(f"{by}: the program has never logged {why}", file=sys.stderr)

    def begin(steps: Steps) -> None:  # in a process that multiprocessing has forked, and that calls no exit handler
        steps.forget()
        util.Finalize(None, end, exitpriority=0)

    atexit.register(lambda: end() if os.getpid() == pid else None)
    util.register_after_fork(steps, begin)
    return steps


def numbers_in(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the entries that are numbers, or arrays and tensors of one number; `a.b` is in a dictionary `a`."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= numbers_in(value, f"{prefix}{name}.")
            continue
        with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
            value = value.item()  # raises an error if `value` holds several numbers
        if isinstance(value, numbers.Number):
            found[f"{prefix}{name}"] = value
    return found
