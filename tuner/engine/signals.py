"""SIGINT and SIGTERM: the first ends what runs in good order, the second ends it now, with all it has started."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ray  # noqa: F401  (brings psutil, and makes it importable)

# isort: split
import psutil

HANDLED = (signal.SIGINT, signal.SIGTERM)
LATE_S = 14.0  # after the first signal; by 15 the process has ended


@contextmanager
def signals_to(first: Callable[[str], None]) -> Iterator[None]:
    """While inside, the first signal calls `first` with what it was, the second `end_now`.

    May be nested: within, the inner `first` is called instead. Once a signal has come, the next one ends the process
    wherever it stands, until the outermost of them is left, and so do `LATE_S` without an end: a SIGTERM to the whole
    process group (`timeout`, systemd) ends Ray's processes too, and its driver would wait a minute for them (ray 2.60).
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python takes signals in the main thread alone
        return

    def take(number: int, frame: Any) -> None:
        for each in HANDLED:
            signal.signal(each, end_now)
        os.write(deadlines[-1], SIGNALLED)
        first(f"interrupted by {signal.Signals(number).name}")

    outermost = not deadlines
    if outermost:
        deadlines.append(_deadline())
    before = {number: signal.signal(number, take) for number in HANDLED}
    try:
        yield
    finally:
        if outermost or signal.getsignal(signal.SIGINT) is take:
            for number, handler in before.items():
                signal.signal(number, handler)
        if outermost:
            os.write(deadlines[-1], LEFT)  # its end alone may not be seen: a forked process holds the pipe open too
            os.close(deadlines.pop())


SIGNALLED, LEFT = b"s", b"l"  # what a deadline is told
deadlines: list[int] = []  # the pipe to the outermost one's deadline


def _deadline() -> int:
    """A pipe; `LATE_S` after it was told `SIGNALLED`, and not `LEFT` by then, the process ends.

    A thread waits at it from the beginning: a handler may have interrupted the start of another thread, and would wait
    for its lock for ever if it started one itself; and a handler's own alarm would wait for the main thread.
    """
    told, teller = os.pipe()

    def wait() -> None:
        with open(told, "rb", buffering=0) as pipe:
            if pipe.read(1) == SIGNALLED and not select.select([pipe], [], [], LATE_S)[0]:
                end_late()

    threading.Thread(target=wait, name="deadline", daemon=True).start()
    return teller


def give_up(reason: str) -> None:
    """What the first signal does where no search has begun, or it is over: the process ends through its `finally`s."""
    raise KeyboardInterrupt(reason)


def end_now(number: int, frame: Any) -> None:
    """Ends this process and all that it has started, Ray's and W&B's, without another word: exit code 130.

    Without their parent they notice by themselves, on a busy machine some only after more than 15 s (ray 2.60).
    """
    end_family()
    os._exit(130)


def end_late() -> None:
    """What a search that does not end gets; its journal has all that was reported."""
    said = f"tuner: not ended {LATE_S:.0f} s after the signal, so ended now; --resume goes on"
    print(said, file=sys.stderr, flush=True)
    end_now(signal.SIGTERM, None)


def end_family() -> None:
    """Kills the processes that descend from this one. All are stopped first: none can start another meanwhile."""
    family: set[psutil.Process] = set()
    while found := set(psutil.Process().children(recursive=True)) - family:
        for process in found:
            _told(process.suspend)
        family |= found
    for process in family:
        _told(process.kill)


def _told(action: Callable[[], None]) -> None:
    try:
        action()
    except psutil.NoSuchProcess:
        pass  # it has just ended
