"""The searches that the service was asked to run: checks and queues them, starts them as jobs, records how they end.

Each search is saved in a file, so that the next service continues with the queued and running searches.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from pydantic import BaseModel, TypeAdapter

from tuner.errors import RequestError, printable
from tuner.record.format import JOURNAL
from tuner.record.saved_experiment import FILE, load_experiment
from tuner.record.storage.files import bytes_in, write_atomically
from tuner.record.storage.made import remove_made
from tuner.record.texts import command
from tuner.serve.access.own_spaces import NO_SPACES, OwnSpaces
from tuner.serve.answers import Refused
from tuner.serve.jobs.local_jobs import JobState, LocalJobs
from tuner.serve.jobs.ray_jobs import RayJobs
from tuner.serve.jobs.requests import ELSEWHERE, checked_options, resume_arguments, start_arguments
from tuner.spec.experiment import Experiment
from tuner.spec.resources import resources_of
from tuner.tuning.resume.trust import recorded_path

MOST_WAITING = 1000  # queued searches; a further request gets 503
NO_DATA_DIR = "--data-dir="  # empty = the space's default; without it, a resume would use the folder in experiment.json
PAUSE_S = 1.0  # seconds between two checks of the jobs that run or wait
AFTER_ERROR_S = 3.0  # seconds before the retry after an error, such as a cluster that does not answer
QUEUE = "queue"  # folder of the state folder: NAME.json of each search, and NAME.log with its output on this machine
Phase = Literal["queued", "submitted", "stopping", "stopped", "failed", "done"]
ACTIVE: tuple[Phase, ...] = ("submitted", "stopping")
WAITS_OR_RUNS: tuple[Phase, ...] = ("queued", *ACTIVE)
STARTS_RAY = "waiting for Ray to accept the search"
STOPS = "stopping"  # its job has been told; a second signal would end a search at once
STARTS_SEARCH = "waiting for the search to load its space and data"


@dataclass(frozen=True)
class Search:
    """A search that the service was asked to run; times are unix seconds."""

    name: str
    options: dict[str, Any]  # all fields of the experiment, with defaults filled in
    arguments: list[str]  # the part of the command line of `tuner.run` that the service made from the request
    since: float  # the time of the request; searches of equal priority start in this order
    phase: Phase = "queued"
    job: str = ""  # the id of its job, once it is submitted
    message: str = ""  # why the search waits, failed or stopped
    submitted: float = 0.0  # when the job was submitted; 0 before that

    @property
    def experiment(self) -> Experiment:
        return Experiment(**self.options)

    @property
    def priority(self) -> int:
        return int(self.options.get("priority", 0))


def read_queue(folder: Path) -> list[Search]:
    """Reads the searches in the folder `queue`; leaves out each damaged file and prints a line about it."""
    searches = []
    for path in sorted(folder.glob("*.json")):
        try:
            search = TypeAdapter(Search).validate_json(bytes_in(folder, path.name), strict=True)
            Experiment(**search.options)  # raises an error if an option is wrong
            if search.name != path.stem:
                raise RequestError(f"its name is {search.name!r}, but must be {path.stem!r} as in the file name")
            searches.append(search)
        except (OSError, ValueError, TypeError, RequestError) as error:
            what = " ".join(str(error).split())[:200]
            line = f"{path} is left out, because it is damaged: {what}; start that search again"
            print(printable(line), file=sys.stderr, flush=True)
    return searches


def startable(
    waiting: Sequence[Search], running: Sequence[Search], nodes: Sequence[Mapping[str, float]], address: str = ""
) -> list[tuple[Search, str]]:
    """Chooses the waiting searches that may start now, by priority and then by the time of the request.

    A search reserves the resources of `max_concurrent_trials` trials; without that limit, of as many as fit. It may
    start if nobody else has reserved them. On a cluster it may start if one of its trials fits what nobody else has
    reserved, because Ray shares the cluster. There, running searches of lower priority reserve nothing, because they
    release resources to this search (`tuner.engine.cluster.nodes`). If a search has to wait for resources, the searches
    after it wait, too; otherwise, small searches could delay it for ever.

    Args:
        nodes: the resources (name -> amount) of each node that exists or that an autoscaler may add.
        address: of a cluster that may have more nodes; empty = this machine.

    Returns:
        The searches, each with an empty text, or with the reason why it cannot start even on the empty cluster.
    """
    chosen: list[tuple[Search, str]] = []
    for search in sorted(waiting, key=lambda each: -each.priority):
        try:
            needed = resources_of(replace(search.experiment, address=address), nodes)
        except RequestError as error:
            chosen.append((search, str(error)))
            continue
        holders = [other for other in running if not address or other.priority >= search.priority]
        holders += [other for other, problem in chosen if not problem]
        used = [_reserved(holder, nodes, address) for holder in holders]
        asked = {"CPU": needed.cpus, "GPU": needed.gpus} if address else _reserved(search, nodes)
        for name, amount in asked.items():
            free = sum(node.get(name, 0.0) for node in nodes) - sum(most[name] for most in used)
            # A search whose trials fit no known node starts anyway, and shows what they wait for.
            if free + 1e-9 < amount and needed.fit(nodes):
                return chosen
        chosen.append((search, ""))
    return chosen


def _reserved(search: Search, nodes: Sequence[Mapping[str, float]], address: str = "") -> dict[str, float]:
    """Return the CPUs and GPUs that a search reserves; 0 if its trials do not fit the nodes any more.

    On this machine, no two searches share a GPU.
    """
    try:
        needed = resources_of(search.experiment, nodes)
    except RequestError:
        return {"CPU": 0.0, "GPU": 0.0}
    gpus = needed.gpus * needed.concurrent if address else needed.whole_gpus()
    return {"CPU": needed.cpus * needed.concurrent, "GPU": gpus}


class Searches:
    """The searches that this service was asked to run; thread-safe. `open` starts a background thread that runs them.

    `state` is the service's own folder, and `chosen` are arguments of `tuner.run` for every search. Raises RequestError
    if another service starts the searches of this folder, or the state folder is not writable.
    """

    def __init__(
        self, results: Path, state: Path, jobs: LocalJobs | RayJobs, chosen: list[str], spaces: OwnSpaces = NO_SPACES
    ) -> None:
        self._results, self._jobs, self.spaces = results.absolute(), jobs, spaces
        self._chosen = [f"--results={self._results}", *chosen]
        self._one_service = FileLock(state / "lock")
        try:
            self._one_service.acquire(blocking=False)
        except Timeout:
            raise RequestError(
                "another tuner.serve starts the searches of this folder; send the request there"
            ) from None
        except OSError as error:
            raise RequestError(f"searches cannot be started: {state}: {error.strerror}") from None
        self._folder = state / QUEUE
        self._lock = threading.Lock()  # guards the two fields below
        self._searches = {search.name: search for search in read_queue(self._folder)}
        self._reserved: set[str] = set()
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="searches", daemon=True)

    def open(self) -> None:
        """Starts the thread, which watches the jobs of an earlier service and starts the queued searches."""
        self._thread.start()

    def close(self) -> list[str]:
        """Stops the thread; returns the names of the searches that still run."""
        self._ending.set()
        self._wake.set()
        if self._thread.ident:
            self._thread.join()
        self._one_service.release()
        return [search.name for search in self._in(*ACTIVE)]

    def get(self, name: str) -> Search | None:
        with self._lock:
            return self._searches.get(name)

    def all(self) -> list[Search]:
        """Returns the searches of this and earlier services, the earliest request first."""
        with self._lock:
            return sorted(self._searches.values(), key=lambda search: search.since)

    def start(self, asked: BaseModel) -> Search:
        """Queues a new search; raises RequestError if the request, a `Start`, is wrong."""
        fields = asked.model_dump()
        name = fields["name"] or self._free_name(fields["space"])
        with self.reserved(name):
            return self._ask(name, start_arguments(asked.model_copy(update={"name": name}), self.spaces))

    def resume(self, name: str, asked: BaseModel) -> Search:
        """Queues a search to be resumed or extended; raises RequestError if the request, a `Resume`, is wrong."""
        with self.reserved(name):
            # Reads only experiment.json, so that a space unknown to the service is refused before anything imports it.
            saved, facts = load_experiment(self._results / name)
            if saved.data_dir and NO_DATA_DIR in self._chosen:
                raise RequestError(
                    f"{name} reads its data from {saved.data_dir}, but tuner.serve uses only its own --data-dir, which "
                    f"is empty; start tuner.serve with that folder, or run {command('run', '--resume', name)}"
                )
            return self._ask(name, resume_arguments(name, saved.space, recorded_path(facts), asked, self.spaces))

    def stop(self, name: str) -> Search:
        """Removes a queued search, or stops a running one as Ctrl-C does; returns at once; refuses other searches."""
        with self._lock:
            search = self._searches.get(name)
            if search and search.phase == "queued":
                self._remove(name)
                return replace(search, phase="stopped", message="removed from the queue")
            if search and search.phase in ACTIVE:
                self._wake.set()
                return self._put(replace(search, phase="stopping"))
        if search is None:
            raise Refused(409, f"{name} was not started by this service; press Ctrl-C where it runs")
        raise Refused(409, f"{name} is not running, so there is nothing to stop")

    def forget(self, name: str) -> None:
        with self._lock:
            self._remove(name)

    @contextmanager
    def reserved(self, name: str) -> Iterator[None]:
        """Reserves a name for one request; raises Refused if it is reserved, or its search is queued or running."""
        with self._lock:
            busy = self._reserved | {search.name for search in self._searches.values() if search.phase in WAITS_OR_RUNS}
            if name in busy:
                raise Refused(409, f"{name} is queued or running; stop it first, or take another name")
            self._reserved.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._reserved.discard(name)

    def _ask(self, name: str, arguments: list[str]) -> Search:
        elsewhere = [ELSEWHERE] if self._jobs.address else []
        options = checked_options([*arguments, *self._chosen, "--address=", *elsewhere])
        if len(self._in("queued")) >= MOST_WAITING:
            raise Refused(503, f"{MOST_WAITING} searches are queued, which is the limit; stop one")
        with self._lock:
            search = self._put(Search(name, options, arguments, time.time()))
        self._wake.set()
        return search

    def _free_name(self, space: str) -> str:
        base = f"{Path(space).stem[:80]}-{time.strftime('%Y%m%d-%H%M%S')}"
        with self._lock:
            taken = self._searches.keys() | self._reserved
            names = chain([base], (f"{base}-{number}" for number in count(2)))
            return next(name for name in names if name not in taken and not (self._results / name).exists())

    def _in(self, *phases: Phase) -> list[Search]:
        return [search for search in self.all() if search.phase in phases]

    def _put(self, search: Search) -> Search:
        """Saves a search; the caller holds the lock."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._folder / f"{search.name}.json", json.dumps(asdict(search), indent=1) + "\n")
        self._searches[search.name] = search
        return search

    def _remove(self, name: str) -> None:
        for file in (f"{name}.json", f"{name}.log"):
            with suppress(FileNotFoundError):
                remove_made(self._folder, file)
        self._searches.pop(name, None)

    def _drop(self, search: Search) -> None:
        """Removes a search, unless a request has changed it meanwhile."""
        with self._lock:
            if self._searches.get(search.name) == search:
                self._remove(search.name)

    def _change(self, search: Search, **fields: Any) -> Search | None:
        """Changes fields of a search; if a request has changed it meanwhile, changes nothing and returns None."""
        with self._lock:
            is_same = self._searches.get(search.name) == search
            return self._put(replace(search, **fields)) if is_same else None

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                pause_s = PAUSE_S if self.step() else PAUSE_S * 10
            except Exception as error:  # an unforeseen error must not stop the thread for the other searches
                message, pause_s = str(error), AFTER_ERROR_S
                if not isinstance(error, RequestError):
                    traceback.print_exc()
                    message = f"the service failed ({type(error).__name__}); see its output"
                for search in self._in("queued"):  # each queued search then shows why no search can start
                    self._change(search, message=message)
            self._wake.wait(pause_s)
            self._wake.clear()

    def step(self) -> bool:
        """Records which jobs have ended, stops and starts searches; returns whether any search still runs or waits."""
        for search in self._in(*ACTIVE):
            if search.phase == "stopping" and search.message != STOPS:
                self._jobs.stop(search.job)
                search = self._change(search, message=STOPS) or search
            if (job := self._jobs.job_state(search.job)).state != "active":
                self._note(search, job)
        waiting, running = self._in("queued"), self._in(*ACTIVE)
        nodes = self._jobs.nodes() if waiting else []
        for search, problem in startable(waiting, running, nodes, self._jobs.address):
            if problem:
                self._change(search, phase="failed", message=problem)
            else:
                self._submit(search, int(_reserved(search, nodes)["GPU"]))
        return bool(waiting or running)

    def _note(self, search: Search, job: JobState) -> None:
        phase: Phase = "failed"
        message = job.message.removeprefix("tuner: error: ") or f"ended with exit code {job.exit_code}"
        is_stopped = search.phase == "stopping" and job.exit_code not in (
            0,
            1,
            2,
        )  # else it ended by itself just before
        if is_stopped or job.state == "stopped" or job.exit_code == 130:
            phase, message = "stopped", "stopped"
        elif job.state == "lost" and not (self._results / search.name / JOURNAL).exists():
            phase, message = "queued", ""  # nothing was trained, so the search starts again
        elif job.state == "lost" and self._jobs.address:
            message = "the cluster that it ran on is gone; resume it"
        # On this machine, the journal says how a search ended while no service ran.
        # Exit codes of tuner.run: 0 = done, 1 = no usable trial, or the search gave up.
        elif job.state == "lost" or job.exit_code in (0, 1):
            phase, message = "done", ""
        if phase == "stopped" and not os.path.lexists(self._results / search.name / FILE):
            self._drop(search)  # it was stopped before it began, so it has nothing to show or to resume
            return
        self._change(search, phase=phase, job="" if phase == "queued" else search.job, message=message)

    def _submit(self, search: Search, num_gpus: int) -> None:
        job = search.name
        if self._jobs.address:  # the same at a retry, so that Ray refuses a second job
            job += f"-{int(search.since * 1000)}"
        submitted = self._change(search, phase="submitted", job=job, message=STARTS_RAY, submitted=time.time())
        if submitted is None:
            return
        try:
            self._jobs.submit(job, [*search.arguments, *self._chosen], num_gpus)
        except Exception as error:
            self._change(submitted, phase="queued", job="", message=str(error), submitted=0.0)
            raise
        self._change(submitted, message=STARTS_SEARCH)
