"""Forks the process of one trial, keeps its output, and ends all its processes with it.

The trial's keeper is the parent of all that the trial leaves behind: Linux gives a process whose parent has ended to
the nearest subreaper, even if it has a session of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import math
import os
import selectors
import signal
import socket
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn

from tuner.engine.processes.variables import Changed
from tuner.errors.output import MAX_PRINTED, cut_after

TERM_GRACE_S = 5.0  # seconds that a stopped trial has before SIGTERM, and again before SIGKILL
DRAIN_S = 1.0  # seconds after the trial's end in which another user's process may hold its output open
SHAREABLE = "/memfd:", "/dev/null", "/dev/urandom", "/dev/random"  # path prefixes of descriptors that have no position
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP, ENDED = "stop", "ended"


class Start(NamedTuple):
    """What a keeper needs to know: the files of the trial's output, and the call of its child."""

    outputs: tuple[str | int, str | int]  # absolute paths for stdout and stderr, or descriptors of the service
    worker: int  # the process id in the journal
    call: bytes  # pickled: `sys.path`, and the pickled `Call`


def run(service: socket.socket, held: dict[str, Any], changed: Changed) -> NoReturn:
    """In a fork of the service: wait for a client, run one trial for it, then end this process."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        pipes, (ours, theirs) = (os.pipe(), os.pipe()), socket.socketpair()
        if not (pid := os.fork()):
            try:
                begin_child(theirs.fileno(), pipes)
                from tuner.engine.processes import child

                modules = child.prepare()
                waiting = Connection(os.dup(theirs.fileno()))
                worker, call = waiting.recv()
                channel = received(theirs)
                waiting.close()
                theirs.close()
                name_process(worker)
                child.run(call, Connection(channel), modules, held, changed)
            except BaseException:
                traceback.print_exc()  # into the trial's stderr
            finally:
                os._exit(70)  # `child.run` does not return
        theirs.close()
        for _, end in pipes:
            os.close(end)
        with socket.socket(fileno=received(service)) as client, ours:
            service.close()
            client.setblocking(True)  # the service limits the time of its own reads
            control = Connection(os.dup(client.fileno()))
            start = Start(*control.recv())
            channel = received(client)
            with Connection(os.dup(ours.fileno())) as to_child:
                to_child.send((start.worker, start.call))
            socket.send_fds(ours, [b"f"], [channel])
        os.close(channel)
        keep(pid, control, {pipe[0]: path for pipe, path in zip(pipes, start.outputs, strict=True)})
    finally:
        os._exit(0)


def received(sender: socket.socket) -> int:
    """Receive a file descriptor; ValueError if the sender has ended."""
    _, (fd, *_), *_ = socket.recv_fds(sender, 1, 1)
    return fd


def name_process(worker: int) -> None:
    with open("/proc/self/comm", "w") as comm:
        comm.write(f"tuner {worker}")  # by which `tuner.gpus` finds the trial of a process on a GPU


def begin_child(to_keeper: int, pipes: tuple[tuple[int, int], ...]) -> None:
    """Give the trial's process its streams, and close all other descriptors but `to_keeper` and what may be shared."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # as Ray's workers have; else the kernel would end these, which are small
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_CHILD_SUBREAPER, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, (_, end) in enumerate(pipes, 1):
        os.dup2(end, number)
    close_others(to_keeper)


def close_others(*kept: int) -> None:
    """Close all descriptors but those of the standard streams, `kept`, and what may be shared."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                if not os.readlink(f"/proc/self/fd/{name}").startswith(SHAREABLE):  # an import may have opened it
                    os.close(int(name))


class OutputFile:
    """A file that takes the first MAX_PRINTED of a stream; what cannot be written is lost, and nothing else."""

    def __init__(self, path: str | int) -> None:
        self.path, self.left = path, MAX_PRINTED
        self.file: io.FileIO | None = None
        self.open()

    def open(self) -> None:
        with contextlib.suppress(OSError):
            self.file = open(self.path, "ab", buffering=0, closefd=isinstance(self.path, str))

    def write(self, data: bytes) -> None:
        if not self.file:
            self.open()  # the experiment's folder may be back
        if self.left >= 0 and self.file:
            with contextlib.suppress(OSError):
                self.file.write(data[: self.left])
                if self.left < len(data):
                    self.file.write(cut_after(MAX_PRINTED).encode())
        self.left -= len(data)


def keep(pid: int, control: Connection, outputs: dict[int, str | int]) -> None:
    """Pass on the trial's output until it has ended, and end it if the client says so or is gone."""
    files = {fd: OutputFile(path) for fd, path in outputs.items()}
    process = os.pidfd_open(pid)
    status: int | None = None
    ended_at = math.inf
    deadlines: list[tuple[float, int]] = []
    selector = selectors.DefaultSelector()
    for each in (process, control.fileno(), *outputs):
        selector.register(each, selectors.EVENT_READ)
    while status is None or (outputs and time.monotonic() < ended_at + DRAIN_S):
        until = min(ended_at + DRAIN_S, *(at for at, _ in deadlines[:1]), math.inf)
        wait = None if until == math.inf else max(0.0, until - time.monotonic())
        for key, _ in selector.select(wait):
            fd = key.fd
            if fd in outputs:
                if data := os.read(fd, 1 << 16):
                    files[fd].write(data)
                else:
                    selector.unregister(fd)
                    del outputs[fd]
            elif fd == process:
                selector.unregister(fd)
                status, ended_at = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), time.monotonic()
                end_rest()
            else:  # the client says STOP, or has ended
                is_stopped = not deadlines and said(control)
                now = time.monotonic()
                if is_stopped:
                    deadlines = [(now + TERM_GRACE_S, signal.SIGTERM), (now + 2 * TERM_GRACE_S, signal.SIGKILL)]
                else:
                    selector.unregister(fd)
                    deadlines = [(now, signal.SIGKILL)]
        while deadlines and deadlines[0][0] <= time.monotonic():
            _, number = deadlines.pop(0)
            if status is None:
                os.kill(pid, number)
    with contextlib.suppress(OSError):
        control.send((ENDED, status))


def said(control: Connection) -> bool:
    try:
        return bool(control.recv())
    except (EOFError, OSError):
        return False


def children() -> list[int]:
    """Return the ids of this process's children."""
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            found += map(int, file.read().split())
    return found


def end_rest() -> None:
    """End all that the trial has left, also what its ended processes leave, but not what belongs to another user."""
    others = set[int]()
    while left := set(children()) - others:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except PermissionError:  # it runs as another user, as `sudo` does
                others.add(pid)
            except OSError:
                continue


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
