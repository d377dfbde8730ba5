"""Runs expensive requests in one child process: one at a time, with limits on time and memory.

A child process can be killed together with its memory; a thread cannot. The first request starts the process. It keeps
the records that it has read until a request exceeds the limits or its client disconnects; then the service kills it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tuner.serve.answers import BoundedResponse, later, refusal

MOST_S = 30.0  # seconds for one request; a replay of 10,000 trials takes 3 s
MOST_MEMORY = 2 << 30  # bytes of address space; 10,000 trials take 300 MB
MOST_WAITING = 8  # queued requests, including the one that is being computed
LOOK_S = 0.1  # seconds between two checks whether the client still waits
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each thread's stack counts in MOST_MEMORY


class AnalysisWorker:
    """The child process for expensive requests, and their queue.

    Args:
        most_journal: the largest journal, in bytes, that the process reads.
        most_s: seconds that one request may take.
        most_memory: bytes of address space that the process may use.
    """

    def __init__(self, most_journal: int, most_s: float = MOST_S, most_memory: int = MOST_MEMORY) -> None:
        self._limits = [str(most_s), str(most_memory), str(most_journal)]
        self._most_s = most_s
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "analysis")  # its queue has the waiting requests
        self._places = threading.Semaphore(MOST_WAITING)

    async def ask(
        self, request: Request, folder: Path, analysis: str, choices: dict[str, Any], stopping: Callable[[], bool]
    ) -> Response:
        """Computes a response in the child process.

        The status is 503 if the request takes too much time or memory, if MOST_WAITING requests wait, at shutdown, or
        after a crash.
        """
        if not self._places.acquire(blocking=False):
            return later(f"{MOST_WAITING} analyses are queued, which is the limit; send the request again")
        gone = threading.Event()
        work = self._thread.submit(self._answer, (str(folder), analysis, choices), gone)
        work.add_done_callback(lambda _: self._places.release())
        answered = asyncio.wrap_future(work)
        try:
            while not (await asyncio.wait([answered], timeout=LOOK_S))[0]:
                if stopping() or await request.is_disconnected():
                    gone.set()
            status, text = await answered
        except (TimeoutError, EOFError, OSError) as error:
            return refusal(503, str(error) or "the process of this analysis has ended; send the request again")
        finally:
            gone.set()  # ends the work in the thread, also if this task is cancelled at shutdown
        return BoundedResponse(text, status)

    def _answer(self, asked: tuple[str, str, dict[str, Any]], gone: threading.Event) -> tuple[int, bytes]:
        """Sends a request to the process and returns the status and text of its response.

        Raises:
            TimeoutError: the client has gone, or the time is over. The process is killed; the next request starts one.
            EOFError, OSError: the process has crashed.
        """
        until = time.monotonic() + self._most_s
        if self._process is None or self._process.poll() is not None:
            self._start()
        try:
            self._pipe.send(asked)
            while not self._pipe.poll(LOOK_S):
                if gone.is_set():
                    raise TimeoutError("the client has disconnected, or the service is shutting down")
                if time.monotonic() > until:
                    raise TimeoutError(f"this analysis takes more than {self._most_s:g} s, which is the limit")
            status, text = self._pipe.recv()
        except (EOFError, OSError):
            self._end()
            raise
        if status == 503:  # the process has used up its memory and exits
            self._end()
        return status, text

    def _start(self) -> None:
        """Starts the process. It has its own session, so that Ctrl-C reaches only the service.

        It exits when the service's end of the pipe is closed.
        """
        self._pipe, childs = Pipe()
        with childs:
            command = [sys.executable, "-m", "tuner.serve.analysis.analyses", str(childs.fileno()), *self._limits]
            self._process = subprocess.Popen(
                command,
                env=os.environ | ONE_THREAD,
                stdin=subprocess.DEVNULL,
                pass_fds=[childs.fileno()],
                start_new_session=True,
            )

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._pipe.close()
