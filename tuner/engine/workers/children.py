"""Explains failures of trials that report in a process that their function starts: the search gets no such report."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from tuner.engine.workers.reports import CHILD, ELSEWHERE, Reporter
from tuner.errors.users_code import place_of

IMPORTS = "a process that a trial starts must import its function: put it into a module beside the space's file"


@contextmanager
def explained(reporter: Reporter) -> Iterator[None]:
    """Makes a trial fail, with advice, if processes that it starts report in its place: the search gets no such report.

    Raises:
        ValueError: the function started a process and reported nothing itself, or the process cannot get its function.
    """
    started: list[str] = []
    original = BaseProcess.start

    def start(process: Any) -> None:
        target, arguments = getattr(process, "_target", None), getattr(process, "_args", ())
        users = [each for each in (target, *arguments) if callable(each) and place_of(each)]
        name = f"{getattr(users[0], '__name__', users[0])}{place_of(users[0])}" if users else "a function of a library"
        if not getattr(target, "__module__", "").startswith("torch.utils.data"):  # a DataLoader's processes
            started.append(name)
        try:
            original(process)
        except (pickle.PicklingError, AttributeError) as error:
            if "pickle" not in str(error).lower():
                raise
            raise ValueError(f"{name} cannot run in another process: {IMPORTS}; {CHILD}") from error

    BaseProcess.start = start  # type: ignore[method-assign,assignment]
    try:
        yield
    except Exception as error:
        if ELSEWHERE in str(error) and started:  # the child's error, which multiprocessing has wrapped
            raise ValueError(f"{ELSEWHERE}, by {started[0]}; {CHILD}") from None
        raise
    finally:
        BaseProcess.start = original  # type: ignore[method-assign]
    if started and not reporter.num_reports:
        raise ValueError(f"the trial's own process has reported nothing; it ran {started[0]} in another one; {CHILD}")
