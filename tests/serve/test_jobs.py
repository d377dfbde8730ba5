"""Searches as Ray jobs, for real: `python -m tuner.serve` and its client, on the cluster that it starts."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tuner.serve.access.state import state_folder
from tuner.serve.client import Client
from tuner.serve.jobs.ray_jobs import find_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def until(true, timeout_s=120):
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.3)


def listening(pid):
    """Addresses at which a process and all below it listen."""
    import psutil  # Ray ships it

    head = psutil.Process(pid)
    addresses = set()
    for process in (head, *head.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # Ray starts and ends processes all the time
            addresses |= {c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"}
    return addresses


def events(folder, kind):
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def test_a_search_outlives_the_service_stops_as_by_ctrl_c_and_is_resumed(real):
    client, folder = real.client, real.results / "long"
    client.start("cifar", name="long", num_samples=30)
    client.start("quadratic", name="short", num_samples=2)
    until(lambda: any(trial["epochs"] for trial in client.trials("long")))
    assert client.get("short")["state"] == "queued"
    cluster = find_cluster(real.state)
    addresses = listening(cluster.pid)
    assert addresses and addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

    real.process.terminate()
    output, _ = real.process.communicate(timeout=60)
    assert real.process.returncode == 0 and "long: still running" in output and cluster.head()
    again = subprocess.Popen(real.command, stdout=subprocess.PIPE, text=True)
    url = again.stdout.readline().split(" at ")[1].split()[0]
    client = Client(url, (real.state / "token").read_text())
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

    again.terminate()
    again.communicate(timeout=90)
    until(lambda: not cluster.head() and not Path(cluster.folder).exists())


def test_no_process_of_a_search_has_the_services_token(tmp_path):
    """By what the kernel says of the head and of all that it starts, a job among them."""
    import psutil

    results, token = tmp_path / "results", "a token that only the service has"
    results.mkdir()
    command = [sys.executable, "-m", "tuner.serve", "--results", str(results), "--port", "0", "--wandb", "disabled"]
    service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TUNER_TOKEN": token})
    try:
        client = Client(service.stdout.readline().split(" at ")[1].split()[0], token)
        client.start("quadratic", name="a", num_samples=200)
        until(lambda: client.get("a")["epochs"])
        head = psutil.Process(find_cluster(state_folder(results)).pid)
        seen = {process.pid: "" for process in (head, *head.children(recursive=True))}
        for pid in seen:
            with suppress(OSError):
                seen[pid] = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
        assert len(seen) > 5 and not [pid for pid, text in seen.items() if token in text]
        assert any("RAY_AUTH_TOKEN_PATH" in text for text in seen.values())
        client.stop("a")
        client.wait("a", 120)
    finally:
        service.terminate()
        service.communicate(timeout=90)
        if cluster := find_cluster(state_folder(results)):
            cluster.end()
