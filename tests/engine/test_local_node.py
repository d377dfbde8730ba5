"""How Ray's start is watched: a raylet that is slow, one that ends, a second start, and what the user is told."""

import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from ray._private import node
from ray.exceptions import RpcError

from tuner.engine.local import node as local_node
from tuner.errors import RequestError
from tuner.tuning import driver

NODE = bytes.fromhex("ab" * 28)
ABORTED = (
    "[2026-11-24 23:20:49,427 C 3550 3550] (raylet) node_manager.cc:3576:  An unexpected system state has occurred. "
    "You have likely discovered a bug in Ray. Please report this issue at URL and we'll work with you to fix it. Check "
    "failed: has_value() Timed out waiting for file x"
)


@pytest.fixture
def starting(monkeypatch, tmp_path):
    """Starts a node whose raylet runs `code`, and whose GCS gives these answers, the last one forever."""
    processes = []

    def start(code, *answers):
        started = object.__new__(local_node.LocalNode)
        started.all_processes, started._node_id, started._session_dir = {}, NODE.hex(), str(tmp_path)
        gcs = mock.Mock()
        gcs.get_all_node_info.side_effect = itertools.chain(answers, itertools.repeat(answers[-1]))
        started.get_gcs_client = lambda: gcs

        def start_raylet(self):
            process = subprocess.Popen([sys.executable, "-c", code])
            processes.append(SimpleNamespace(process=process))  # Ray's record of it
            self.all_processes["raylet"] = processes[-1:]

        monkeypatch.setattr(node.Node, "start_raylet", start_raylet)
        with local_node.local_node():
            started.start_raylet()

    yield start
    for each in processes:
        each.process.kill()
        each.process.wait()


LIVES = "import time; time.sleep(300)"


def test_a_raylet_that_lives_is_waited_for(starting, tmp_path):
    slow = RpcError("deadline", rpc_code=4), {}, {}, {b"\x01" * 28: None}, {NODE: None}
    starting(LIVES, *slow)
    port = (tmp_path / f"dashboard_agent_listen_port_{NODE.hex()}").read_text()
    assert int(port) in local_node.LocalNode.ports  # the raylet would wait only 15 s for this file


def test_a_raylet_that_ends_or_never_registers_is_given_up(starting, monkeypatch):
    with pytest.raises(ChildProcessError, match="Ray's raylet was ended by SIGABRT"):
        starting("import os; os.abort()", {})
    with pytest.raises(ChildProcessError, match="Ray's raylet ended with code 3"):
        starting("raise SystemExit(3)", {})
    monkeypatch.setattr(local_node, "START_S", 0.0)
    with pytest.raises(TimeoutError, match="lives, but has not registered"):
        starting(LIVES, {})


def test_ports_are_reserved_for_rays_processes_alone():
    before = node.Node
    with local_node.local_node():
        assert node.Node is local_node.LocalNode
        ports = local_node.LocalNode.ports
        assert len(set(ports)) == len(local_node.PORTS)
        for port in ports:
            with socket.socket() as rays, socket.socket() as foreign:
                with pytest.raises(OSError):
                    foreign.bind(("127.0.0.1", port))
                rays.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                rays.bind(("127.0.0.1", port))
                rays.listen()
    assert node.Node is before


@pytest.mark.parametrize(
    ("logs", "line"),
    [
        ({}, ""),
        ({"raylet.out": "[2026 I 1 1] (raylet) main.cc:283: Setting cluster ID\n"}, ""),
        (
            {"gcs_server.out": "[2026 E 1 1] (gcs) x.cc:1: late\n", "raylet.out": f"[2026 E 1 1] x\n{ABORTED}\n"},
            "raylet.out: (raylet) node_manager.cc:3576:  Check failed: has_value() Timed out waiting for file x",
        ),
        (
            {"raylet.out": "Check failed: old\n" + " \n" * local_node.TAIL_BYTES + "Check failed: new" + "b" * 999},
            "raylet.out: Check failed: new" + "b" * 999,  # of a long log only the end is read
        ),
        ({"raylet.err": "*** SIGSEGV received at time=1\n"}, "raylet.err: *** SIGSEGV received at time=1"),
        ({"dashboard_agent.err": "Traceback\nImportError: no x\n"}, "dashboard_agent.err: ImportError: no x"),
    ],
)
def test_the_line_of_the_logs_that_names_the_cause_is_found(tmp_path, logs, line):
    write(tmp_path, logs)
    assert local_node.cause_in_logs(str(tmp_path)) == line[: local_node.MOST_CHARS + len("raylet.out: ")]


def write(folder, logs):
    """Writes logs where Ray writes them, in the folder that `ray.init` gets."""
    (folder / "session_2026/logs").mkdir(parents=True, exist_ok=True)
    for name, text in logs.items():
        (folder / "session_2026/logs" / name).write_text(text)


@pytest.fixture
def outcomes(monkeypatch, tmp_path):
    """What each start of Ray in turn does: None works, an exception is raised after the raylet has written its log."""
    left, folders = [], []

    def init(address, *, _temp_dir, **options):
        folders.append(Path(_temp_dir))
        write(folders[-1], {"raylet.out": f"{ABORTED}\n"})
        if error := left.pop(0):
            raise error

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(driver.ray, "init", init)
    monkeypatch.setattr(driver.ray, "shutdown", lambda: None)
    monkeypatch.setattr(driver, "busy", lambda: "")
    return left, folders


def started():
    return driver.started({"CPU": 1.0, "GPU": 0.0}, 1, ())


def test_a_start_that_fails_is_repeated_once_and_the_reason_is_told(outcomes, capsys):
    left, folders = outcomes
    left += [ChildProcessError("Ray's raylet was ended by SIGABRT"), None]
    with started():
        assert [folder.exists() for folder in folders] == [False, True] and not left
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert "SIGABRT" in printed.err and "Timed out waiting for file x" in printed.err
    assert "starting it a second time" in printed.err and not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("busy", ["; the machine is busy: load 21 on 2 cores", ""])
def test_a_second_failure_ends_the_command_with_the_logs_own_line(outcomes, monkeypatch, busy):
    left, folders = outcomes
    left += [ChildProcessError("Ray's raylet was ended by SIGABRT")] * 2
    monkeypatch.setattr(driver, "busy", lambda: busy)
    with pytest.raises(RequestError) as refused:
        started()
    text = str(refused.value)
    assert "Timed out waiting for file x" in text and "RAY_TMPDIR" not in text
    assert busy in text and ("less runs" in text) == bool(busy) and not any(folder.exists() for folder in folders)


def test_a_folder_that_ray_cannot_use_is_told_at_once(outcomes):
    left, _ = outcomes
    left += [OSError("AF_UNIX path length cannot exceed 107 bytes: /long"), None]
    with pytest.raises(RequestError, match="107 bytes.*set RAY_TMPDIR to a short writable path"):
        started()
    assert left == [None]


AGENTS_ARE_SLOW = """
import pathlib, time
if b"agent/main.py" in (words := pathlib.Path("/proc/self/cmdline").read_bytes()) or b"dashboard/agent.py" in words:
    time.sleep(20)  # Ray's own raylet aborts after 15 s
"""


@pytest.mark.slow
def test_a_search_runs_although_rays_agents_take_longer_than_its_raylet_waits(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(AGENTS_ARE_SLOW)
    env = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-m", "tuner.run", "--space", "quadratic", "--num-samples", "2", "--wandb", "disabled"]
    ran = subprocess.run([*command, "--results", "results"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0 and "second time" not in ran.stderr, ran.stderr
