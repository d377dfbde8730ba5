"""Runs expensive requests in one child process: one at a time, with limits on time and memory.

A child process can be killed together with its memory; a thread cannot. The first request starts the process. It keeps
the records that it has read until a request exceeds the limits or its client disconnects; then the service kills it.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tuner.serve.access.state import child_environment
from tuner.serve.answers import BoundedResponse, later, refusal

MOST_S = 30.0  # seconds for one request; a replay of 10,000 trials takes 3 s
MOST_MEMORY = 2 << 30  # bytes of address space; 10,000 trials take 300 MB
MOST_ANSWER = 64 << 20  # bytes of one response
MOST_WAITING = 8  # queued requests, including the one that is being computed
LOOK_S = 0.1  # seconds between two checks whether the client still waits
ALONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # one thread: each stack counts in MOST_MEMORY


class Ended(Exception):
    """No response can be sent: a crash, a limit, or the client has gone; the text says why."""


class Costly:
    """The child process for expensive requests, and their queue.

    Args:
        most_journal: the largest journal, in bytes, that the process reads.
        most_s: seconds that one request may take.
        most_memory: bytes of address space that the process may use.
    """

    def __init__(self, most_journal: int, most_s: float = MOST_S, most_memory: int = MOST_MEMORY) -> None:
        self._bounds = [str(most_s), str(most_memory), str(most_journal)]
        self._most_s = most_s
        self._processes: list[subprocess.Popen[bytes]] = []  # empty, or the one child process
        self._threads = ThreadPoolExecutor(1, "costly")  # one thread; waiting requests are in its queue
        self._waiting = 0
        self._lock = threading.Lock()
        weakref.finalize(self, _end, self._processes)  # kills the process at the latest when the service exits

    async def ask(
        self, request: Request, folder: Path, question: str, choices: dict[str, Any], stopping: Callable[[], bool]
    ) -> Response:
        """Computes a response in the child process.

        The status is 503 if the request takes too much time or memory or its response is too long, if MOST_WAITING
        requests wait, at shutdown, or after a crash.
        """
        with self._lock:
            if self._waiting >= MOST_WAITING:
                return later(f"{MOST_WAITING} analyses are queued, which is the limit; send the request again")
            self._waiting += 1
        gone = threading.Event()
        watch = asyncio.create_task(_until_gone(request, gone))
        line = json.dumps([str(folder), question, choices]).encode() + b"\n"
        try:
            work = self._threads.submit(self._answered, line, lambda: gone.is_set() or stopping())
            work.add_done_callback(self._done)
            status, content = await asyncio.wrap_future(work)
        except Ended as error:
            return refusal(503, str(error))
        finally:
            gone.set()  # ends the work in the thread, also if this task is cancelled at shutdown
            watch.cancel()
        return BoundedResponse(content, status)

    def close(self) -> None:
        """Kills the process; the request that it computes gets status 503."""
        _end(self._processes)

    def _done(self, _: Any) -> None:
        with self._lock:
            self._waiting -= 1

    def _answered(self, line: bytes, is_gone: Callable[[], bool]) -> tuple[int, bytes]:
        """Sends a request to the process and returns the status and content of its response.

        Raises:
            Ended: there is no response. A process that got the request is killed, and the next request starts another.
        """
        until = time.monotonic() + self._most_s
        if is_gone():
            raise Ended("the client has disconnected")
        try:
            process = self._started()
            assert process.stdin and process.stdout
            process.stdin.write(line)
            process.stdin.flush()
            content = b""
            status, length, head = 0, MOST_ANSWER, b""
            parts: list[bytes] = []
            while not head or length > 0:
                if is_gone():
                    raise Ended("the client has disconnected")
                if time.monotonic() > until:
                    raise Ended(f"this analysis takes more than {self._most_s:g} s, which is the limit")
                if not select.select([process.stdout], [], [], LOOK_S)[0]:
                    continue
                piece = os.read(process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise Ended("the process that computes this has ended; send the request again")
                if not head:
                    content += piece
                    head, end, piece = content.partition(b"\n")
                    if not end:
                        head = b""
                        continue
                    status, length = map(int, head.split())
                    if length > MOST_ANSWER:
                        raise Ended(f"the response has {length:,} bytes; the limit is {MOST_ANSWER:,}")
                parts.append(piece)
                length -= len(piece)
        except (Ended, OSError, ValueError) as error:
            _end(self._processes)
            raise Ended(str(error)) from None
        if status == 503:  # the child process has used up its memory and exits
            _end(self._processes)
        return status, b"".join(parts)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._processes and self._processes[0].poll() is None:
            return self._processes[0]
        _end(self._processes)
        env = child_environment() | ALONE
        command = [sys.executable, "-m", "tuner.serve.analysis.questions", *self._bounds]
        # The process gets its own session, so that Ctrl-C reaches only the service. It exits when its stdin is closed.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True, bufsize=0
        )
        self._processes.append(process)
        return process


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Kills the child process in the list, waits for its end, and removes it; does nothing if the list is empty."""
    while processes:
        process = processes.pop()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


async def _until_gone(request: Request, gone: threading.Event) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
