"""A service that acts, over jobs that run nothing, one that only reads, and experiments that they have."""

import contextlib
import dataclasses
import socket
import subprocess
import sys
import threading
from functools import partial
from types import SimpleNamespace

import fastapi.dependencies.models
import fastapi.routing
import pytest
import uvicorn
from fastapi.testclient import TestClient
from journals import Journal

from tuner.errors import RequestError
from tuner.record.saved_experiment import save_experiment
from tuner.serve.__main__ import Connection, listen
from tuner.serve.access.own_spaces import NO_SPACES
from tuner.serve.access.state import BASE, state_folder
from tuner.serve.app import create_app
from tuner.serve.jobs.local_jobs import JobState
from tuner.serve.jobs.requests import experiment_of
from tuner.serve.jobs.searches import NO_DATA_DIR, Searches
from tuner.spec.experiment import Experiment
from tuner.spec.facts import facts_of
from tuner.spec.spaces import find_space

HERE = "http://127.0.0.1:8800"
TOKEN = "s3cret of 32 characters, or more"


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """The services of a test keep their state in the test's folder."""
    monkeypatch.setenv(BASE, str(tmp_path / "state"))


@pytest.fixture(scope="session", autouse=True)
def answers_are_described_once():
    """Makes FastAPI's fields of answers once: 900 apps here have the same 300 each, which take 60 ms of a CPU."""
    create, fields = fastapi.routing.create_model_field, {}

    def shared(name, type_, mode="validation", **more):
        if not isinstance(type_, type) or more:  # its name may be shown in the schema
            return create(name=name, type_=type_, mode=mode, **more)
        if (type_, mode) not in fields:
            fields[type_, mode] = create(name=name, type_=type_, mode=mode)
        return fields[type_, mode]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fastapi.routing, "create_model_field", shared)
        yield


@pytest.fixture(autouse=True)
def apps_are_freed():
    """FastAPI's caches keep each app's routes, 2.4 MB: the suite's 900 apps would be walked by each collection."""
    yield
    for cached in vars(fastapi.dependencies.models).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


class Jobs:
    """Jobs that are only noted; what becomes of them is set in `job_states`."""

    address = ""

    def __init__(self):
        self.job_states, self.submitted, self.stopped, self.down = {}, {}, [], ""

    def nodes(self):
        return [{"CPU": 2.0, "GPU": 0.0}]

    def submit(self, job, arguments, num_gpus):
        if self.down:
            raise RequestError(self.down)
        self.submitted[job] = arguments
        self.job_states.setdefault(job, JobState("active"))

    def job_state(self, job):
        return self.job_states.get(job, JobState("lost"))

    def stop(self, job):
        self.stopped.append(job)


