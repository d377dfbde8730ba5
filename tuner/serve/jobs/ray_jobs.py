"""Runs searches as Ray jobs, on the cluster of `--address` or on the service's own cluster, started on demand."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tuner.errors import RequestError
from tuner.serve.jobs import cluster as clusters

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

STOP_WAIT_S = 120  # seconds until Ray kills a stopped job; by default 3, but writing the answer and W&B takes longer


@dataclass(frozen=True)
class JobState:
    """The state of a job; `last_line` is that of Ray's message, which ends with a failed job's output."""

    state: Literal["active", "stopped", "ended", "lost"]
    exit_code: int | None = None
    last_line: str = ""


class RayJobs:
    """Ray's Jobs API. A call may take seconds; it raises RequestError if the cluster does not answer.

    Args:
        address: the dashboard of a running cluster (`http://host:8265`), or any other address that
            `ray job submit --address` accepts; empty = the service's own cluster on this machine.
        state: the folder for the files of the service's own cluster.
    """

    def __init__(self, address: str, state: Path) -> None:
        self.address, self._state = address, state
        self._client: JobSubmissionClient | None = None  # of the cluster of --address

    def nodes(self) -> list[dict[str, float]]:
        """Returns the resources (name -> amount) of each node that the cluster has or that an autoscaler may add."""
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
        """Starts `tuner.run` with these arguments as a job with the id `job`."""
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
        """Returns the state of a job; it is lost if its cluster is gone."""
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
        """Stops a job as Ctrl-C does, so that the search can be resumed; returns at once."""
        client = self._connected()
        if client is not None:
            with self._trying(f"stop {job}"):
                client.stop_job(job)

    def close(self) -> None:
        """Ends the service's own cluster; the caller ensures that no search runs there."""
        if not self.address and (own := clusters.find(self._state)):
            own.end()

    def _connected(self, start: bool = False) -> JobSubmissionClient | None:
        """Returns the client of Ray's Jobs API; None if the service's own cluster does not run and is not started."""
        with self._trying("accept jobs"):
            from ray.job_submission import JobSubmissionClient

            if self.address:
                self._client = self._client or JobSubmissionClient(self.address)
                return self._client
            own = clusters.find(self._state)
            if own is None and start:
                (there,) = self.nodes()
                own = clusters.start(self._state, there["CPU"], there["GPU"])
            return JobSubmissionClient(own.url, headers=own.headers()) if own else None

    @contextmanager
    def _trying(self, what: str, *more: type[Exception]) -> Iterator[None]:
        """Turns Ray's errors, and those of the types `more`, into RequestErrors of one line."""
        kinds: tuple[type[Exception], ...] = (RuntimeError, ValueError, OSError, *more)  # OSError: of library requests
        try:
            yield
        except kinds as error:
            where = f"the cluster of --address {self.address}" if self.address else "Ray on this machine"
            message = " ".join(str(error).split()).partition(" Please ")[0][:300]  # without Ray's long advice
            raise RequestError(f"{where} could not {what}: {message}") from error


def missing() -> str:
    """Returns why this installation cannot run jobs; an empty text if it can."""
    # Ray's dashboard contains the Jobs API and needs these packages; without them it starts a stub that accepts no job.
    needed = ("aiohttp", "aiohttp_cors", "opencensus", "prometheus_client")
    lacking = [name for name in needed if importlib.util.find_spec(name) is None]
    if not lacking:
        return ""
    return (
        f"starting searches needs Ray's dashboard ({', '.join(lacking)} missing): begin the command with "
        f"`uv run --extra cluster`, or without uv: pip install -e '.[cluster]' -c constraints.txt"
    )
