"""Starts the processes of a Ray for one search on this machine, and tells why they did not start.

`ray.init` has no option to leave out four services for clusters: the autoscaler's monitor, a reduced dashboard, the log
monitor, and the dashboard's agent (ray 2.60). Without the first three, Ray starts in 1.4 s instead of 2.2 s and ends in
0.1 s instead of 1.4 s.

On a busy machine Ray gives up too early: the raylet aborts if its agents take 15 s to write their ports into files,
and `ray.init` waits up to 30 s, even for a raylet that has ended. No setting changes these limits.
So `LocalNode` chooses the ports, and waits up to 300 s for a raylet that lives.

If a process of Ray's ends later, Ray's C++ core ends this process without a word: 1 s to 13 s after the raylet, 60 s
after the GCS (measured). `watched` says how to continue.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from ray._private import node, ray_constants, services, worker
from ray._raylet import persist_port  # type: ignore[attr-defined]
from ray.exceptions import RpcError

from tuner.engine.local.signals import lost, ray_starts, recorded

REGISTRATION_TIMEOUT_S = 300.0  # seconds in which a raylet that lives must register
POLL_INTERVAL_S = 0.05  # seconds between two checks of the raylet; a check takes 1 ms
# Prints the last line that it has read, unless that is empty. No signal that a terminal sends ends it earlier.
WATCHDOG = (
    'trap "" HUP INT TERM; while read -r line; do last=$line; done; [ -z "$last" ] || printf "\\n%s\\n" "$last" >&2'
)
# Kills the process $0 if it goes on for 12 s after its GCS $1 or raylet $2 has ended. Normally `watched` acts within
# STUCK_S, but Ray's C++ code keeps Python's lock up to 300 s if the raylet ends just before Ray connects to it.
DEAF_DOG = """trap "" HUP INT TERM
lives() { case $(cat /proc/$1/stat 2>/dev/null) in "" | *") Z "*) return 1; esac; }
late=0
while sleep 1 && lives $0; do
  late=$((late + 1)); lives $1 && lives $2 && late=0
  [ $late -lt 12 ] || { kill -9 $0; exit; }
