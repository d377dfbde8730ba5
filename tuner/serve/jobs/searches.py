"""Handles requests to start, stop or resume a search: checks them with the command line's code and queues them.

The whole state is in files, so the next service continues with the queue and with the searches that still run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tuner.errors import RequestError
from tuner.record.saved_experiment import load_experiment
from tuner.record.texts import command
from tuner.serve.access.state import lock_state
from tuner.serve.answers import Refused
from tuner.serve.jobs.check import ELSEWHERE, checked_options
from tuner.serve.jobs.dispatcher import Dispatcher
from tuner.serve.jobs.options import resume_arguments, start_arguments
from tuner.serve.jobs.queue import ACTIVE, Queue, Search
from tuner.serve.jobs.ray_jobs import Jobs

MOST_WAITING = 1000  # queued searches; a further request gets 503
MOST_CHECKS = 4  # concurrent checks of requests; each is a process that imports ray and torch
NO_DATA_DIR = "--data-dir="  # empty = each space's default; without this argument a resume would use its folder's path

Check = Callable[[list[str]], dict[str, Any]]


class Searches:
    """The searches that this service was asked to run; `dispatcher` runs them.

    Args:
        results: the folder that searches write to.
        state: the service's own folder (`tuner.serve.access.state`).
        jobs: the cluster that runs the searches.
        chosen: arguments of `tuner.run` for every search, set by the user who started the service.
        check: checks arguments and returns the experiment's fields.
    """

    def __init__(
        self, results: Path, state: Path, jobs: Jobs, chosen: list[str], check: Check = checked_options
    ) -> None:
        self._results, self._jobs, self._check = results.absolute(), jobs, check
        self._chosen = [f"--results={self._results}", *chosen]
        self._lock_file = lock_state(state)
        self._queue = Queue(state / "queue")
        self._checks = threading.BoundedSemaphore(MOST_CHECKS)
        self._checking: set[str] = set()
        self.dispatcher = Dispatcher(self._queue, self._results, jobs, self._chosen)

    def close(self) -> list[str]:
        """Closes the dispatcher; returns the names of the searches that still run."""
        left = self.dispatcher.close()
        os.close(self._lock_file)
        return left

    def get(self, name: str) -> Search | None:
        """Returns the search of that name that this or an earlier service was asked to run; None if there is none."""
        with self._queue.lock:
            return self._queue.get(name)

    def all(self) -> list[Search]:
        """Returns the searches that this service and earlier ones were asked to run, the earliest request first."""
        with self._queue.lock:
            return list(self._queue)

    def start(self, asked: BaseModel) -> Search:
        """Queues a new search; raises RequestError if the request, a `Start`, is wrong."""
        fields = asked.model_dump()
        name = fields["name"] or self._free_name(fields["space"])
        with self.reserved(name):
            asked = asked.model_copy(update={"name": name})
            return self._ask(name, start_arguments(asked), asked, resumed=False)

    def resume(self, name: str, asked: BaseModel) -> Search:
        """Queues a search to be resumed or extended; raises RequestError if the request, a `Resume`, is wrong."""
        with self.reserved(name):
            # Only experiment.json is read here. The space is refused, or passed to the check by name, before any of its
            # code is imported.
            saved = load_experiment(self._results / name)[0]
            if saved.data_dir and NO_DATA_DIR in self._chosen:
                raise RequestError(
                    f"{name} reads its data from {saved.data_dir}, which only its folder names: start tuner.serve with "
                    f"--data-dir, or run {command('run', '--resume', name)}"
                )
            return self._ask(name, resume_arguments(name, saved.space, asked), asked, resumed=True)

    def stop(self, name: str) -> Search:
        """Removes a queued search, or stops a running one as Ctrl-C does; returns at once. Refuses any other search."""
        with self._queue.lock:
            search = self._queue.get(name)
            if search and search.phase == "queued":
                self._queue.remove(name)
                return replace(search, phase="stopped", message="removed from the queue")
            if search and search.phase in ACTIVE:
                self.dispatcher.wake()
                return self._queue.put(replace(search, phase="stopping"))
        if search is None:
            raise Refused(409, f"{name} was not started by this service; press Ctrl-C where it runs")
        raise Refused(409, f"{name} is not running, so there is nothing to stop")

    def forget(self, name: str) -> None:
        """Removes a search that has ended from those that this service was asked to run."""
        with self._queue.lock:
            self._queue.remove(name)

    def rename(self, old: str, new: str) -> None:
        """Gives a search that has ended another name, so that its last state and message are kept."""
        with self._queue.lock:
            search = self._queue.get(old)
            if search:
                self._queue.put(replace(search, name=new, options={**search.options, "name": new}))
                self._queue.remove(old)

    def _ask(self, name: str, arguments: list[str], asked: BaseModel, resumed: bool) -> Search:
        if not self._checks.acquire(blocking=False):
            raise Refused(503, f"{MOST_CHECKS} requests are being checked, the limit; try again in a few seconds")
        try:
            options = self._check(
                [*arguments, *self._chosen, "--address=", *([ELSEWHERE] if self._jobs.address else [])]
            )
        finally:
            self._checks.release()
        with self._queue.lock:
            if len(self._queue.phase("queued")) >= MOST_WAITING:
                raise Refused(503, f"{MOST_WAITING} searches are queued, which is the limit; stop one")
            fields = asked.model_dump(exclude_none=True)
            search = self._queue.put(Search(name, options, fields, time.time(), resumed=resumed))
        self.dispatcher.wake()
        return search

    @contextmanager
    def reserved(self, name: str) -> Iterator[None]:
        """Reserves a name for one request: nothing else starts, resumes, renames or deletes a search of that name.

        Raises:
            Refused: the name is reserved already, or its search is queued or running.
        """
        with self._queue.lock:
            search = self._queue.get(name)
            if name in self._checking or (search and search.phase in ("queued", *ACTIVE)):
                raise Refused(409, f"{name} is queued or running; stop it first, or take another name")
            self._checking.add(name)
        try:
            yield
        finally:
            with self._queue.lock:
                self._checking.discard(name)

    def _free_name(self, space: str) -> str:
        base, number = f"{space}-{time.strftime('%Y%m%d-%H%M%S')}", 1
        with self._queue.lock:
            while True:
                name = base if number == 1 else f"{base}-{number}"
                if not (self._queue.get(name) or name in self._checking or (self._results / name).exists()):
                    return name
                number += 1
