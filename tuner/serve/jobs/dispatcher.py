"""Starts queued searches as jobs and records how they end, in one background thread."""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

from tuner.errors import RequestError
from tuner.serve.jobs.queue import ACTIVE, Queue, Search, TooLarge, startable
from tuner.serve.jobs.ray_jobs import Jobs, JobState

PAUSE_S = 1.0  # seconds between two checks of the jobs that run or wait
AFTER_ERROR_S = 3.0  # seconds before the retry after an error, such as a cluster that does not answer
IDLE_S = 300.0  # seconds without a search, after which the service ends its own Ray cluster, which uses 0.8 GB
STARTS_RAY = "waiting for Ray to accept the search"
STARTS_SEARCH = "waiting for the search to load its space and data"


class Dispatcher:
    """Moves searches from queued to submitted, and then to done, stopped or failed.

    Args:
        queue: the searches; requests add to it and mark searches to be stopped.
        results: the folder that searches write to.
        jobs: the cluster that runs the searches.
        chosen: arguments of `tuner.run` for every search.
    """

    def __init__(self, queue: Queue, results: Path, jobs: Jobs, chosen: list[str]) -> None:
        self._queue, self._results, self._jobs, self._chosen = queue, results, jobs, chosen
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="searches", daemon=True)

    def open(self) -> None:
        """Starts the thread, which watches the jobs of an earlier service and starts the queued searches."""
        self._thread.start()

    def wake(self) -> None:
        """Makes the thread look at the queue now."""
        self._wake.set()

    def close(self) -> list[str]:
        """Stops the thread and returns the names of the searches that still run.

        These searches continue without the service. If there are none, the service's own cluster is ended.
        """
        self._ending.set()
        self._wake.set()
        if self._thread.ident:
            self._thread.join()
        left = [search.name for search in self._queue.phase(*ACTIVE)]
        if not left:
            self._jobs.close()
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
                busy = float("inf")  # the cluster is closed only once, until there is a search again
            self._wake.wait(PAUSE_S * 10 if pause_s is None else pause_s)
            self._wake.clear()

    def step(self) -> bool:
        """Records which jobs have ended, stops and starts searches; returns whether any search still runs or waits."""
        with self._queue.lock:
            active = self._queue.phase(*ACTIVE)
        for search in active:
            if search.phase == "stopping":
                self._jobs.stop(search.job)
            self._note(search, self._jobs.job_state(search.job))
        with self._queue.lock:
            waiting, running = self._queue.phase("queued"), self._queue.phase(*ACTIVE)
        if waiting:
            self._start_some(waiting, running)
        return bool(waiting or running)

    def _note(self, search: Search, ended: JobState) -> None:
        if ended.state == "active":
            return
        with self._queue.lock:
            now = self._queue.get(search.name)
            if now is None or now.job != search.job:
                return
            begun = (self._results / search.name / "journal.jsonl").exists()
            if ended.state == "stopped" or ended.exit_code == 130:
                after = replace(now, phase="stopped", message="stopped")
            elif ended.state == "lost" and now.phase == "stopping":
                after = replace(now, phase="stopped", message="stopped; its cluster is gone")
            elif ended.state == "lost" and not begun:  # nothing was trained: it waits for the next cluster
                after = replace(now, phase="queued", job="", message="")
            elif ended.state == "lost":
                after = replace(now, phase="failed", message="the cluster that it ran on is gone; resume it")
            elif ended.exit_code in (0, 1):  # tuner.run's 0 = done, 1 = no trial with a finite metric
                after = replace(now, phase="done", message="")
            else:
                message = ended.last_line.removeprefix("tuner: error: ") or f"ended with exit code {ended.exit_code}"
                after = replace(now, phase="failed", message=message)
            self._queue.put(after)

    def _start_some(self, waiting: list[Search], running: list[Search]) -> None:
        try:
            chosen = startable(waiting, running, self._jobs.nodes(), self._jobs.address)
        except TooLarge as error:
            with self._queue.lock:
                self._queue.put(replace(error.search, phase="failed", message=error.reason))
            return
        for search in chosen:
            job = f"{search.name}-{int(search.since * 1000)}"  # the same at a retry, so that Ray refuses a second job
            with self._queue.lock:
                if self._queue.get(search.name) != search:
                    continue  # the search was stopped in the meantime
                try:
                    arguments = [*search.arguments(), *self._chosen]
                except RequestError as error:  # for example, the file of the search's space was deleted
                    self._queue.put(replace(search, phase="failed", message=str(error)))
                    continue
                submitted = replace(search, phase="submitted", job=job, message=STARTS_RAY, submitted=time.time())
                self._queue.put(submitted)
            try:
                self._jobs.submit(job, arguments)
                with self._queue.lock:
                    if self._queue.get(search.name) == submitted:
                        self._queue.put(replace(submitted, message=STARTS_SEARCH))
            except Exception as error:
                with self._queue.lock:
                    if self._queue.get(search.name) == submitted:  # else a client has stopped it in the meantime
                        known = isinstance(error, RequestError)
                        self._queue.put(replace(search, message=str(error) if known else search.message))
                raise

    def _say(self, message: str) -> None:
        """Shows at each queued search why no search can start."""
        with self._queue.lock:
            for search in self._queue.phase("queued"):
                if search.message != message:
                    self._queue.put(replace(search, message=message))
