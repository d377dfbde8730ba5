"""Starts, stops and resumes searches on request: checks them with the command line's code, queues them, submits jobs.

A request only checks a search and writes it to the queue; one background thread submits and stops jobs. The whole state
is in files, so the next service continues with the queue and with the searches that still run.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tuner.errors import RequestError
from tuner.record.saved_experiment import load_experiment
from tuner.serve.check import ELSEWHERE
from tuner.serve.jobs import Jobs, JobState
from tuner.serve.older import bring
from tuner.serve.options import resume_arguments, start_arguments
from tuner.serve.queue import ACTIVE, Queue, Search, TooLarge, startable
from tuner.serve.secret import child_environment

PAUSE_S = 1.0  # between two checks of the jobs that run or wait
AFTER_ERROR_S = 3.0  # before the retry if the cluster did not answer
IDLE_S = 300.0  # without a search, until the service ends its own Ray cluster, which uses about 1 GB
MOST_WAITING = 1000
MOST_CHECKS = 4  # concurrent checks; each is a process that imports ray and torch
CHECK_S = 120.0
NO_DATA_DIR = "--data-dir="  # empty = each space's default; always passed, or a resume would use the path in its folder

Check = Callable[[list[str]], dict[str, Any]]


class Refused(RequestError):
    """A request that the service cannot fulfil now; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def checked_options(arguments: list[str]) -> dict[str, Any]:
    """Checks arguments of `tuner.run` in a child process; returns the experiment's fields with defaults filled in.

    Raises:
        RequestError: an argument is wrong; the text is that of `tuner.run`.
        Refused: the check failed or took more than CHECK_S.
    """
    command = [sys.executable, "-m", "tuner.serve.check", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=CHECK_S,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired:
        raise Refused(503, f"checking the request took more than {CHECK_S:g} s; try again") from None
    if done.returncode == 0:
        options: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return options
    lines = done.stderr.strip().splitlines()
    if done.returncode == 2 and lines and lines[-1].startswith("tuner: error: "):
        raise RequestError(lines[-1].removeprefix("tuner: error: "))
    print(done.stderr, file=sys.stderr, flush=True)
    raise Refused(503, f"checking the request failed (exit code {done.returncode}); see the service's output")


class Searches:
    """The searches that this service was asked to run.

    Args:
        results: the folder that searches write to.
        state: the service's own folder (`tuner.serve.state`).
        jobs: the cluster that runs the searches.
        chosen: arguments of `tuner.run` for every search, set by the user who started the service.
        check: checks arguments and returns the experiment's fields.
    """

    def __init__(
        self, results: Path, state: Path, jobs: Jobs, chosen: list[str], check: Check = checked_options
    ) -> None:
        self._results, self._jobs, self._chosen, self._check = results.absolute(), jobs, chosen, check
        self._owned = _own(state)
        bring(self._results, state / "queue")
        self._queue = Queue(state / "queue")
        self._lock = threading.Lock()
        self._checks = threading.BoundedSemaphore(MOST_CHECKS)
        self._checking: set[str] = set()
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="searches", daemon=True)

    # --- requests ----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Search | None:
        """Returns the search of that name; None if this service was not asked to run it."""
        with self._lock:
            return self._queue.get(name)

    def all(self) -> list[Search]:
        """Returns every search that this service was asked to run, the earliest request first."""
        with self._lock:
            return list(self._queue)

    def start(self, asked: BaseModel) -> Search:
        """Queues a new search; raises RequestError if the request, a `Start`, is wrong."""
        fields = asked.model_dump()
        name = fields["name"] or self._free_name(fields["space"])
        with self._reserved(name):
            asked = asked.model_copy(update={"name": name})
            return self._ask(name, start_arguments(asked), asked, resumed=False)

    def resume(self, name: str, asked: BaseModel) -> Search:
        """Queues a search to be resumed or extended; raises RequestError if the request, a `Resume`, is wrong."""
        with self._reserved(name):
            # This reads only the text of the experiment's file. The space is refused, or passed to the check by name,
            # before any code of it is imported.
            saved = load_experiment(self._results / name)[0]
            if saved.data_dir and NO_DATA_DIR in self._chosen:
                raise RequestError(
                    f"{name} reads its data from {saved.data_dir}, which only its folder names: start tuner.serve with "
                    f"--data-dir, or run python -m tuner.run --resume {name}"
                )
            return self._ask(name, resume_arguments(name, saved.space, asked), asked, resumed=True)

    def stop(self, name: str) -> Search:
        """Removes a search from the queue, or stops it as Ctrl-C does if it runs; returns at once."""
        with self._lock:
            search = self._queue.get(name)
            if search and search.phase == "queued":
                self._queue.remove(name)
                return replace(search, phase="stopped", message="taken from the queue")
            if search and search.phase in ACTIVE:
                self._wake.set()
                return self._queue.put(replace(search, phase="stopping"))
        if search is None:
            raise Refused(409, f"{name} was not started by this service; press Ctrl-C where it runs")
        raise Refused(409, f"{name} does not run; nothing is to be stopped")

    def _ask(self, name: str, arguments: list[str], asked: BaseModel, resumed: bool) -> Search:
        arguments = self._whole(arguments)
        if not self._checks.acquire(blocking=False):
            raise Refused(503, f"{MOST_CHECKS} requests are being checked; try again in some seconds")
        try:
            options = self._check([*arguments, "--address=", *([ELSEWHERE] if self._jobs.address else [])])
        finally:
            self._checks.release()
        with self._lock:
            if len(self._queue.phase("queued")) >= MOST_WAITING:
                raise Refused(503, f"{MOST_WAITING} searches are waiting; stop one")
            fields = asked.model_dump(exclude_none=True)
            search = self._queue.put(Search(name, options, fields, time.time(), resumed=resumed))
        self._wake.set()
        return search

    def _whole(self, arguments: list[str]) -> list[str]:
        return [*arguments, f"--results={self._results}", *self._chosen]

    @contextmanager
    def _reserved(self, name: str) -> Iterator[None]:
        """Reserves a name for one request while it is checked; Refused if a search of that name is queued or runs."""
        with self._lock:
            search = self._queue.get(name)
            if name in self._checking or (search and search.phase in ("queued", *ACTIVE)):
                raise Refused(409, f"{name} is queued or running; stop it first, or take another name")
            self._checking.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._checking.discard(name)

    def _free_name(self, space: str) -> str:
        base, number = f"{space}-{time.strftime('%Y%m%d-%H%M%S')}", 1
        with self._lock:
            while True:
                name = base if number == 1 else f"{base}-{number}"
                if not (self._queue.get(name) or name in self._checking or (self._results / name).exists()):
                    return name
                number += 1

    # --- what runs ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Starts the background thread, which watches the jobs of an earlier service and starts the queued searches."""
        self._thread.start()

    def close(self) -> list[str]:
        """Stops the background thread and returns the names of the searches that still run.

        These searches continue without the service. If there are none, the service's own cluster is ended.
        """
        self._ending.set()
        self._wake.set()
        if self._thread.ident:
            self._thread.join()
        left = [search.name for search in self._queue.phase(*ACTIVE)]
        if not left:
            self._jobs.close()
        os.close(self._owned)
        return left

    def _run(self) -> None:
        busy = time.monotonic()
        pause_s: float | None = 0.0
        while not self._ending.is_set():
            try:
                pause_s = PAUSE_S if self.step() else None
            except RequestError as error:
                self._say(str(error))
                pause_s = AFTER_ERROR_S
            except Exception as error:  # an unforeseen error must not stop the thread for the other searches
                traceback.print_exc()
                self._say(f"the service failed ({type(error).__name__}); see its output")
                pause_s = AFTER_ERROR_S
            if pause_s is not None:
                busy = time.monotonic()
            elif time.monotonic() - busy > IDLE_S:
                self._jobs.close()
                busy = float("inf")  # close once, until there is work again
            self._wake.wait(PAUSE_S * 10 if pause_s is None else pause_s)
            self._wake.clear()

    def step(self) -> bool:
        """Checks the jobs once: records which ended, stops and starts searches; returns whether any runs or waits."""
        with self._lock:
            active = self._queue.phase(*ACTIVE)
        for search in active:
            if search.phase == "stopping":
                self._jobs.stop(search.job)
            self._note(search, self._jobs.job_state(search.job))
        with self._lock:
            waiting, running = self._queue.phase("queued"), self._queue.phase(*ACTIVE)
        if waiting:
            self._start_some(waiting, running)
        return bool(waiting or running)

    def _note(self, search: Search, ended: JobState) -> None:
        if ended.state == "active":
            return
        with self._lock:
            now = self._queue.get(search.name)
            if now is None or now.job != search.job:
                return
            begun = (self._results / search.name / "journal.jsonl").exists()
            if ended.state == "stopped" or ended.exit_code == 130:
                after = replace(now, phase="stopped", message="stopped")
            elif ended.state == "lost" and now.phase == "stopping":
                after = replace(now, phase="stopped", message="stopped; its cluster is gone")
            elif ended.state == "lost" and not begun:
                after = replace(now, phase="queued", job="")
            elif ended.state == "lost":
                after = replace(now, phase="failed", message="the cluster that it ran on is gone; resume it")
            elif ended.exit_code in (0, 1):
                after = replace(now, phase="done", message="")
            else:
                message = ended.last_line.removeprefix("tuner: error: ") or f"ended with exit code {ended.exit_code}"
                after = replace(now, phase="failed", message=message)
            self._queue.put(after)

    def _start_some(self, waiting: list[Search], running: list[Search]) -> None:
        try:
            chosen = startable(waiting, running, self._jobs.nodes(), self._jobs.address)
        except TooLarge as error:
            with self._lock:
                self._queue.put(replace(error.search, phase="failed", message=error.reason))
            return
        for search in chosen:
            job = f"{search.name}-{int(search.since * 1000)}"  # the same at a retry, so that Ray refuses a second job
            with self._lock:
                if self._queue.get(search.name) != search:
                    continue  # the search was stopped in the meantime
                try:
                    arguments = self._whole(search.arguments())
                except RequestError as error:  # for example, its space was deleted
                    self._queue.put(replace(search, phase="failed", message=str(error)))
                    continue
                self._queue.put(replace(search, phase="submitted", job=job, message=""))
            try:
                self._jobs.submit(job, arguments)
            except Exception as error:
                with self._lock:
                    known = isinstance(error, RequestError)
                    self._queue.put(replace(search, message=str(error) if known else search.message))
                raise

    def _say(self, message: str) -> None:
        """Shows at each queued search why no search can start."""
        with self._lock:
            for search in self._queue.phase("queued"):
                if search.message != message:
                    self._queue.put(replace(search, message=message))


def _own(state: Path) -> int:
    """Locks the state folder until this process ends, because two services would start each search twice.

    Raises:
        RequestError: another service has the lock, or the lock file cannot be opened.
    """
    try:
        file = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise RequestError("another tuner.serve starts the searches of this folder; ask that one") from None
    except OSError as error:
        raise RequestError(f"searches cannot be started: {state}: {error.strerror}") from None
    return file
