"""Searches as child processes, and as jobs of a cluster: with programs in place of a search, and for real."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from journals import read

from tests.serve.conftest import TOKEN, started
from tuner.engine.local import alone
from tuner.serve.access.state import state_folder
from tuner.serve.client import Client
from tuner.serve.jobs.local_jobs import LOG, JobState, LocalJobs


def until(true, timeout_s=120):
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def as_search(tmp_path, monkeypatch):
    """Makes `python -m tuner.run` run a program; its processes are killed in the end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuner").mkdir()
    (tmp_path / "tuner" / "__init__.py").touch()

    def program(text):
        (tmp_path / "tuner" / "run.py").write_text(text)

    yield program
    for process in psutil.Process().children():
        with suppress(psutil.ZombieProcess):
            if LOG in process.environ():
                process.kill()
                process.wait()


def ended(jobs, job):
    until(lambda: jobs.job_state(job).state != "active")


WAITS = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("begun", flush=True)
signal.sigwait([signal.SIGTERM])
print("told")
exit(130)
"""


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("print('tuner: error: --seed x\\n'); exit(2)", JobState("ended", 2, "tuner: error: --seed x")),
        ("print('x' * 10_000, '\\nlast', end=''); exit(2)", JobState("ended", 2, "last")),
        ("exit(2)", JobState("ended", 2)),
        ("print('a table')", JobState("ended", 0)),
        ("import os; print('a table', flush=True); os.kill(os.getpid(), 9)", JobState("ended", -9)),
        ("import sys; assert sys.argv[1:] == ['--seed=1', '--address=']", JobState("ended", 0)),
    ],
)
def test_the_end_of_a_process_is_told_once(tmp_path, as_search, program, wanted):
    as_search(program)
    jobs = LocalJobs(tmp_path)
    assert jobs.job_state("a") == JobState("lost")
    jobs.submit("a", ["--seed=1"], 0)
    process = jobs._process("a")
    until(lambda: process.status() == psutil.STATUS_ZOMBIE)
    assert jobs.job_state("a") == wanted
    assert jobs.job_state("a") == JobState("lost")


def test_the_next_service_finds_and_stops_a_process_but_no_other(tmp_path, as_search):
    as_search(WAITS)
    (tmp_path / "other").mkdir()
    jobs, others = LocalJobs(tmp_path), LocalJobs(tmp_path / "other")
    jobs.submit("a", [], 0)
    others.submit("a", [], 0)
    env = {**os.environ, LOG: str(tmp_path / "a.log")}
    child = psutil.Popen(["sleep", "600"], env=env)  # as the search's own processes inherit its environment
    until(lambda: (tmp_path / "a.log").read_text() == (tmp_path / "other" / "a.log").read_text() == "begun\n")
    after = LocalJobs(tmp_path)
    assert after.job_state("a") == JobState("active") and after.job_state("b") == JobState("lost")
    after.stop("a")
    ended(after, "a")
    assert (tmp_path / "a.log").read_text() == "begun\ntold\n"
    assert after.job_state("a") == JobState("lost")  # whoever is no parent is not told the exit code
    assert jobs.job_state("a") == JobState("ended", 130) and others.job_state("a") == JobState("active")
    assert child.is_running() and child.status() != psutil.STATUS_ZOMBIE


def test_no_two_searches_see_a_gpu(tmp_path, as_search, monkeypatch):
    as_search(WAITS)
    monkeypatch.setattr(alone, "visible_gpus", lambda: ["1", "3", "4"])

    def seen_by(job):
        until((tmp_path / f"{job}.log").read_text)  # the kernel shows the environment a moment after Popen returns
        return jobs._processes[job].environ()["CUDA_VISIBLE_DEVICES"]

    jobs = LocalJobs(tmp_path)
    jobs.submit("a", [], 1)
    jobs.submit("e", [], 1)
    jobs.submit("b", [], 0)
    assert (seen_by("a"), seen_by("e"), seen_by("b")) == ("1", "3", "")
    jobs = LocalJobs(tmp_path)
    assert jobs.job_state("a") == jobs.job_state("e") == JobState("active")
    jobs.submit("c", [], 2)
    assert seen_by("c") == "4"
    jobs.stop("a")
    ended(jobs, "a")
    jobs.submit("d", [], 1)
    assert seen_by("d") == "1"


@pytest.fixture
def served(tmp_path):
    """Starts `python -m tuner.serve` over an empty folder; ends it and its searches if the test fails."""
    results = tmp_path / "results"
    results.mkdir()
    argv = ["-m", "tuner.serve", "--results", str(results), "--port", "0", "--wandb", "disabled"]
    with ExitStack() as services:

        def start(token, *more, **variables):
            env = {**os.environ, **({"TUNER_TOKEN": token} if token else {}), **variables}
            process, url = services.enter_context(started(*argv, *more, env=env))
            return process, Client(url, token or (state_folder(results) / "token").read_text())

        yield results, start
    for name in ("long", "short"):
        LocalJobs(state_folder(results) / "queue").stop(name)


@pytest.fixture
def cluster(tmp_path):
    """A cluster on loopback that wants a token: the address of its Jobs API, and the variables of its users."""
    (tmp_path / "ray_token").write_text("0123456789abcdef0123456789abcdef")
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "ray_token")}
    with ExitStack() as stack:
        with ExitStack() as listeners:
            opened = [listeners.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            port, client, agent = (listener.getsockname()[1] for listener in opened)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True))
        words = ["--head", "--block", "--disable-usage-stats", "--port=0", "--node-ip-address=127.0.0.1"]
        words += [f"--dashboard-port={port}", "--include-dashboard=true", f"--ray-client-server-port={client}"]
        words += ["--num-cpus=2", f"--dashboard-agent-listen-port={agent}", f"--temp-dir={folder}/ray"]
        env = {**os.environ, **variables, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # else it listens everywhere
        head = subprocess.Popen([sys.executable, "-m", "ray.scripts.scripts", "start", *words], env=env)
        stack.callback(head.wait, 60)
        stack.callback(head.terminate)
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/jobs/")
        asked.add_header("Authorization", f"Bearer {(tmp_path / 'ray_token').read_text()}")

        def accepts_jobs():
            with suppress(OSError), urllib.request.urlopen(asked, timeout=5):
                return True

        until(accepts_jobs)
        yield f"http://127.0.0.1:{port}", variables


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_searches_on_a_cluster_are_its_jobs_outlive_the_service_and_stop_as_by_ctrl_c(served, cluster):
    results, start = served
    address, variables = cluster
    process, client = start(TOKEN, "--address", address, **variables)
    client.start("cifar", name="long", num_samples=30, max_concurrent_trials=1)
    client.start("quadratic", name="short", num_samples=2, max_concurrent_trials=1)
    assert client.wait("short", 180)["state"] == "finished"
    until(lambda: any(trial["epochs"] for trial in client.trials("long")))
    process.terminate()
    assert "long: still running" in process.communicate(timeout=60)[0]
    process, client = start(TOKEN, "--address", address, **variables)
    assert client.get("long")["state"] == "running"
    client.stop("long")
    assert client.wait("long", 180)["state"] == "interrupted"
    (end,) = events(results / "long", "experiment_finished")
    assert (end["state"], end["reason"]) == ("interrupted", "interrupted by SIGTERM")


def events(folder, kind):
    return [event for event in read(folder / "journal.jsonl") if event["event"] == kind]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_without_the_services_token_outlives_it_stops_as_by_ctrl_c_and_is_resumed(served):
    results, start = served
    process, client = start(TOKEN)
    folder = results / "long"
    client.start("cifar", name="long", num_samples=30)
    client.start("quadratic", name="short", num_samples=2)
    until(lambda: any(trial["epochs"] for trial in client.trials("long")))
    assert client.get("short")["state"] == "queued"
    search = LocalJobs(state_folder(results) / "queue")._process("long")
    addresses, environments = set(), {}
    for each in (search, *search.children(recursive=True)):  # what the kernel says of them
        with suppress(psutil.NoSuchProcess, OSError):  # Ray starts and ends processes all the time
            addresses |= {c.laddr.ip for c in each.net_connections() if c.status == "LISTEN"}
            environments[each.pid] = Path(f"/proc/{each.pid}/environ").read_bytes().decode(errors="replace")
    assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert len(environments) > 3 and not [pid for pid, text in environments.items() if TOKEN in text]

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "long: still running" in output and search.is_running()
    process, client = start("")
    assert client.get("long")["state"] == "running" and client.get("short")["state"] == "queued"

    client.stop("long")
    assert client.wait("long", 180)["state"] == "interrupted"
    (end,) = events(folder, "experiment_finished")
    assert (end["state"], end["reason"]) == ("interrupted", "interrupted by SIGTERM")
    assert (folder / "best" / "config.json").is_file()  # as after Ctrl-C
    done = {e["trial"]: e["epoch"] for e in events(folder, "report")}
    assert client.wait("short", 180)["state"] == "finished"

    client.resume("long", num_samples=31)
    until(lambda: len(events(folder, "experiment_resumed")) == 1)
    until(lambda: len(events(folder, "report")) > len(done) + 2)
    client.stop("long")
    assert client.wait("long", 180)["state"] == "interrupted"
    epochs = [(e["trial"], e["epoch"]) for e in events(folder, "report")]
    assert len(epochs) == len(set(epochs))  # what was trained was not trained again