done"""
WATCH_INTERVAL_S = 1.0  # between two looks at Ray's processes; also the time in which a signal can explain their end
ANSWER_S = 5.0  # seconds in which the GCS must answer a check
STUCK_S = 10.0  # seconds in which a start of Ray must have failed after one of its processes has ended; > ANSWER_S
# Ray's parameters for ports. If one is None, its process chooses a port, and others wait for a file with the number.
PORTS = "gcs_server", "metrics_agent", "metrics_export", "dashboard_agent_listen", "runtime_env_agent"  # without _port
AGENT = "--dashboard_agent_command="  # the raylet's option; it must name a process that lives as long as the raylet
# Reads its standard input, which the raylet keeps open; sh ignores the options that Ray adds. Ray's own agent answers
# every user of this machine without a token: figures on all processes at one port, the raylet's health at another. A
# search needs nothing of it, and it takes 130 MB and 1.2 s of CPU time.
STAND_IN = "sh -c 'exec cat'"
LOGS = "raylet", "gcs_server", "runtime_env_agent", "dashboard_agent"  # logs of Ray, without .out, .err or .log
LOG_TAIL_BYTES = 256 * 1024  # bytes that are read from the end of each log
# Patterns of the log line that names the cause, best first: Ray's fatal lines, a signal, errors of Ray or of Python.
CAUSES = r"Check failed|^\[[^]]* C ", r"\bSIG[A-Z]{3,}|Segmentation fault", r"^\[[^]]* E |^\w*(Error|Exception): "
# Errors that another folder for Ray's files and sockets would repair.
OF_THE_FOLDER = r"path length|File name too long|Not a directory|File exists|No space left|Read-only|Permission denied"
NOISE = r"^\[[^]]*\] |An unexpected system state has occurred.*?with you to fix it\. "  # cut from a log's line
MAX_LOG_LINE_CHARS = 300  # maximum characters of a log's line in an error text


class LocalNode(node.Node):
    """A Ray node without services for clusters; its start raises an error as soon as a process has ended."""

    ports: Sequence[int]  # one for each of `PORTS`
    processes: Sequence[subprocess.Popen[bytes]] = ()  # those that `local_node` has started
    guard: ExitStack  # has `killed_if_deaf` until Ray has started

    def __init__(self, ray_params: Any, **options: Any) -> None:
        ports = {f"{name}_port": port for name, port in zip(PORTS, self.ports, strict=True)}
        vars(ray_params).update(ports, include_log_monitor=False, no_monitor=True)
        try:
            super().__init__(ray_params, **options)
        except BaseException:
            self.kill_all_processes(check_alive=False, wait=True)
            raise

    def start_api_server(self, **options: Any) -> None:
        self._webui_url = ""

    def start_raylet(self, *arguments: Any, **options: Any) -> None:
        """Starts the raylet, and waits until it has registered; ChildProcessError or TimeoutError if it does not."""
        # Ray gives only the agent this port. The raylet reads it from this file, which the agent later overwrites.
        listens = self.ports[PORTS.index("dashboard_agent_listen")]
        persist_port(self._session_dir, self._node_id, "dashboard_agent_listen_port", listens)
        with mock.patch.object(services, "start_ray_process", partial(without_agent, services.start_ray_process)):
            super().start_raylet(*arguments, **options)
        self.guard.enter_context(killed_if_deaf(self.processes))
        end = time.monotonic() + REGISTRATION_TIMEOUT_S
        while True:
            if dead := self.dead_processes():  # first, because a GCS that has ended costs ANSWER_S
                raise ChildProcessError(" and ".join(ending(name, process.returncode) for name, process in dead))
            if self.has_registered():
                return
            if time.monotonic() > end:
                raise TimeoutError(f"Ray's raylet lives, but has not registered within {REGISTRATION_TIMEOUT_S:.0f} s")
            time.sleep(POLL_INTERVAL_S)

    def has_registered(self) -> bool:
        try:
            nodes = self.get_gcs_client().get_all_node_info(timeout=ANSWER_S)
        except RpcError:  # the GCS is slow, or has ended
            return False
        return any(each.hex() == self._node_id for each in nodes)


def without_agent(start: Callable[..., Any], command: list[str], *arguments: Any, **options: Any) -> Any:
    """Starts the raylet with `STAND_IN` instead of its dashboard agent; `start` is Ray's function."""
    return start([*(word for word in command if not word.startswith(AGENT)), AGENT + STAND_IN], *arguments, **options)


