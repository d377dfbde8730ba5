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

from benchmarks.search_quality.simulate import Action, Problem

MOST_MESSAGES = 2000  # characters of a library's last messages that an error repeats
SYNE_TUNE = ("uv", "run", "--quiet", "--no-project", "--script", str(Path(__file__).with_name("syne_tune_search.py")))


@lru_cache
class Server:
    """The process of one library, for all searches of this process, because its imports take seconds.

    It ends when this process closes its pipe.
    """

    def __init__(self, *command: str) -> None:
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

    def ask(self, *request: Any) -> Any:
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
            Server.cache_clear()  # the next search starts a new process
            messages = self._messages.read()[-MOST_MESSAGES:]
            raise OSError(f"{' '.join(self._command)} has ended with exit code {code}: {messages}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]


class Remote:
    """A search of a library in its own environment, of a kind that its program knows."""

    def __init__(self, kind: str, problem: Problem, command: tuple[str, ...] = SYNE_TUNE) -> None:
        self._server = Server(*command)
        described = {"space": problem.curves.space, "mode": problem.mode, "max_epochs": problem.max_epochs}
        self._server.ask("start", kind, {**described, "seed": problem.seed})

    def next(self) -> tuple[int, dict[str, Any]] | None:
        following = self._server.ask("next")
        return (following[0], following[1]) if following else None

    def report(self, trial: int, epoch: int, value: float) -> Action:
        action: Action = self._server.ask("report", trial, epoch, value)
        return action
