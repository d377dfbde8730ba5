"""A method that runs in a process and an environment of its own, and speaks JSON lines with this one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.search_quality.problem import Problem
from tuner.spec.rules import Action

MOST_MESSAGES = 2000  # characters of a library's last messages that an error repeats
OPPONENTS = Path(__file__).parent / "opponents"


class Server:
    """The process of one library. It stays for all searches of this process, because its imports take seconds."""

    def __init__(self, command: list[str]) -> None:
        # The script names its own pinned packages; PYTHONPATH would bring this project's instead.
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._command = command
        self._messages = tempfile.TemporaryFile("w+")  # warnings would tear the progress bar
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            env=environment,
        )

    def ask(self, request: list[Any]) -> Any:
        """Sends a request and waits for its answer.

        Raises:
            RuntimeError: the library raised an error.
            OSError: the process has ended.
        """
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(BrokenPipeError):  # the process has ended; its answer is empty
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._messages.seek(0)
            server.cache_clear()  # the next search starts a new process
            messages = self._messages.read()[-MOST_MESSAGES:]
            raise OSError(f"{' '.join(self._command)} has ended with exit code {code}: {messages}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]


@lru_cache
def server(script: str) -> Server:
    """Returns the process of a library; it ends when this process closes its pipe."""
    return Server(["uv", "run", "--quiet", "--no-project", "--script", str(OPPONENTS / script)])


class Remote:
    """A search of a library in its own environment."""

    def __init__(self, process: Server, kind: str, problem: Problem) -> None:
        self._server = process
        self._server.ask(["start", kind, problem.as_json()])

    def next(self) -> tuple[int, dict[str, Any]] | None:
        following = self._server.ask(["next"])
        return (following[0], following[1]) if following else None

    def report(self, trial: int, epoch: int, value: float) -> Action:
        action: Action = self._server.ask(["report", trial, epoch, value])
        return action