@contextmanager
def killed_if_deaf(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Run `DEAF_DOG` during a `with` block, for the GCS and the raylet that this process has started."""
    none, words = subprocess.DEVNULL, ["sh", "-c", DEAF_DOG, str(os.getpid()), *(str(each.pid) for each in processes)]
    dog = subprocess.Popen(words, stdin=none, stdout=none, stderr=none)
    try:
        yield
    finally:
        dog.kill()
        dog.wait()


@contextmanager
def local_node() -> Iterator[ExitStack]:
    """Makes a `ray.init` in the `with` block start a `LocalNode` on 127.0.0.1, whose processes are `recorded`.

    Yields the guard of this start, which is to be closed as soon as `ray.init` has returned.
    Bound sockets reserve its ports until the block ends, since agents bind theirs some seconds after `ray.init`.
    """
    with ExitStack() as stack:
        processes: list[subprocess.Popen[bytes]] = []
        LocalNode.processes, LocalNode.guard = processes, stack.enter_context(ExitStack())
        start = partial(recorded, services.start_ray_process, processes)
        stack.enter_context(mock.patch.object(services, "start_ray_process", start))
        sockets = [stack.enter_context(socket.socket()) for _ in PORTS]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # so that Ray's processes can bind the port, too
            each.bind(("127.0.0.1", 0))
        LocalNode.ports = [each.getsockname()[1] for each in sockets]
        stack.enter_context(mock.patch.object(node, "Node", LocalNode))
        # Otherwise Ray listens on all interfaces. Its environment variable is too late: Ray read it at import.
        stack.enter_context(mock.patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False))
        yield LocalNode.guard


@contextmanager
def start_watched(advice: str = "start the search again") -> Iterator[None]:
    """Ends a start of Ray, in the `with` block, that hangs: Ray's C++ code waits 300 s for a process that has ended.

    It waits for a GCS or raylet that ends after `LocalNode` has seen it alive, or else ends this process by SIGABRT.
    The line that is then printed ends with `advice`.
    """
    first: dict[int, float] = {}  # the number of a process -> when it was first seen to have ended

    def dead() -> list[tuple[str, subprocess.Popen[bytes]]]:
        ended = [each for each in LocalNode.processes if each.poll() is not None]
        since = [first.setdefault(each.pid, time.monotonic()) for each in ended]
        late = since and time.monotonic() > min(since) + STUCK_S
        return [(Path(each.args[0]).name, each) for each in ended] if late else []  # type: ignore[index, arg-type]

    with ray_starts(), watched(lambda: f"no trial had started; {advice}", dead):
        yield


@contextmanager
def watched(
    how_to_continue: Callable[[], str], dead_processes: Callable[[], Sequence[tuple[str, Any]]] | None = None
) -> Iterator[None]:
    """Says how to continue a search if Ray or this process dies in the `with` block.

    If the raylet or the GCS ends, `lost` names it and ends this process. But Ray's core may end this process first: it
    does when it next needs the object store of a raylet that has ended. So a child, `WATCHDOG`, prints the text that it
    read last as soon as its standard input ends. This also covers a SIGKILL of this process.
    """
    dead_processes = dead_processes or worker._global_node.dead_processes
    over, told = threading.Event(), ""
    dog = subprocess.Popen(["sh", "-c", WATCHDOG], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def tell(text: str) -> None:
        with suppress(BrokenPipeError):  # the child was killed
            os.write(dog.stdin.fileno(), f"{text}\n".encode())  # type: ignore[union-attr]

    def watch() -> None:
        nonlocal told
        while not over.wait(WATCH_INTERVAL_S):
            if (text := how_to_continue()) != told:
                told = text
                tell(f"tuner: the search or its Ray was killed; {text}")
            if (dead := dead_processes()) and not over.wait(WATCH_INTERVAL_S):
                return lose(dead)

    def lose(dead: Sequence[tuple[str, Any]]) -> None:
        names = " and ".join(ending(name, process.returncode) for name, process in dead)
        lost(f"tuner: {names}; {how_to_continue()}")

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    except Exception:
        if dead := dead_processes():  # which may have caused the error: a Ray without its raylet has 0 CPUs
            over.set()
            lose(dead)
        raise
    finally:
        over.set()
        thread.join()
        tell("")
        dog.communicate()


def ending(name: str, code: int) -> str:
    """Says how one of Ray's processes ended, such as `Ray's raylet was ended by SIGABRT`."""
    return f"Ray's {name} " + (f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}")


def cause_in_logs(folder: str) -> str:
    """Returns the line of a log in Ray's folder that says why Ray ended, after the log's name; empty if none does."""
    lines = []
    for path in (path for name in LOGS for path in sorted(Path(folder).glob(f"session_2*/logs/{name}.*"))):
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            lines += [(path.name, line) for line in file.read(LOG_TAIL_BYTES).decode(errors="replace").splitlines()]
    named = (each for cause in CAUSES for each in lines if re.search(cause, each[1]))
    name, line = next(named, ("", ""))
    return f"{name}: {re.sub(NOISE, '', line).strip()[:MAX_LOG_LINE_CHARS]}" if name else ""