def client_of(app, token=""):
    """A client on loopback, with the token if one is given."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return TestClient(app, base_url=HERE, raise_server_exceptions=False, headers=headers)


def asking(app, path):
    """Returns a function that gives the JSON which the app answers for what follows `path`."""
    client = client_of(app)

    def ask(more="", status=200):
        answer = client.get(path + more)
        assert answer.status_code == status, answer.text
        return answer.json()

    return ask


@contextlib.contextmanager
def started(*argv, **options):
    """A process of Python that serves; with its address. It is killed in the end."""
    process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process, process.stdout.readline().split(" at ")[1].split()[0]
    finally:
        process.kill()
        process.communicate()


def begin(results, name="demo", facts=None, **options):
    """A folder as a search that has begun leaves it; gives its journal."""
    folder = results / name
    folder.mkdir()
    options = {"space": "quadratic", "max_epochs": 27, "reduction_factor": 3, **options}
    facts = {"created": 1000.0, "space": facts_of(find_space("quadratic"), [])["space"], **(facts or {})}
    save_experiment(Experiment(name=name, results=str(results), **options), folder, facts)
    journal = Journal(folder / "journal.jsonl")
    journal.write("experiment_started", name=name)
    return journal


def train(journal, trial, config, losses, *decisions, status="completed", reason="trained its 4 epochs", error=""):
    """Writes a whole trial, which reports these losses; a decision has at least its epoch, value, action and reason."""
    journal.write("trial_started", trial, config=config, resources={"CPU": 2}, node="n")
    for epoch, loss in enumerate(losses, 1):
        journal.write("report", trial, epoch=epoch, metrics={"loss": loss, "train_s": 0.5})
    for decision in decisions:
        journal.write("decision", trial, **{"rung": None, "bracket": None, "cutoff": None, "recorded": 0} | decision)
    if error:
        journal.write("trial_failed", trial, error=error, kind="user", will_retry=False)
        status, reason = "failed", error
    journal.write("trial_ended", trial, status=status, reason=reason)


def ended(service, name="demo", **options):
    """A search that has ended, with a best model; its folder."""
    journal = service.begin(name, **options)
    train(journal, "00000", {"x": 1.0}, [1.0, 0.5])
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    folder = service.results / name
    best = {"config.json": b"{}", "model.pt": b"m" * 700_000, "checkpoint/own file.bin": b"own"}
    files = {f"best/{path}": content for path, content in best.items()}
    for path, content in {**files, "ray/00000/checkpoint_000001/state.pt": b"s" * 1000}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def service(tmp_path, monkeypatch):
    """The app with its parts; `service.reopened()` is the same folder after a restart, maybe with own spaces."""
    monkeypatch.setattr(  # as the check's own process does
        "tuner.serve.jobs.searches.checked_options", lambda arguments: dataclasses.asdict(experiment_of(arguments))
    )
    results = tmp_path / "results"
    results.mkdir()
    jobs, opened = Jobs(), []

    def reopened(spaces=NO_SPACES):
        if opened:
            opened.pop().close()
        searches = Searches(results, state_folder(results), jobs, ["--wandb=disabled", NO_DATA_DIR], spaces)
        opened.append(searches)
        app = create_app(results, token=TOKEN, searches=searches)
        parts = {"searches": searches, "app": app, "jobs": jobs, "results": results, "token": TOKEN}
        clients = {"anyone": client_of(app), "owner": client_of(app, TOKEN)}

        def start(status=202, **asked):
            """Asks for a search; gives the answer's JSON."""
            answer = clients["owner"].post("/api/experiments", json={"space": "quadratic", **asked})
            assert answer.status_code == status, answer.text
            return answer.json()

        def end_jobs(*job_state):
            """Submits what may start, and ends all jobs so."""
            searches.step()
            jobs.job_states = dict.fromkeys(jobs.submitted, JobState(*job_state))
            searches.step()

        more = {"reopened": reopened, "begin": partial(begin, results), "start": start, "end_jobs": end_jobs}
        return SimpleNamespace(**parts, **clients, **more)

    yield reopened()
    opened.pop().close()


@contextlib.contextmanager
def serving(app, most=None, **options):
    """Serves the app in a thread, by uvicorn as the service has it; `most` connections may be open."""
    # Without a log configuration, which would keep uvicorn's records from pytest.
    limits = {"limit_concurrency": 2 * most if most else None, "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, ws="none", log_config=None, **limits, **options))
    if hasattr(app, "state"):
        app.state.stopping = lambda: server.should_exit  # else an open event stream keeps it
    with contextlib.ExitStack() as opened, listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()

        def connect(sent=b""):
            connection = opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            connection.sendall(sent)
            return connection

        try:
            yield SimpleNamespace(url=f"http://127.0.0.1:{port}/", connect=connect, state=server.server_state)
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()


@pytest.fixture
def viewer(tmp_path):
    """The service that only reads, over an empty folder: it is there at once."""
    results = tmp_path / "results"
    results.mkdir()
    with serving(create_app(results)) as served:
        yield SimpleNamespace(url=served.url, results=results, begin=partial(begin, results))
