"""The service's own Ray cluster on this machine, which listens on loopback only and has its own token.

The cluster outlives the service while a search runs there; the next service finds it through the file `cluster.json`.
Before the service ends the process that the file names, it checks that a service started it.

All searches share one cluster, because child processes with a Ray of their own would not share the machine: beside a
search of higher priority on 2 CPUs, two child processes ran 4 trials at once.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from tuner.errors import RequestError
from tuner.record.storage.files import bytes_in, write_atomically
from tuner.serve.access.state import secret_file

START_S = 120.0  # seconds; a cold start takes 8 to 20 s on two busy cores
END_S = 40.0  # seconds; Ray drains its node for up to 30 s
PREFIX = "tuner-"  # begins the name of a cluster's temporary folder


@dataclass(frozen=True)
class Cluster:
    """A cluster that was started: the process of its head, and the port of its Jobs API."""

    pid: int
    born: float  # start time of the process in unix seconds; it differs if the kernel reuses the process id
    port: int
    folder: str  # path of the folder of Ray's temporary files, deleted when the cluster ends
    token: str  # path of the file with the token

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def headers(self) -> dict[str, str]:
        """Returns the headers that authorise a request to the Jobs API."""
        return {"Authorization": f"Bearer {Path(self.token).read_text()}"}

    def head(self) -> psutil.Process | None:
        """Returns the cluster's head if it still runs: a process with its id, start time, user and command line."""
        try:
            head = psutil.Process(self.pid)
            # The kernel counts from the boot, whose time moves with the clock.
            is_ours = abs(head.create_time() - self.born) < 10 and head.uids().effective == os.geteuid()
            return head if is_ours and f"--temp-dir={self.folder}/ray" in head.cmdline() else None
        except (psutil.Error, ValueError, OverflowError):
            return None

    def end(self) -> None:
        """Ends the head, which ends its processes; waits up to END_S for that, and deletes Ray's temporary files."""
        if head := self.head():
            head.terminate()
            psutil.wait_procs([head], END_S)
        folder = Path(self.folder)
        if folder.parent == Path(tempfile.gettempdir()) and folder.name.startswith(PREFIX):
            shutil.rmtree(folder, ignore_errors=True)  # deletes no link and nothing behind one


def find(state: Path) -> Cluster | None:
    """Returns the running cluster that a service with this state folder started; None if there is none.

    Prints a line if the cluster's file is damaged.
    """
    path = state / "cluster.json"
    try:
        cluster = TypeAdapter(Cluster).validate_json(bytes_in(state, path.name), strict=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        print(f"{path} is damaged; the Ray cluster that it named is not ended", file=sys.stderr, flush=True)
        return None
    return cluster if cluster.head() else None


def start(state: Path, num_cpus: float, num_gpus: float) -> Cluster:
    """Starts a cluster with these resources; raises RequestError if it does not accept jobs within START_S."""
    token = secret_file(state / "ray_token")
    folder = tempfile.mkdtemp(prefix=PREFIX)  # a short path, because that of a Unix socket has at most 107 characters
    with ExitStack() as listeners:
        opened = [listeners.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        port, client, agent = (listener.getsockname()[1] for listener in opened)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--port=0", "--node-ip-address=127.0.0.1"]
    command += [f"--dashboard-port={port}", "--dashboard-host=127.0.0.1", f"--ray-client-server-port={client}"]
    # The dashboard agent starts jobs. On its default port, 52365, it would never answer beside another Ray cluster.
    command += [f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}/ray"]
    command += ["--include-dashboard=true", f"--num-cpus={num_cpus:g}", f"--num-gpus={num_gpus:g}"]
    # RAY_ADDRESS and RAY_AUTH_TOKEN name another cluster; Ray prefers RAY_AUTH_TOKEN to the file.
    env = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    # With this variable, Ray uses 127.0.0.1 as the node's address and binds every port there. Without it, `ray start`
    # listens on all interfaces, whatever --node-ip-address says.
    env |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    with open(state / "cluster.log", "wb") as log:
        # The cluster runs in its own session: Ctrl-C in the service's terminal ends neither it nor the searches in it.
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    cluster = Cluster(process.pid, psutil.Process(process.pid).create_time(), port, folder, str(token))
    write_atomically(state / "cluster.json", json.dumps(asdict(cluster)))
    until = time.monotonic() + START_S
    while not _answers(cluster):
        if process.poll() is not None or time.monotonic() > until:
            cluster.end()
            raise RequestError(f"Ray did not start on this machine; see {state}/cluster.log")
        time.sleep(0.2)
    return cluster


def _answers(cluster: Cluster) -> bool:
    request = urllib.request.Request(f"{cluster.url}/api/jobs/", headers=cluster.headers())
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
