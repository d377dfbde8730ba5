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
from select import select
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
DEAF_S = 3.0  # the same while Ray starts, if Python cannot run the handler: Ray's C++ code may wait for minutes


@contextmanager
def signals_to(first: Callable[[str], None]) -> Iterator[None]:
    """Calls `first` at the first signal, with a text that names the signal; in nested blocks, calls the inner `first`.

    A nested block that begins after a signal calls its `first` at once. While Ray starts (`ray_starts`), signals wait.

    Until the outermost block ends, a signal later than SAME_S calls `end_now`. So does `_deadline` after LATE_S: if
    `timeout` or systemd sends SIGTERM to Ray's processes, too, Ray's driver waits a minute for them (ray 2.60).
    Python runs no handler while the main thread is in C++ code; the thread of `_deadline` hears of the signal anyway.
    Inside `in_a_program`, the next signal raises KeyboardInterrupt instead, and nothing kills the process.

    A SIGHUP that is ignored stays so: `nohup` ignores it. After the first signal, every SIGHUP is ignored, since a
    terminal that is closed sends up to three: from the kernel, from the shell, and when the shell has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # changes nothing: Python can set signal handlers only in the main thread
        return

    def take(number: int, frame: Any) -> None:
        if starting and not (hosts and waiting):
            waiting.append(number)
            return
        waiting.clear()
        again = signal.default_int_handler if hosts else partial(end_now, after=time.monotonic() + SAME_S)
        for each in HANDLED:
            signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else again)
        leave_terminal()
        taken.append(number)
        first(f"interrupted by {signal.Signals(number).name}")

    outermost = not deadlines
    if outermost:
        deadlines.append((lambda: None) if hosts else _deadline())
        taken.clear()
        abandoned.clear()
    handled = [each for each in HANDLED if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, take) for number in handled}
    try:
        if taken and not outermost:  # C code, as an import runs it, has dropped the KeyboardInterrupt of `give_up`
            take(taken[0], None)
        yield
    finally:
        if outermost or signal.getsignal(signal.SIGINT) is take:
            for number, handler in before.items():
                signal.signal(number, handler)
        if outermost:
            deadlines.pop()()


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


def recorded(start: Callable[..., Any], processes: list[Popen[bytes]], *arguments: Any, **options: Any) -> Any:
    """Starts a process of Ray by Ray's function `start`; returns Ray's record of it.

    Adds it to `processes`, and to those that `in_a_program` knows.
    """
    info = start(*arguments, **options)
    processes.append(info.process)
    if hosts:
        hosts[-1].append(info.process)
    return info


hosts: list[list[Popen[bytes]]] = []  # Ray's processes that each open `in_a_program` has started; empty in a command
deadlines: list[Callable[[], None]] = []  # ends the outermost block's `_deadline`; empty outside a block
taken: list[int] = []  # signals that the open `signals_to` have passed on
abandoned: list[str] = []  # the signal by which `give_up` has ended what runs before or after the trials
starting: list[str] = []  # not empty while Ray starts
waiting: list[int] = []  # signals that have come meanwhile
at_kill: list[Callable[[], None]] = []  # called by `end_now`, last first: what a killed process would leave on the disk


def _deadline() -> Callable[[], None]:
    """Starts a thread that kills the process `LATE_S` after a signal; returns a function that ends the thread.

    C code of Python writes each signal's number to a pipe as soon as it arrives, whatever the main thread does.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    left = b"\0"

    def comes(seconds: float | None = None) -> bytes:
        return os.read(reading, 1) if select([reading], [], [], seconds)[0] else b""

    def wait() -> None:
        while (got := comes()) != left and got[0] not in HANDLED:  # another signal, for which Ray has a handler
            pass
        after = "if a search had started, --resume and its name continue it"
        text, end = f"not ended {LATE_S:.0f} s after the signal, so killed now; {after}", time.monotonic() + LATE_S
        while got != left and (seconds := end - time.monotonic()) > 0:
            got = comes(min(seconds, DEAF_S))
            if starting and not taken and not got:
                text = "interrupted while Ray started; no trial had started"
                break
        if got == left:
            os.close(reading)
            return os.close(writing)
        say("", f"tuner: {text}", to=sys.stderr)
        end_now(signal.SIGTERM, None)

    def leave() -> None:
        signal.set_wakeup_fd(before)
        os.write(writing, left)

    threading.Thread(target=wait, name="deadline", daemon=True).start()
    return leave


def _as_others() -> None:
    """Lets signals end a child that this process has forked, such as a DataLoader's, without a line or a message."""
    if not deadlines or hosts:
        return
    deadlines[:] = [lambda: None] * len(deadlines)
    with suppress(ValueError):  # forked in another thread
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


os.register_at_fork(after_in_child=_as_others)


@contextmanager
def ray_starts() -> Iterator[None]:
    """Marks the `with` block in which the main thread may be in C++ code that waits for processes of Ray.

    A signal is passed on when the block ends, in a program a second one at once. An exception in the midst of
    `GlobalStateAccessor(...)` makes its destructor wait for ever, with Python's lock (ray 2.60; 1 of 100 signals).
    `_deadline` ends a command whose start goes on for DEAF_S.
    """
    starting.append("Ray")
    try:
        yield
    finally:
        starting.pop()
        if waiting:
            number = waiting[0]
            waiting.clear()
            signal.raise_signal(number)


@contextmanager
def removed_at_kill(remove: Callable[[], None]) -> Iterator[None]:
    """Calls `remove` if this process ends by `end_now` in the `with` block, whose `finally` blocks then do not run."""
    at_kill.append(remove)
    try:
        yield
    finally:
        at_kill.remove(remove)


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
    """Handles a first signal before or after the search: raises KeyboardInterrupt, so that `finally` blocks run.

    Where Python cannot raise it, as in a destructor or a callback of C code, it ends the command at once.
    """
    abandoned.append(reason)
    ignored = sys.unraisablehook

    def end(unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, KeyboardInterrupt):
            ignored(unraisable)
            return
        say("", "interrupted; if a search had started, --resume and its name continue it", to=sys.stderr)
        end_now(signal.SIGTERM, None)

    if not hosts:
        sys.unraisablehook = end
    raise KeyboardInterrupt(reason)


def end_now(number: int, frame: Any, after: float = 0.0) -> None:
    """From time `after` on, kills this process (exit code 130) and its descendants, which else may take 15 s to end."""
    if time.monotonic() < after:
        return
    end_family()
    for remove in reversed(at_kill):
        with suppress(Exception):
            remove()
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


def end_strays(folder: str) -> None:
    """Kills the processes of a Ray with this folder that are nobody's descendants: a raylet that died leaves agents."""
    for _ in range(3):  # one that is killed may just have started another
        found = False
        for process in psutil.process_iter(["cmdline"]):
            if _is_stray(process.pid, process.info["cmdline"] or [""], folder):
                with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    process.kill()
                    found = True
        if not found:
            return


def _is_stray(pid: int, words: list[str], folder: str) -> bool:
    """Whether a process has an option that names the folder; once it calls itself `ray::NAME`, by its open files."""
    if words[0].startswith("ray::"):
        with suppress(OSError):  # another user's, or it has ended
            files = [os.readlink(each.path) for each in os.scandir(f"/proc/{pid}/fd")]
            return any(each.startswith(f"{folder}/") for each in files)
    return any(word.startswith("--") and f"{folder}/" in word for word in words)


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
