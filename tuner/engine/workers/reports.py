"""Connects a trial's function with Ray inside a worker: its reports, its output and its exit code."""

from __future__ import annotations

import inspect
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from unittest import mock

from ray import cloudpickle
from ray.train._internal.session import get_session
from ray.tune import Checkpoint, get_checkpoint
from ray.tune.result import DEFAULT_METRIC, RESULT_DUPLICATE

from tuner.engine.workers.own_folder import reported
from tuner.engine.workers.retried import patiently
from tuner.errors.gate import metrics_of, text_of
from tuner.errors.users_code import place_of, place_of_frame, place_raised
from tuner.record.report_keys import ARRIVED, LEFT_OUT, REFUSED, WAITS, Own
from tuner.record.storage.files import sync, sync_all
from tuner.spec.metrics import is_number
from tuner.spec.spaces import with_place
from tuner.spec.ways import in_sanity_check
from tuner.training.devices.usage import Usage

# Advice if a process that the trial has started calls tune.report: its report cannot reach the search.
CHILD = "send the metric to the trial's own process, as by a multiprocessing.Queue, and report it there"
IMPORTS = "a process that a trial starts must import its function: put it into a module beside the space's file"
MOST_PRINTED = 1_000_000  # maximum bytes of an error and its traceback as Ray sends and writes them
ELSEWHERE = "tune.report was called in another process than the trial's"


class EscapedError(Exception):
    """The trial's function raised an exception that Ray takes for the function's end."""


class Reporter:
    """Replaces the session's `report`: lets metrics through the gate and adds CPU, GPU and memory usage.

    A number without a name, such as a function's return value, gets the metric's name. A metric that the gate does not
    keep is left out, and the report says so once; a ValueError is raised instead if the metric is `needed`.
    """

    def __init__(self, report: Callable[..., None], metric: str, needed: Collection[str] = ()) -> None:
        self._report, self._usage, self._metric, self._needed = report, Usage(), metric, needed
        self._left_out: set[str] = set()
        self.is_measured = True  # whether what this process uses is what the trial uses
        self.look: Callable[[], dict[str, Any]] | None = None  # called at the first report
        self.stopped_by_ray = False
        self.num_reports = 0
        self._pid = os.getpid()

    def _used(self) -> dict[str, float]:
        return self._usage.read() if self.is_measured else {}

    def __call__(self, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"{ELSEWHERE}; {CHILD}")
        if in_sanity_check():
            return
        if not isinstance(metrics, Mapping):
            raise ValueError(f"tune.report got a {type(metrics).__name__}: give a dictionary, as {{'loss': loss}}")
        self.num_reports += 1
        reported()
        # Two kinds of report end no epoch and get no usage: RESULT_DUPLICATE, which Ray sends when the trial's function
        # returns, without a checkpoint as `tune.report` gives it, and WAITS: a checkpoint cannot be saved.
        if args or kwargs or metrics != {RESULT_DUPLICATE: True}:
            own = {str(name): metrics[name] for name in metrics if isinstance(name, Own)}
            # The trial's metrics take precedence over this process's usage: a ddp trial reports its workers' usage.
            metrics = own if WAITS in own else self._used() | self._kept(metrics) | own
            if self.look and WAITS not in own:
                metrics, self.look = {**metrics, str(ARRIVED): self.look()}, None
        try:
            patiently(partial(self._report, metrics, *args, **kwargs), lambda why: self._report({str(WAITS): why}))
        except SystemExit:
            self.stopped_by_ray = True
            raise

    def _kept(self, metrics: Mapping[Any, Any]) -> dict[str, Any]:
        """Returns the user's metrics that can be kept, and says what else there was."""
        theirs = {name: value for name, value in metrics.items() if not isinstance(name, Own)}
        if DEFAULT_METRIC in theirs:
            theirs[self._metric] = theirs.pop(DEFAULT_METRIC)
        kept, lost = metrics_of(theirs, REFUSED, self._needed)
        for name in self._needed:
            if name in lost:
                raise ValueError(f"{name!r} cannot be the metric of a search: {lost[name]}")
            if name in kept and (shape := getattr(theirs.get(name), "shape", ())) and not is_number(kept[name]):
                what = f"{'a tensor' if hasattr(theirs[name], 'detach') else 'an array'} of shape {tuple(shape)}"
                raise ValueError(f"{name!r} is reported as {what}: report a number, such as its .mean()")
        if new := lost.keys() - self._left_out:
            self._left_out |= new
            place = place_of_frame(inspect.currentframe())
            kept[str(LEFT_OUT)] = [[name, f"{reason}{place}"] for name, reason in lost.items() if name in new]
        return kept


