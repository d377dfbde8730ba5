"""Runs searches as Ray jobs, on the cluster of `--address` or on the service's own cluster, which starts on demand.

The service's own cluster runs on this machine, listens on loopback only and has its own token. It outlives the service
while a search runs there; the next service finds it through the file `cluster.json`. Before a service ends the process
that this file names, it checks that a service started that process.

All searches share one cluster. If each search started a Ray of its own in a child process, each would use all CPUs of
the machine: on 2 CPUs, two such searches ran 4 trials at once, although one search had a higher priority.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil
from pydantic import TypeAdapter

from tuner.errors import RequestError
from tuner.record.storage.files import bytes_in, secret_file, write_atomically
from tuner.record.storage.made import MadeFolder, temporary_folder
from tuner.record.texts import with_extra

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

STOP_WAIT_S = 120  # seconds until Ray kills a job that should stop; the default, 3, is too short to write the results
START_S = 120.0  # seconds for a cluster to start; a cold start takes 8 to 20 s on two busy cores
END_S = 40.0  # seconds for a cluster to end; Ray drains its node for up to 30 s
PREFIX = "tuner."  # begins the name of a cluster's temporary folder; no search removes stale folders of this name


@dataclass(frozen=True)
class Cluster:
    """A cluster that a service started: the process of its head, and the port of its Jobs API."""

    pid: int
    born: float  # start time of the process in unix seconds; it differs if the kernel reuses the process id
    port: int
    folder: str  # path of the folder of Ray's temporary files, deleted when the cluster ends
    token: str  # path of the file with the token

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {Path(self.token).read_text()}"}

    def head(self) -> psutil.Process | None:
        """Returns the head's process if one runs with this id, start time, user and command line."""
        try:
            head = psutil.Process(self.pid)
            # The start time may differ by seconds: the kernel counts from the boot time, which moves with the clock.
            is_ours = abs(head.create_time() - self.born) < 10 and head.uids().effective == os.geteuid()
            return head if is_ours and f"--temp-dir={self.folder}/ray" in head.cmdline() else None
        except (psutil.Error, ValueError, OverflowError):
            return None

    def end(self) -> None:
        """Ends the head process, which ends the cluster; waits up to END_S; deletes Ray's temporary files."""
        if head := self.head():
            head.terminate()
            psutil.wait_procs([head], END_S)
        with suppress(OSError, ValueError):  # it is gone, or none that a service has made
            MadeFolder(Path(self.folder).parent, Path(self.folder).name).remove()


