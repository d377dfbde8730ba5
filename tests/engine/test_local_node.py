"""How Ray's start is watched: a raylet that is slow, one that ends, a second start, and what the user is told."""

import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest
from killing import COMMAND, SPACES, left_of, num_lines, repeated_and_lost, seen, start
from ray._private import node
from ray.exceptions import RpcError
from tiers import further

from tuner.engine.local import node as local_node
from tuner.engine.local import signals
from tuner.errors import RequestError
from tuner.record.results import load
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
    monkeypatch.setattr(local_node, "REGISTRATION_TIMEOUT_S", 0.0)
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
            {"raylet.out": "Check failed: old\n" + " \n" * local_node.LOG_TAIL_BYTES + "Check failed: new" + "b" * 999},
            "raylet.out: Check failed: new" + "b" * 999,  # of a long log only the end is read
        ),
        ({"raylet.err": "*** SIGSEGV received at time=1\n"}, "raylet.err: *** SIGSEGV received at time=1"),
        ({"dashboard_agent.err": "Traceback\nImportError: no x\n"}, "dashboard_agent.err: ImportError: no x"),
    ],
)
def test_the_line_of_the_logs_that_names_the_cause_is_found(tmp_path, logs, line):
    write(tmp_path, logs)
    assert local_node.cause_in_logs(str(tmp_path)) == line[: local_node.MAX_LOG_LINE_CHARS + len("raylet.out: ")]


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


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AF_UNIX path length cannot exceed 107 bytes: /long", "set RAY_TMPDIR"),
        ("raylet.err: terminate called: locale::facet::_S_create_c_locale name not valid", "LC_ALL=C.UTF-8"),
        ("'utf-8' codec can't encode character '\\udcc3' in position 5", "LC_ALL=C.UTF-8"),
        ("Check failed: PlasmaAllocator initialization failed", "/dev/shm"),
        ("std::bad_alloc", "free memory"),
        ("[Errno 24] Too many open files", "ulimit -n"),
        ("can't start new thread", "ulimit -u"),
    ],
)
def test_the_remedy_of_a_known_cause_is_told_at_once_and_the_load_is_not(outcomes, monkeypatch, reason, words):
    left, _ = outcomes
    left += [ChildProcessError(reason), None]
    monkeypatch.setattr(driver, "busy", lambda: "; the machine is busy: load 21 on 2 cores")
    monkeypatch.setattr(driver, "cause_in_logs", lambda folder: "")
    with pytest.raises(RequestError) as refused:
        started()
    text = str(refused.value)
    assert "codec" in text or reason in text
    assert words in text and "busy" not in text and left == [None]


def test_a_limit_of_the_address_space_is_told_as_such(outcomes, monkeypatch):
    monkeypatch.setattr(driver.resource, "getrlimit", lambda which: (4000 << 20, 4000 << 20))
    outcomes[0].append(ChildProcessError("Check failed: PlasmaAllocator initialization failed; /dev/shm"))
    with pytest.raises(RequestError, match="more address space than the 4,000 MiB .*; run: ulimit -v unlimited$"):
        started()


def test_the_load_is_told_only_of_a_start_that_took_too_long(outcomes, monkeypatch, capsys):
    left, _ = outcomes
    monkeypatch.setattr(driver, "busy", lambda: "; busy")
    monkeypatch.setattr(driver, "cause_in_logs", lambda folder: "")
    left += [ChildProcessError("Ray's raylet was ended by SIGKILL"), TimeoutError("Ray's raylet has not registered")]
    with pytest.raises(RequestError, match=r"has not registered\); busy; try again when less runs here$"):
        started()
    assert "busy" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["HOME", "RAY_TMPDIR"])
def test_a_folder_that_cannot_be_made_names_its_variable(outcomes, monkeypatch, name):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv(name, "/dev/null/x")
    with pytest.raises(RequestError, match=f"Ray does not start: .*/dev/null.*; (Ray keeps .*)?set {name} to a"):
        started()


