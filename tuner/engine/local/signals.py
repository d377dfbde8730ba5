"""Handles SIGINT, SIGTERM and SIGHUP: the first stops the search cleanly, the second ends it at once."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from subprocess import Popen
from typing import Any
from unittest import mock

import ray  # noqa: F401  must be first: makes Ray's copy of psutil importable

# isort: split
import psutil
from ray._private import utils, worker

from tuner.errors import leave_terminal, say

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S = 0.5  # seconds in which a command ignores a second signal, since `uv run` forwards one that its whole group got
LATE_S = 14.0  # seconds after the first signal until this process is killed if it still runs, to end within 15 s


@contextmanager
def signals_to(first: Callable[[str], None]) -> Iterator[None]:
    """Calls `first` at the first signal, with a text that names the signal; in nested blocks, calls the inner `first`.

    Until the outermost block ends, a signal later than SAME_S calls `end_now`. So does `_deadline` after LATE_S: if
    `timeout` or systemd sends SIGTERM to Ray's processes, too, Ray's driver waits a minute for them (ray 2.60).
    Inside `in_a_program`, the next signal raises KeyboardInterrupt instead, and nothing kills the process.

    A SIGHUP that is ignored stays so: `nohup` ignores it. After the first signal, every SIGHUP is ignored, since a
    terminal that is closed sends up to three: from the kernel, from the shell, and when the shell has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # changes nothing: Python can set signal handlers only in the main thread
        return

    def take(number: int, frame: Any) -> None:
        again = signal.default_int_handler if hosts else partial(end_now, after=time.monotonic() + SAME_S)
        for each in HANDLED:
            signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else again)
        leave_terminal()
        taken.append(number)
        deadlines[-1].put(SIGNALLED)
        first(f"interrupted by {signal.Signals(number).name}")

    outermost = not deadlines
    if outermost:
        deadlines.append(SimpleQueue() if hosts else _deadline())
        taken.clear()
    handled = [each for each in HANDLED if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, take) for number in handled}
    try:
        yield
    finally:
        if outermost or signal.getsignal(signal.SIGINT) is take:
            for number, handler in before.items():
                signal.signal(number, handler)
        if outermost:
            deadlines.pop().put(LEFT)


@contextmanager
def kept_from_ray() -> Iterator[None]:
    """Keeps this process's SIGTERM handler and its loggers during `ray.init`, and SIGHUP from the processes it starts.

    Ray's handler would exit with code 15 (ray 2.60). A closed terminal sends SIGHUP to all processes of the command;
    Ray's, and workers, inherit that it is blocked, so they live until this process has stopped the search.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        with (
            mock.patch.object(utils, "set_sigterm_handler", lambda handler: None),
            mock.patch.object(worker, "setup_logger", lambda level, form: None),  # it formats the program's handlers
        ):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def in_a_program() -> Iterator[None]:
    """Keeps signals from killing a user's program, such as a notebook.

    A KeyboardInterrupt kills the processes of Ray that the search has started, and their descendants, but no others.
    """
    hosts.append([])
    try:
        yield
    except KeyboardInterrupt:
        end_family(hosts[-1])
        raise
    finally:
        hosts.pop()


def recorded(start: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Starts a process of Ray by Ray's function `start`, for `in_a_program` to know it; returns Ray's record of it."""
    info = start(*arguments, **options)
    if hosts:
        hosts[-1].append(info.process)
    return info


hosts: list[list[Popen[bytes]]] = []  # Ray's processes that each open `in_a_program` has started; empty in a command
# Messages to the thread of `_deadline`: a signal has arrived, or the outermost block has ended.
SIGNALLED, LEFT = "signalled", "left"
deadlines: list[SimpleQueue[str]] = []  # queue of the outermost block, unused in a program; empty outside a block
taken: list[int] = []  # signals that the open `signals_to` have passed on


def _deadline() -> SimpleQueue[str]:
    """Starts a thread that kills the process `LATE_S` after a signal; returns the queue for messages to the thread.

    A signal handler may use a SimpleQueue, but must not start a thread: it may have interrupted the start of one. An
    alarm (SIGALRM) would not do: Python would run its handler in the main thread, which may be blocked.
    """
    queue: SimpleQueue[str] = SimpleQueue()

    def wait() -> None:
        with suppress(Empty):
            if queue.get() == LEFT or queue.get(timeout=LATE_S):
                return
        after = "if a search had started, --resume and its name continue it"
        say(f"tuner: not ended {LATE_S:.0f} s after the signal, so killed now; {after}", to=sys.stderr)
        end_now(signal.SIGTERM, None)

    threading.Thread(target=wait, name="deadline", daemon=True).start()
    return queue


def lost(text: str) -> None:
    """Prints why the search cannot go on, and ends this process as a second signal does; only interrupts a program.

    Does nothing after a signal: then the search ends anyway, and the signal may be what ended Ray's processes.
    """
    if taken:
        return
    say("", text, to=sys.stderr)
    if not hosts:
        end_now(signal.SIGTERM, None)
    elif deadlines:
        _thread.interrupt_main()


def give_up(reason: str) -> None:
    """Handles a first signal before or after the search: raises KeyboardInterrupt, so that `finally` blocks run."""
    raise KeyboardInterrupt(reason)


def end_now(number: int, frame: Any, after: float = 0.0) -> None:
    """From time `after` on, kills this process (exit code 130) and its descendants, which else may take 15 s to end."""
    if time.monotonic() < after:
        return
    end_family()
    os._exit(130)


def end_family(heads: Collection[Popen[bytes]] | None = None) -> None:
    """Kills all descendants of this process, or only children `heads` with theirs.

    It suspends them first, so that none starts another.
    """
    family: set[psutil.Process] = set()
    while found := _family(heads) - family:
        for process in found:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                process.suspend()
        family |= found
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _family(heads: Collection[Popen[bytes]] | None) -> set[psutil.Process]:
    if heads is None:
        return set(psutil.Process().children(recursive=True))
    family = set[psutil.Process]()
    for head in heads:
        with suppress(psutil.NoSuchProcess):
            if head.poll() is None:  # until `poll` says that it has ended, no other process gets its number
                process = psutil.Process(head.pid)
                family |= {process, *process.children(recursive=True)}
    return family