def begin_reports(metric: str = DEFAULT_METRIC, needed: Collection[str] = ()) -> Reporter:
    """Installs a `Reporter` in this process's session for a new trial."""
    session = get_session()
    own = session.report
    report = type(session).report.__get__(session) if isinstance(own, Reporter) else own  # of the trial before
    session.report = reporter = Reporter(report, metric, needed)
    return reporter


def begin_saves() -> None:
    """Makes a worker sync each checkpoint of a new trial."""
    session = get_session()
    logging.getLogger("ray.train").setLevel(logging.WARNING)  # else Ray logs twice per checkpoint
    storage, original = session.storage, type(session.storage).persist_current_checkpoint
    storage.persist_current_checkpoint = partial(persisted, original.__get__(storage))


def persisted(persist: Callable[[Checkpoint], Checkpoint], checkpoint: Checkpoint) -> Checkpoint:
    """Copies a checkpoint into the trial's folder and syncs it: the disk has it before the journal names it."""
    saved = persist(checkpoint)
    sync_all(folder := Path(saved.path))
    for parent in folder.parents[:3]:  # they have the names of the checkpoint, of the trial's folder and of `ray`
        sync(parent)
    return saved


@contextmanager
def errors_sent() -> Iterator[None]:
    """Replaces an error that Ray can neither send nor print, by one with the same text and traceback."""
    try:
        yield
    except Exception as error:
        try:
            is_sent = len("".join(traceback.format_exception(error)).encode()) < MOST_PRINTED
            str(error), cloudpickle.loads(cloudpickle.dumps(error))
        except (Exception, SystemExit):
            is_sent = False
        if is_sent:
            raise
        text = f"{type(error).__name__}: {text_of(error)}"
        raise RuntimeError(text).with_traceback(error.__traceback__) from None


def caused(error: BaseException) -> str:
    """Returns ` after KeyError: 'x' (file, line 7)`, the error that was being handled; an empty text if none was."""
    cause = error.__cause__ or error.__context__
    return f" after {with_place(cause)}" if cause else ""


@contextmanager
def explained(reporter: Reporter) -> Iterator[None]:
    """Makes a trial fail, with advice, if processes that it starts report instead of it: those reports reach no search.

    `sys.exit()` ends the trial as a return does. A SystemExit by which Ray stops the function passes through.

    Raises:
        RuntimeError: the function called `sys.exit` with a code except 0 and None.
        EscapedError: the function raised StopIteration, or an exception that is no `Exception`, such as GeneratorExit.
        ValueError: the function started a process and reported nothing, or that process reported or cannot be pickled.
    """
    started: list[str] = []
    original = BaseProcess.start

    def start(process: Any) -> None:
        target, arguments = getattr(process, "_target", None), getattr(process, "_args", ())
        users = [each for each in (target, *arguments) if callable(each) and place_of(each)]
        name = f"{getattr(users[0], '__name__', users[0])}{place_of(users[0])}" if users else "a function of a library"
        module = getattr(target, "__module__", None) or ""  # a method of a list has None
        if not module.startswith("torch.utils.data"):  # DataLoader processes never report
            started.append(name)
        try:
            original(process)
        except (pickle.PicklingError, AttributeError) as error:
            if "pickle" not in text_of(error).lower():
                raise
            raise ValueError(f"{name} cannot run in another process: {IMPORTS}; {CHILD}") from error

    try:
        with mock.patch.object(BaseProcess, "start", start):
            yield
    except SystemExit as error:
        if reporter.stopped_by_ray:
            raise
        if error.code not in (None, 0):
            advice = "" if error.__context__ else ": return, or raise an exception that says why"
            called = f"the trial's function called sys.exit({error.code!r}){place_raised(error)}"
            raise RuntimeError(f"{called}{caused(error)}{advice}") from error
    except StopIteration as error:
        advice = "next(iterator, None) returns None at an iterator's end"
        raise EscapedError(f"StopIteration{place_raised(error)}{caused(error)}: {advice}") from error
    except Exception as error:
        if ELSEWHERE in text_of(error) and started:  # the child's error, which multiprocessing has wrapped
            raise ValueError(f"{ELSEWHERE}, by {started[0]}; {CHILD}") from None
        if type(error).__name__ == "BdbQuit" or "EOF when reading a line" in text_of(error):
            advice = "a trial has no input; take breakpoint() and input() out"
            raise RuntimeError(f"{with_place(error)}: {advice}") from error
        raise
    except BaseException as error:  # GeneratorExit, KeyboardInterrupt, asyncio.CancelledError
        raise EscapedError(f"{with_place(error)}{caused(error)}") from error
    if started and not reporter.num_reports and get_checkpoint() is None:
        raise ValueError(f"the trial's own process has reported nothing; it ran {started[0]} in another one; {CHILD}")