@pytest.fixture
def fate(monkeypatch):
    """Runs a `watched` block until `lost` is called or 0.1 s are over; returns what was lost."""

    def meet(*dead):
        heard = []
        rays = SimpleNamespace(dead_processes=lambda: [(name, SimpleNamespace(returncode=-9)) for name in dead])
        monkeypatch.setattr(local_node.worker, "_global_node", rays)
        monkeypatch.setattr(local_node, "WATCH_INTERVAL_S", 0.01)
        monkeypatch.setattr(local_node, "lost", heard.append)
        with local_node.watched(lambda: "continue"):
            (watch,) = (thread for thread in threading.enumerate() if thread.name == "watch")
            watch.join(0.1)
        watch.join()
        return heard

    return meet


def test_a_process_of_rays_that_ends_in_a_search_is_named_with_how_to_continue(fate):
    assert fate("raylet", "gcs_server") == [
        "tuner: Ray's raylet was ended by SIGKILL and Ray's gcs_server was ended by SIGKILL; continue"
    ]
    assert fate() == []


def test_a_start_that_hangs_after_a_process_of_rays_has_ended_is_ended(monkeypatch):
    heard = []
    monkeypatch.setattr(local_node, "WATCH_INTERVAL_S", 0.01)
    monkeypatch.setattr(local_node, "STUCK_S", 0.3)
    monkeypatch.setattr(local_node, "lost", heard.append)
    alive, ended = (subprocess.Popen([sys.executable, "-c", code]) for code in (LIVES, "raise SystemExit(3)"))
    ended.wait()
    monkeypatch.setattr(local_node.LocalNode, "processes", [alive, ended])
    with local_node.start_watched():
        time.sleep(0.1)
        assert not heard  # Python code has the time to raise its own error
        time.sleep(1)
    alive.kill()
    alive.wait()
    name = Path(sys.executable).name
    assert heard == [f"tuner: Ray's {name} ended with code 3; no trial had started; start the search again"]


def test_an_error_that_a_dead_ray_may_have_caused_is_told_as_rays_end(monkeypatch):
    heard = []
    rays = SimpleNamespace(dead_processes=lambda: [("raylet", SimpleNamespace(returncode=-9))])
    monkeypatch.setattr(local_node.worker, "_global_node", rays)
    monkeypatch.setattr(local_node, "lost", heard.append)
    with pytest.raises(RequestError), local_node.watched(lambda: "continue"):
        raise RequestError("there are 0 CPUs")
    assert heard == ["tuner: Ray's raylet was ended by SIGKILL; continue"]


def test_the_agents_of_a_raylet_that_died_are_ended_and_no_others(tmp_path):
    code = ["-c", "import time; time.sleep(60)"]
    log = open(tmp_path / "log", "w")
    agents = [
        subprocess.Popen([sys.executable, *code, f"--log-dir={tmp_path}/ray/logs"]),
        subprocess.Popen(["ray::RuntimeEnvAgent", *code], executable=sys.executable, stdout=log),  # as it calls itself
    ]
    others = [
        subprocess.Popen([sys.executable, *code, str(tmp_path)], stdout=log),
        subprocess.Popen(["ray::RuntimeEnvAgent", *code], executable=sys.executable),
    ]
    signals.end_strays(str(tmp_path))
    assert [agent.wait(10) for agent in agents] == [-signal.SIGKILL] * 2
    log.close()
    for other in others:
        assert other.poll() is None
        other.kill()
        other.wait()


