"""The joint between a trial's function and Ray, in the worker: what it reports, prints and exits with."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from ray.train._internal.session import get_session
from ray.tune.result import RESULT_DUPLICATE
from ray.tune.utils.util import Tee

from tuner.engine.output import Bounded, flushed
from tuner.record.columns import WAITS
from tuner.training.usage import Usage


class Reporter:
    """Takes the place of the session's `report`: a tensor becomes its number, and the machine's figures are added.

    Ray's own refuses tensors, since the driver may have no device to read them on.
    """

    def __init__(self, report: Callable[..., None]) -> None:
        self._report, self._usage = report, Usage()
        self.told_to_stop = False

    def __call__(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        # RESULT_DUPLICATE is Ray's own note that the function has returned.
        if RESULT_DUPLICATE not in metrics and WAITS not in metrics:
            # The trial's own go first: where it trains in other processes, it may report theirs.
            metrics = self._usage.read() | {name: as_number(name, value) for name, value in metrics.items()}
        try:
            self._report(metrics, *args, **kwargs)
        except SystemExit:
            self.told_to_stop = True
            raise


def begin_reports() -> Reporter:
    """Puts a new trial's `Reporter` into the session of this worker and bounds what the trial prints."""
    logging.getLogger("ray.train._internal.storage").setLevel(logging.WARNING)  # else two lines a checkpoint
    session = get_session()
    session.report = reporter = Reporter(type(session).report.__get__(session))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, Tee):  # Ray's, a new one for each trial: into the worker's log and the trial's file
            stream.write, stream.flush = Bounded(stream.write), flushed(stream.flush)
    return reporter


@contextmanager
def own_exits(reporter: Reporter) -> Iterator[None]:
    """`sys.exit` in a trial's function ends the trial and not its worker: 0 as a return, anything else as an error.

    Ray ends a function that it has told to stop by SystemExit too, from within its report.
    """
    try:
        yield
    except SystemExit as error:
        if reporter.told_to_stop:
            raise
        if error.code not in (None, 0):
            raise RuntimeError(
                f"the function called sys.exit({error.code!r}); return, or raise what is wrong"
            ) from None


def as_number(name: str, value: Any) -> Any:
    """A tensor or a numpy scalar as its number, anything else as it is; ValueError for a tensor of more elements."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.generic):
        return value.item()
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    if value.numel() != 1:
        shape = tuple(value.shape)
        raise ValueError(f"{name!r} is reported as a tensor of shape {shape}: report a number, such as its .mean()")
    return value.item()
