"""Runs the program of a command's trial: hears what it prints and what its processes report, and ends it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import sysconfig
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.spec.ways import WAYS

COMMAND_GRACE_S = 4.0  # seconds that a stopped command has until SIGKILL; less than `keeper.TERM_GRACE_S`
SOFT_S = 2.0  # of them, before SIGTERM, if a process of it waits for an answer and so knows that the trial has ended
MAX_REPORT_BYTES = 1 << 20  # of a line without an end, or of a report, that are kept
REPORT_TIMEOUT_S = 5.0  # seconds that a report may take to arrive once it has begun
IN_COMMAND = str(Path(__file__).parents[1] / "integrations" / "in_command")  # the folder of `tuner_trial`
REFUSED = b"!"  # the answer to what is no report
PEER = struct.Struct("3i")  # process, user and group of the other side of a socket
# Variables that a program does not get: those of a launcher that has started tuner, of which it is no rank, and those
# of the search's Ray, which it may not have; without them it uses Ray as it does by hand.
RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # the settings of a job, as a trial that calls `ray.init` is
RAY_JOB_YIELDS = "RAY_OVERRIDE_JOB_RUNTIME_ENV"  # if both name a hook, that of `ray.init` counts
NOT_ITS_OWN = "RANK", "LOCAL_RANK", "WORLD_SIZE", "RAY_ADDRESS", RAY_JOB, RAY_JOB_YIELDS
VARIABLE, SOCKET, CHECKPOINT, CONFIG, METRICS = "TUNER_TRIAL", "socket", "checkpoint", "config.json", "metrics.json"
NEWEST = "newest"  # the file that names the folder of the trial's newest checkpoint, once there is one


def search_path() -> str:
    """Return PATH with the folder of this Python environment's programs: before it, unless another one is activated."""
    own, path = sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)
    if own in path.split(os.pathsep):
        return path
    activated = {os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")} - {None, "", sys.prefix}
    return os.pathsep.join([path, own] if activated else [own, path])


def is_own_python(program: str, path: str | None = None) -> bool:
    """Whether PATH, or `path`, leads from a program's name to the Python that runs this process."""
    found, own = Path(shutil.which(program, path=path) or ""), Path(sys.executable)
    return found.is_absolute() and found.parent == own.parent and found.samefile(own)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class Sent:
    """A report that a process of the command has sent; the process waits until `answer` is called."""

    def __init__(self, connection: socket.socket) -> None:
        """Read it; ValueError if it is none."""
        self.pid, _, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        connection.settimeout(REPORT_TIMEOUT_S)
        text = b""
        while not text.endswith(b"\n") and len(text) < MAX_REPORT_BYTES and (data := connection.recv(1 << 16)):
            text += data
        try:
            told = json.loads(text)
            self.metrics, self.by = dict(told["metrics"]), told["by"] if told["by"] in WAYS else WAYS[0]
            self.checkpoint = str(told["checkpoint"] or "")
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError("no report") from error
        self._connection = connection

    def answer(self) -> None:
        """Tell the waiting process to continue."""
        with contextlib.suppress(OSError):  # the process has ended
            self._connection.sendall(b"\n")
        self.refuse()

    def refuse(self) -> None:
        """Tell the process that the trial has ended, unless it has been answered."""
        self._connection.close()


Starter = Callable[..., Any]  # starts a program as `subprocess.Popen` does


class Program:
    """A running program, which gets a trial's `folder` by the variable TUNER_TRIAL; `folder` has its checkpoint."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        config: Mapping[str, Any],
        metrics: Sequence[str] = (),
        start: Starter = subprocess.Popen,
    ) -> None:
        (folder / CHECKPOINT).mkdir(exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(config, default=str))
        (folder / METRICS).write_text(json.dumps(list(metrics)))
        self._listener = socket.socket(socket.AF_UNIX)
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._listener.bind(f"/proc/self/fd/{place}/{SOCKET}")  # a socket's path has at most 107 bytes
        finally:
            os.close(place)
        self._listener.listen()
        path = os.pathsep.join(filter(None, [IN_COMMAND, os.environ.get("PYTHONPATH")]))
        # Without PYTHONUNBUFFERED, Python buffers lines that go to a pipe.
        own = {VARIABLE: str(folder), "PATH": search_path(), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        program = shutil.which(words[0], path=own["PATH"]) or words[0]  # Popen would look for it in this process's PATH
        pipes["executable"] = program
        environment = {name: value for name, value in os.environ.items() if name not in NOT_ITS_OWN} | own
        self.process = start(words, env=environment, bufsize=0, start_new_session=True, **pipes)

    def heard(self, seconds: float = math.inf) -> Iterator[str | Sent]:
        """Yield printed lines and sent reports until the program has ended, or for `seconds`.

        This process's streams get the output at once. What the program has printed at its end is read, and no more: a
        process that it has left may print for ever.
        """
        process = self.process
        streams: dict[Any, Any] = {process.stdout: sys.stdout, process.stderr: sys.stderr}
        begun, deadline, has_ended = dict.fromkeys(streams, b""), time.monotonic() + seconds, False

        def read(pipe: Any, size: int) -> list[str]:
            data = os.read(pipe.fileno(), size)
            if not data:
                selector.unregister(pipe)
            os.write(streams[pipe].fileno(), data)
            *lines, begun[pipe] = (begun[pipe] + data).split(b"\n")
            begun[pipe] = begun[pipe][-MAX_REPORT_BYTES:]
            return [line.decode(errors="replace") for line in lines]

        with selectors.DefaultSelector() as selector, open(os.pidfd_open(process.pid), "rb", buffering=0) as end:
            for each in (end, self._listener, *streams):
                selector.register(each, selectors.EVENT_READ)
            while not has_ended and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(None if left == math.inf else left):
                    if key.fileobj is end:
                        has_ended = True
                    elif key.fileobj is self._listener:
                        yield from self._sent()
                    else:
                        yield from read(key.fileobj, 1 << 16)
            for pipe in streams if has_ended else ():
                if size := int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder):
                    yield from read(pipe, size)
        yield from (line.decode(errors="replace") for line in begun.values() if line)

    def _sent(self) -> Iterator[Sent]:
        connection, _ = self._listener.accept()
        try:
            sent = Sent(connection)
        except (OSError, ValueError):
            with connection, contextlib.suppress(OSError):
                connection.sendall(REFUSED)
        else:
            yield sent

    def end(self, waits: Sent | None = None) -> None:
        """End a program that still runs: it may save what it has; all that it leaves behind ends with the trial.

        `waits` is a report whose process is told that the trial has ended, and may end by itself.
        """
        soft_s = SOFT_S if waits else 0.0
        with self._listener:
            if waits:
                waits.refuse()
                self._drain(soft_s)
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGTERM)
                self._drain(COMMAND_GRACE_S - soft_s)
                self.process.kill()
            self.process.wait()

    def _drain(self, seconds: float) -> None:
        for each in self.heard(seconds):  # it may print more than a pipe holds
            if isinstance(each, Sent):
                each.refuse()
