"""Costly questions, answered by one process beside the service: one at a time, within bounds, ended when nobody waits.

A thread cannot be ended, and what it allocates is the service's own memory; a process can, with all that it holds.
The first question starts it; it stays, with the records that it has read, until a question exceeds its bounds.
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

from tuner.serve.answers import Answer
from tuner.serve.bounds import later
from tuner.serve.guard import refusal
from tuner.serve.secret import child_environment

MOST_S = 30.0  # an answer; a replay of 10,000 trials takes 3
MOST_MEMORY = 2 << 30  # bytes of address space; 10,000 trials take 300 MB
MOST_ANSWER = 64 << 20  # bytes
MOST_WAITING = 8  # questions, the one that is being answered among them
LOOK_S = 0.1  # between two looks whether anybody waits
ALONE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each thread's stack counts as memory


class Ended(Exception):
    """The process was ended, or ended itself, before its answer; the text says why."""


class Costly:
    """The process and its queue.

    Args:
        most_journal: bytes of a journal that it reads.
    """

    def __init__(self, most_journal: int, most_s: float = MOST_S, most_memory: int = MOST_MEMORY) -> None:
        self._bounds = [str(most_s), str(most_memory), str(most_journal)]
        self._most_s = most_s
        self._processes: list[subprocess.Popen[bytes]] = []  # none or one
        self._threads = ThreadPoolExecutor(1, "costly")  # its queue is the questions'
        self._waiting = 0
        self._lock = threading.Lock()
        weakref.finalize(self, _end, self._processes)  # at the latest when the service ends

    async def ask(
        self, request: Request, folder: Path, question: str, choices: dict[str, Any], stopping: Callable[[], bool]
    ) -> Response:
        """The answer; 503 where it exceeds its bounds, where many wait already, or where the service is ending."""
        with self._lock:
            if self._waiting >= MOST_WAITING:
                return later(f"{MOST_WAITING} questions wait for their answers already; ask again")
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
            gone.set()  # cancelled too: when the service ends
            watch.cancel()
        return Answer(content, status)

    def close(self) -> None:
        """Ends the process; whoever waits for it is told so."""
        _end(self._processes)

    def _done(self, _: Any) -> None:
        with self._lock:
            self._waiting -= 1

    def _answered(self, line: bytes, is_gone: Callable[[], bool]) -> tuple[int, bytes]:
        """The status and the content; Ended, after which the next question starts a process anew."""
        until = time.monotonic() + self._most_s
        if is_gone():
            raise Ended("nobody waits for the answer any more")
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
                    raise Ended("nobody waits for the answer any more")
                if time.monotonic() > until:
                    raise Ended(f"this takes more than {self._most_s:g} s, which is what an answer may take")
                if not select.select([process.stdout], [], [], LOOK_S)[0]:
                    continue
                piece = os.read(process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise Ended("the process that works this out ended; ask again")
                if not head:
                    content += piece
                    head, end, piece = content.partition(b"\n")
                    if not end:
                        head = b""
                        continue
                    status, length = map(int, head.split())
                    if length > MOST_ANSWER:
                        raise Ended(f"the answer has {length:,} bytes, at most {MOST_ANSWER:,} are sent")
                parts.append(piece)
                length -= len(piece)
        except (Ended, OSError, ValueError) as error:
            _end(self._processes)
            raise Ended(str(error)) from None
        if status == 503:  # its memory is used up, and it ends
            _end(self._processes)
        return status, b"".join(parts)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._processes and self._processes[0].poll() is None:
            return self._processes[0]
        _end(self._processes)
        env = child_environment() | ALONE
        command = [sys.executable, "-m", "tuner.serve.questions", *self._bounds]
        # A session of its own: Ctrl-C is for the service, at whose end its stdin ends.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True, bufsize=0
        )
        self._processes.append(process)
        return process


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends the process, whatever it does, and forgets it."""
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
