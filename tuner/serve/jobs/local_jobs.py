"""Runs searches on this machine, each as a child process: `python -m tuner.run`.

A child has a session of its own, so it continues when the service ends. The next service finds it by an environment
variable that only a service sets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

# Environment variables of a search's process: the path of the file with its output, and the ids of its GPUs.
LOG, GPUS = "TUNER_SERVE_LOG", "TUNER_SERVE_GPUS"
VISIBLE = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"  # of NVIDIA and of AMD


@dataclass(frozen=True)
class JobState:
    """The state of a search's job; `message` says why it failed. Of a lost job, nobody knows how it ended."""

    state: Literal["active", "stopped", "ended", "lost"]
    exit_code: int | None = None
    message: str = ""


class LocalJobs:
    """The processes of the searches on this machine. The id of a job is the name of its search.

    Args:
        folder: where each job's output is written, to JOB.log.
    """

    address = ""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, psutil.Process] = {}
        self._gpus: dict[str, list[str]] = {}

    def nodes(self) -> list[dict[str, float]]:
        """Return one node: the CPUs and GPUs that the service may use."""
        from tuner.engine.local.alone import local_cluster  # imports ray

        return [local_cluster()]

    def submit(self, job: str, arguments: list[str], num_gpus: int) -> None:
        """Start `tuner.run` with these arguments; it sees `num_gpus` GPUs that no other job sees."""
        from tuner.engine.local.alone import visible_gpus

        gpus = visible_gpus()
        taken = {gpu for running in self._processes for gpu in self._gpus[running]}
        self._gpus[job] = [gpu for gpu in gpus if gpu not in taken][:num_gpus]
        env = {**os.environ, LOG: str(self._log(job)), GPUS: ",".join(self._gpus[job])}
        if gpus:
            env |= dict.fromkeys(VISIBLE, env[GPUS])
        command = [sys.executable, "-m", "tuner.run", *arguments, "--address="]
        with open(self._log(job), "wb") as log:
            self._processes[job] = psutil.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def job_state(self, job: str) -> JobState:
        process = self._process(job)
        if process is None:
            return JobState("lost")
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                return JobState("active")
        del self._processes[job]
        if not isinstance(process, psutil.Popen):  # only the parent is told the exit code
            return JobState("lost")
        code = int(process.wait())
        output = self._log(job).read_text(errors="replace") if code == 2 else ""  # a refused request: a few lines
        return JobState("ended", code, output.strip().rpartition("\n")[2])

    def stop(self, job: str) -> None:
        """Stop a job as Ctrl-C does, so that the search can be resumed; does not wait until the job has ended."""
        if process := self._process(job):
            with suppress(psutil.NoSuchProcess):
                process.terminate()

    def _process(self, job: str) -> psutil.Process | None:
        """Return a job's process, also if an earlier service started it; None if it has ended."""
        if job not in self._processes:
            for process in psutil.process_iter():
                environment = _environment(process)
                if environment.get(LOG) == str(self._log(job)):
                    self._processes[job], self._gpus[job] = process, environment[GPUS].split(",")
                    break
        return self._processes.get(job)

    def _log(self, job: str) -> Path:
        return self._folder / f"{job}.log"


def _environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a search's process; empty for another process, or one that has ended."""
    with suppress(psutil.Error):
        # The search's own children inherit the environment.
        if process.uids().effective == os.geteuid() and process.cmdline()[1:3] == ["-m", "tuner.run"]:
            return dict(process.environ())
    return {}