WATCHED = """
import os, signal, sys, time
from types import SimpleNamespace
from tuner.engine.local import node
node.worker._global_node = SimpleNamespace(dead_processes=list)
node.WATCH_INTERVAL_S = 0.01
texts = ["no trial", "continue with: x --name 'a\\\\b'"]
with node.watched(lambda: texts[0]):
    time.sleep(0.1)
    del texts[0]
    time.sleep(0.1)
    node.worker._global_node = None  # which Ray looks at when Python ends
    os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [0, signal.SIGINT, signal.SIGKILL])
def test_a_process_that_is_killed_leaves_a_last_line_and_one_that_ends_does_not(number):
    done = subprocess.run([sys.executable, "-c", WATCHED, str(int(number))], capture_output=True, text=True)
    assert (done.returncode == -number) == (number != signal.SIGINT)
    line = "\ntuner: the search or its Ray was killed; continue with: x --name 'a\\b'\n"
    assert done.stderr == line if number == signal.SIGKILL else "killed" not in done.stderr


def test_the_watchdog_outlives_the_signals_of_a_terminal_and_nothing_else(monkeypatch):
    dog = subprocess.Popen(["sh", "-c", local_node.WATCHDOG], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    dog.stdin.write(b"first\n")
    dog.stdin.flush()
    time.sleep(0.2)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        dog.send_signal(number)
    assert dog.communicate(b"last\n")[1] == b"\nlast\n" and dog.returncode == 0


@pytest.mark.parametrize("name", further(["raylet", "gcs_server", "ray::RuntimeEnvAgent"], 2))
def test_a_search_whose_ray_dies_names_the_command_that_continues_it(tmp_path, name):
    options = [*COMMAND, "--space", f"{SPACES / 'tiny.py'}:slow", "--scheduler", "fifo", "--num-samples", "2"]
    command = [*options, "--max-epochs", "6", "--results", str(tmp_path / "my results"), "--name", "x"]
    process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "my results/x/journal.jsonl"
    while num_lines(journal) < 7:
        assert process.poll() is None
        time.sleep(0.05)
    rays = psutil.Process(process.pid).children(recursive=True)
    next(each for each, its_name in seen(rays, psutil.Process.name) if its_name == name).kill()
    error = process.communicate(timeout=30)[1]
    last, told = error.splitlines()[-1], f"tuner: Ray's {name} was ended by SIGKILL"
    if name in local_node.LOGS:
        assert process.returncode == 130 and last.startswith(told)
    else:  # the raylet ends itself then, and Ray's core ends the driver before it looks
        assert process.returncode in (1, 130) and last.startswith("tuner: ")
    assert not psutil.wait_procs(rays, timeout=10)[1] and json.loads(journal.read_bytes().splitlines()[-1])
    words = shlex.split(error.rpartition(": ")[2])
    subprocess.run([sys.executable, *words[1:], "--wandb", "disabled"], check=True, capture_output=True)
    assert {trial.status for trial in load(tmp_path / "my results/x").trials} == {"completed"}
    assert repeated_and_lost(tmp_path / "my results/x") == (0, 0)


@pytest.mark.parametrize("after_s", further([number / 5 for number in range(10)]))
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_a_process_of_rays_that_ends_while_ray_starts_ends_or_restarts_the_start(tmp_path, sessions, name, after_s):
    options = ["--space", "quadratic", "--num-samples", "2", "--results", str(tmp_path), "--name", "x"]
    process = start(
        [*COMMAND, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(sessions), "TUNER_TEST": str(tmp_path)},
    )
    rays = []
    while not rays:
        assert process.poll() is None
        below = psutil.Process(process.pid).children(recursive=True)
        rays = [each for each, its_name in seen(below, psutil.Process.name) if its_name == name]
    time.sleep(after_s)
    rays[0].kill()
    killed = time.monotonic()
    error = process.communicate(timeout=100)[1]
    assert "Traceback" not in error and f"Ray's {name} was ended by SIGKILL" in error
    assert process.returncode == 0 or process.returncode in (1, 130) and time.monotonic() < killed + 15
    process.mark = f"TUNER_TEST={tmp_path}".encode()
    end = time.monotonic() + 20
    while left_of(process) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left_of(process) and not [*sessions.iterdir()]


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


DEAF = """
import ctypes, sys, time
from subprocess import DEVNULL, Popen
from tuner.engine.local.node import killed_if_deaf, start_watched
quiet = {"stdout": DEVNULL, "stderr": DEVNULL}
ray = [Popen([f"{sys.argv[1]}/{name}", "30"], **quiet) for name in ("gcs_server", "raylet")]
with start_watched(), killed_if_deaf(ray):
    time.sleep(2)
    ray[1].kill()
    ray[1].wait()
    ctypes.PyDLL(None).sleep(60)  # keeps Python's lock
"""


@pytest.mark.slow  # 16 s
def test_a_start_of_ray_that_keeps_pythons_lock_after_its_raylet_has_ended_is_killed(tmp_path):
    for name in ("gcs_server", "raylet"):
        shutil.copy("/bin/sleep", tmp_path / name)
    done = subprocess.run([sys.executable, "-c", DEAF, tmp_path], capture_output=True, text=True, timeout=45)
    assert done.returncode == -signal.SIGKILL
    assert "no trial had started; start the search again" in done.stderr
