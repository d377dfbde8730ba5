"""Searches as Ray jobs, for real: `python -m tuner.serve` and its client, on the cluster that it starts."""

import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.serve.conftest import TOKEN, started
from tuner.record.reading import read
from tuner.serve.access.state import state_folder
from tuner.serve.client import Client
from tuner.serve.jobs.ray_jobs import find_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def served(tmp_path):
    """Starts `python -m tuner.serve` over an empty folder; ends it and its cluster if the test fails."""
    results = tmp_path / "results"
    results.mkdir()
    argv = ["-m", "tuner.serve", "--results", str(results), "--port", "0", "--wandb", "disabled"]
    with ExitStack() as services:

        def start(token):
            env = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
            env |= {"TUNER_TOKEN": token} if token else {}
            process, url = services.enter_context(started(*argv, env=env))
            return process, Client(url, token or (state_folder(results) / "token").read_text())

        yield results, start
    if cluster := find_cluster(state_folder(results)):
        cluster.end()


def until(true, timeout_s=120):
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.3)


def events(folder, kind):
    return [event for event in read(folder / "journal.jsonl") if event["event"] == kind]


def test_a_search_without_the_services_token_outlives_it_stops_as_by_ctrl_c_and_is_resumed(served):
    results, start = served
    process, client = start(TOKEN)
    folder = results / "long"
    client.start("cifar", name="long", num_samples=30)
    client.start("quadratic", name="short", num_samples=2)
    until(lambda: any(trial["epochs"] for trial in client.trials("long")))
    assert client.get("short")["state"] == "queued"
    cluster = find_cluster(state_folder(results))
    head, addresses, environments = psutil.Process(cluster.pid), set(), {}
    for each in (head, *head.children(recursive=True)):  # what the kernel says of them
        with suppress(psutil.NoSuchProcess, OSError):  # Ray starts and ends processes all the time
            addresses |= {c.laddr.ip for c in each.net_connections() if c.status == "LISTEN"}
            environments[each.pid] = Path(f"/proc/{each.pid}/environ").read_bytes().decode(errors="replace")
    assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert len(environments) > 5 and not [pid for pid, text in environments.items() if TOKEN in text]
    assert any("RAY_AUTH_TOKEN_PATH" in text for text in environments.values())

    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "long: still running" in output and cluster.head()
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

    process.terminate()
    process.communicate(timeout=90)
    until(lambda: not cluster.head() and not Path(cluster.folder).exists())
