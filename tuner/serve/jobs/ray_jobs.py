"""Runs searches as Ray jobs, on the cluster of `--address`."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from tuner.errors import RequestError
from tuner.record.texts import with_extra
from tuner.serve.jobs.local_jobs import JobState

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

STOP_WAIT_S = 120  # seconds until Ray kills a job that should stop; the default, 3, is too short to write the results


class RayJobs:
    """Ray's Jobs API. A call may take seconds; it raises RequestError if the cluster does not answer.

    Args:
        address: an address that `ray job submit --address` accepts.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def nodes(self) -> list[dict[str, float]]:
        """Returns nodes' resources (name -> amount): of living nodes, or of launchable ones if those have more."""
        from ray.util.state import list_nodes
        from ray.util.state.exception import RayStateApiException

        from tuner.engine.cluster.nodes import launchable

        with self._trying("list its nodes", RayStateApiException):
            alive = list_nodes(address=self.address, detail=True, filters=[("state", "=", "ALIVE")])
        there, more = [node.resources_total for node in alive], launchable()
        return max(there, more, key=lambda nodes: sum(node.get("CPU", 0) + node.get("GPU", 0) for node in nodes))

    def submit(self, job: str, arguments: list[str], num_gpus: int) -> None:
        """Starts `tuner.run` with these arguments as the Ray job `job`; Ray itself gives GPUs to the trials."""
        client = self._client
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
        client = self._client
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
        client = self._client
        with self._trying(f"stop {job}"):
            client.stop_job(job)

    @cached_property
    def _client(self) -> JobSubmissionClient:
        with self._trying("accept jobs"):
            from ray.job_submission import JobSubmissionClient

            return JobSubmissionClient(self.address)

    @contextmanager
    def _trying(self, what: str, *more: type[Exception]) -> Iterator[None]:
        """Turns errors of Ray, and errors of the types `more`, into a one-line RequestError: `what` failed, and why."""
        kinds: tuple[type[Exception], ...] = (RuntimeError, ValueError, OSError, *more)  # OSError: from `requests`
        try:
            yield
        except kinds as error:
            message = " ".join(str(error).split()).partition(" Please ")[0][:300]  # without Ray's long advice
            raise RequestError(f"the cluster of --address {self.address} could not {what}: {message}") from error


def missing() -> str:
    """Returns why this installation cannot run jobs on a cluster; empty if it can."""
    # Ray's dashboard contains the Jobs API and needs these packages; without them, Ray does not start the dashboard.
    needed = ("aiohttp", "aiohttp_cors", "opencensus", "prometheus_client")
    lacking = [name for name in needed if importlib.util.find_spec(name) is None]
    if not lacking:
        return ""
    return f"--address needs Ray's dashboard ({', '.join(lacking)} missing): {with_extra('cluster')}"