def find_cluster(state: Path) -> Cluster | None:
    """Returns the running cluster of a state folder, or None; prints a line if the cluster's file is damaged."""
    path = state / "cluster.json"
    try:
        cluster = TypeAdapter(Cluster).validate_json(bytes_in(state, path.name), strict=True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        print(f"{path} is damaged; the Ray cluster that it named is not ended", file=sys.stderr, flush=True)
        return None
    return cluster if cluster.head() else None


def start_cluster(state: Path, num_cpus: float, num_gpus: float) -> Cluster:
    """Starts a cluster with these resources; raises RequestError if it does not accept jobs within START_S."""
    token = secret_file(state / "ray_token")
    folder = str(temporary_folder(PREFIX).path)  # short, because the path of a Unix socket has at most 107 characters
    with ExitStack() as listeners:
        opened = [listeners.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        port, client, agent = (listener.getsockname()[1] for listener in opened)
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--port=0", "--node-ip-address=127.0.0.1"]
    command += [f"--dashboard-port={port}", "--dashboard-host=127.0.0.1", f"--ray-client-server-port={client}"]
    # The dashboard agent starts jobs. It gets its own port, because another cluster here may have the default, 52365.
    command += [f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}/ray"]
    command += ["--include-dashboard=true", f"--num-cpus={num_cpus:g}", f"--num-gpus={num_gpus:g}"]
    # RAY_ADDRESS and RAY_AUTH_TOKEN belong to another cluster; Ray would use RAY_AUTH_TOKEN instead of the token file.
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


@dataclass(frozen=True)
class JobState:
    """The state of a job; `last_line` is the last line of Ray's message: after a failure, the job's last output."""

    state: Literal["active", "stopped", "ended", "lost"]
    exit_code: int | None = None
    last_line: str = ""


class RayJobs:
    """Ray's Jobs API. A call may take seconds; it raises RequestError if the cluster does not answer.

    Args:
        address: an address that `ray job submit --address` accepts; empty = the service's own cluster.
        state: the folder for the files of the service's own cluster.
    """

    def __init__(self, address: str, state: Path) -> None:
        self.address, self._state = address, state
        self._client: JobSubmissionClient | None = None  # client of the cluster of --address

    def nodes(self) -> list[dict[str, float]]:
        """Returns nodes' resources (name -> amount): of living nodes, or of launchable ones if those have more."""
        if not self.address:
            from tuner.engine.local.alone import local_cluster

            return [local_cluster()]
        from ray.util.state import list_nodes
        from ray.util.state.exception import RayStateApiException

        from tuner.engine.cluster.nodes import launchable

        with self._trying("list its nodes", RayStateApiException):
            alive = list_nodes(address=self.address, detail=True, filters=[("state", "=", "ALIVE")])
        there, more = [node.resources_total for node in alive], launchable()
        return max(there, more, key=lambda nodes: sum(node.get("CPU", 0) + node.get("GPU", 0) for node in nodes))

    def submit(self, job: str, arguments: list[str]) -> None:
        """Starts `tuner.run` with these arguments as the Ray job `job`; starts the service's own cluster if needed."""
        client = self._connected(start=True)
        assert client
        # The command names Python by its path, because the PATH of a Ray job may lead to a Python without ray. `exec`
        # replaces the job's shell, so that Ray's signal reaches the search.
        command = shlex.join([sys.executable, "-m", "tuner.run", *arguments, "--address=auto"])
        wait = {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}
        with self._trying(f"start {job}"):
            try:
                client.submit_job(entrypoint=f"exec {command}", submission_id=job, runtime_env={"env_vars": wait})
            except RuntimeError as error:
                if "already exists" not in str(error):  # an earlier try succeeded, but its response was lost
                    raise

    def job_state(self, job: str) -> JobState:
        client = self._connected()
        if client is None:
            return JobState("lost")
        with self._trying(f"report the state of {job}"):
            try:
                details = client.get_job_info(job)
            except RuntimeError as error:
                if "status code 404" in str(error):
                    return JobState("lost")
                raise
        if not details.status.is_terminal():
            return JobState("active")
        if details.status == "STOPPED":
            return JobState("stopped")
        lines = [line.strip() for line in (details.message or "").splitlines() if line.strip()]
        return JobState("ended", details.driver_exit_code, lines[-1] if lines else "")

    def stop(self, job: str) -> None:
        """Stops a job as Ctrl-C does, so that the search can be resumed; does not wait until the job has ended."""
        client = self._connected()
        if client is not None:
            with self._trying(f"stop {job}"):
                client.stop_job(job)

    def close(self) -> None:
        """Ends the service's own cluster; the caller must know that no search runs there."""
        if not self.address and (own := find_cluster(self._state)):
            own.end()

    def _connected(self, start: bool = False) -> JobSubmissionClient | None:
        """Returns the client of Ray's Jobs API; None if the service's own cluster does not run and `start` is False."""
        with self._trying("accept jobs"):
            from ray.job_submission import JobSubmissionClient

            if self.address:
                self._client = self._client or JobSubmissionClient(self.address)
                return self._client
            own = find_cluster(self._state)
            if own is None and start:
                (there,) = self.nodes()
                own = start_cluster(self._state, there["CPU"], there["GPU"])
            return JobSubmissionClient(own.url, headers=own.headers()) if own else None

    @contextmanager
    def _trying(self, what: str, *more: type[Exception]) -> Iterator[None]:
        """Turns errors of Ray, and errors of the types `more`, into a one-line RequestError: `what` failed, and why."""
        kinds: tuple[type[Exception], ...] = (RuntimeError, ValueError, OSError, *more)  # OSError: from `requests`
        try:
            yield
        except kinds as error:
            where = f"the cluster of --address {self.address}" if self.address else "Ray on this machine"
            message = " ".join(str(error).split()).partition(" Please ")[0][:300]  # without Ray's long advice
            raise RequestError(f"{where} could not {what}: {message}") from error


def missing() -> str:
    """Returns why this installation cannot run jobs; empty if it can."""
    # Ray's dashboard contains the Jobs API and needs these packages; without them, Ray does not start the dashboard.
    needed = ("aiohttp", "aiohttp_cors", "opencensus", "prometheus_client")
    lacking = [name for name in needed if importlib.util.find_spec(name) is None]
    if not lacking:
        return ""
    return f"starting searches needs Ray's dashboard ({', '.join(lacking)} missing): {with_extra('cluster')}"
