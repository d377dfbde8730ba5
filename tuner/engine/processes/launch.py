"""Starts and reaches the service of a node (`tuner.engine.processes.service`), without an import of Ray or torch."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tuner.engine.processes import service
from tuner.engine.processes.variables import ONE_THREAD
from tuner.errors import RequestError
from tuner.spec.command_process import VARIABLE

MODULES = "ray.tune", "tuner.tuning.trial"  # 2 s; a space that needs more, such as torch, brings it
LOOP = "tuner.training.loop"  # beside torch: the service imports it while Ray starts, instead of each process
STARTS_S = 300.0  # seconds that a service may take to import `MODULES` on a busy machine
BEGIN = "import sys; from tuner.engine.processes.service import main; main(*sys.argv[1:])"
_name = ""  # of the service of the search that this process runs
_root: Root | None = None


class Root(NamedTuple):
    """The process that forks the services of all searches of this process."""

    name: str
    process: subprocess.Popen[bytes]
    stays: bool  # what it has imported is for later searches, too: the program keeps Ray for them


def service_name() -> str:
    """The name of the search's services, one a node, which nobody can guess."""
    return _name or new_name()


def runs() -> bool:
    """Whether the search of this process has a service on this node."""
    return bool(_name)


def new_name() -> str:
    return f"tuner-{secrets.token_hex(16)}"


@contextmanager
def root(imports: Sequence[str]) -> Iterator[None]:
    """Run the process that forks services during a `with` block, unless one runs; it imports `imports` and MODULES.

    It ends with this process at the latest.
    """
    global _root
    if _root is None or _root.process.poll() is not None:
        ray, name = sys.modules.get("ray"), new_name()
        _root = Root(name, launch(name, subprocess.PIPE, imports), bool(ray and ray.is_initialized()))
    try:
        yield
    finally:
        end_root()


def end_root() -> None:
    global _root
    if _root and not _root.stays:
        _root.process.terminate()  # it may still import
        _root.process.communicate()
        _root = None


@contextmanager
def started() -> Iterator[None]:
    """Run a new search's service on this node during a `with` block inside that of `root`."""
    global _name
    assert _root
    name = new_name()
    pool = ThreadPoolExecutor(1, "service")
    client = pool.submit(connected, _root.name, service.SERVE + name.encode(), process=_root.process)
    pool.shutdown(wait=False)  # the search goes on while the service starts
    _name = name
    try:
        yield
    finally:
        _name = ""
        end_root()
        with suppress(OSError), client.result() as connection:
            connection.settimeout(5.0)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # until the service has ended


def launch(name: str, stdin: int, imports: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    """Start a process that serves on the socket `name`; raises RequestError if the system starts none."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for variable in ("PYTHONDONTWRITEBYTECODE", VARIABLE):  # a command's trial may start this search
        environment.pop(variable, None)
    environment.setdefault("PYTHONHASHSEED", "0")  # `process_state` sets it for all other processes of the search
    environment.setdefault("RAY_AUTH_MODE", "token")  # Ray reads it at its import, and sets it for its own processes
    command = [sys.executable, "-c", BEGIN, name, *imports, *MODULES, *([LOOP] if "torch" in imports else [])]
    try:
        return subprocess.Popen(command, stdin=stdin, env=environment, start_new_session=True)
    except OSError as error:
        raise RequestError(f"cannot start a process ({error}); allow more processes, by `ulimit -u`") from error


def connected(
    name: str, wants: bytes, *, starts_after: float = STARTS_S, process: subprocess.Popen[bytes] | None = None
) -> socket.socket:
    """Connect to this node's service, or start one if there is none after `starts_after` seconds.

    Raises ConnectionError if its `process` has ended, or if none answers within STARTS_S.
    """
    began = time.monotonic()
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(f"\0{name}")
            if not service.is_ours(client):
                raise PermissionError(f"another user has the socket {name}")
            client.sendall(wants)
            return client
        except ConnectionError:
            client.close()
            waited = time.monotonic() - began
            if waited > STARTS_S or (process and process.poll() is not None):
                raise
            if waited >= starts_after:
                launch(name, subprocess.DEVNULL)
                starts_after = STARTS_S
        time.sleep(0.02)
