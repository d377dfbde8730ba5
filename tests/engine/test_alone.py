"""Ray of one search on this machine: its processes are started ahead, listen on loopback, and leave no secret."""

import contextlib
import http.client
import ipaddress
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tuner.engine.local import alone
from tuner.engine.local.alone import importing, keep_token_private, start_ahead
from tuner.engine.workers.trainable import session_folder
from tuner.training.group import Processes

SCRIPT = """
import json, sys, time
import tuner.tuning.driver
import psutil, ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tuner.engine.local.alone import private_options, start_ahead

def idle():
    return sum(process.name() == "ray::IDLE" for process in psutil.Process().children(recursive=True))

class Actor:
    def look(self):
        return "colorsys" in sys.modules

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, **private_options(None, 3, ["colorsys"]))
start_ahead(3)
end = time.monotonic() + 30
while (started := idle()) < 3 and time.monotonic() < end:
    time.sleep(0.1)
group = placement_group([{"CPU": 1}, {"CPU": 1}])
ray.get(group.ready())
time.sleep(3)  # Ray ends those that have been idle for a second
kept, actors = idle(), []
for index, cpus in ((0, 0), (0, 1), (1, 1)):
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    actors.append(ray.remote(Actor).options(num_cpus=cpus, scheduling_strategy=strategy).remote())
imported = ray.get([actor.look.remote() for actor in actors])
print(json.dumps({"started": started, "kept": kept, "left": idle(), "imported": imported}))
ray.shutdown()
"""


@pytest.mark.slow  # a Ray of its own; by default `test_contract.py` has what is used of Ray here
def test_processes_wait_for_the_actors_of_a_placement_group_that_takes_all_cpus():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout.splitlines()[-1])
    assert printed == {"started": 3, "kept": 3, "left": 0, "imported": [True] * 3}


@pytest.mark.slow  # 5 s, to start a Ray
def test_a_raylet_that_does_not_answer_is_told_and_not_waited_for(one_ray, monkeypatch, caplog):
    monkeypatch.setattr(one_ray, "nodes", lambda: [{"NodeManagerAddress": "127.0.0.1", "NodeManagerPort": 1}])
    start_ahead(1)
    assert "no worker was started ahead" in caplog.text


def test_modules_that_import_each_other_are_whole_once_the_block_has_ended(tmp_path, monkeypatch):
    package = tmp_path / "circle"
    package.mkdir()
    (package / "__init__.py").write_text("from circle.first import Name")
    (package / "first.py").write_text("import time; time.sleep(0.5); import circle.second; Name = str")
    (package / "second.py").write_text("import time; time.sleep(0.5); import circle")
    monkeypatch.syspath_prepend(tmp_path)
    with importing(["circle"]):
        pass
    assert sys.modules["circle"].Name is str


def test_a_module_that_cannot_be_imported_is_an_error_of_the_block():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), importing(["no_such_module"]):
        pass


def listening(pid):
    """(name of the process, address) of each TCP socket that a process or one that it started listens on."""
    listeners = set()
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                sockets = process.net_connections("tcp")
                listeners |= {(process.name(), each.laddr.ip) for each in sockets if each.status == psutil.CONN_LISTEN}
    return listeners


def is_loopback(address):
    parsed = ipaddress.ip_address(address)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


def answers(port, path):
    """Whether whatever listens on a port of loopback answers a request that has no token."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        with contextlib.suppress(OSError, http.client.HTTPException):  # gRPC does not understand the request
            connection.request("GET", path)
            return connection.getresponse().status < 400
    return False


EXPECTED = {"gcs_server", "raylet", "ray::IDLE", "ray::RuntimeEnvAgent"}


WITH_RAY = """
import sys
from tuner.engine.local.process_state import process_state
from tuner.engine.local.signals import signals_to
from tuner.spec.experiment import Options
from tuner.tuning.driver import ray_here
with process_state(), signals_to(print), ray_here(Options(), ()):
    print("started", flush=True)
    sys.stdin.read()
"""


def test_the_ray_of_a_search_listens_on_loopback_alone_keeps_files_private_and_leaves_signals(tmp_path, sessions):
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"HOME": str(tmp_path), "RAY_TMPDIR": str(sessions)}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    driver = subprocess.Popen([sys.executable, "-c", WITH_RAY], env=env, umask=0o022, text=True, **pipes)
    assert driver.stdout.readline() == "started\n"
    listeners, end = set(), time.monotonic() + 60
    while not (EXPECTED <= {name for name, _ in listeners}) and time.monotonic() < end:
        listeners |= listening(driver.pid)
    assert EXPECTED <= {name for name, _ in listeners}
    assert all(is_loopback(address) for _, address in listeners), sorted(listeners)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in sessions.iterdir()] == [0o700]
    rays = psutil.Process(driver.pid).children(recursive=True)
    for each in rays:  # a closed terminal sends it to each process of the command, but only the driver may end Ray
        each.send_signal(signal.SIGHUP)
    ports = {c.laddr.port for each in rays for c in each.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert len(ports) >= len(EXPECTED)
    paths = "/metrics", "/api/healthz", "/api/local_raylet_healthz"
    assert not [path for port in ports for path in paths if answers(port, path)]
    assert not any("DashboardAgent" in word or "dashboard/agent" in word for each in rays for word in each.cmdline())
    assert rays and not psutil.wait_procs(rays, timeout=0.5)[0]
    driver.terminate()
    assert driver.communicate(timeout=60) == ("interrupted by SIGTERM\n", "") and driver.returncode == 0
    assert not list(sessions.iterdir())
    token = tmp_path / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and stat.S_IMODE(token.parent.stat().st_mode) == 0o700


def test_the_next_search_removes_the_folders_of_killed_ones_and_nothing_else(sessions, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(sessions))
    (outside := tmp_path / "outside").mkdir()
    (outside / "kept").touch()
    (sessions / "tuner_own").mkdir()
    (sessions / "tuner_own" / "owned").touch()  # a user's own folder
    (sessions / "tuner_file").touch()
    (sessions / "tuner_link").symlink_to(outside)
    reading, writing = os.pipe()
    if not os.fork():  # a search that is killed
        with alone.session_folder() as folder:
            Path(folder, "session").mkdir(parents=True)
            Path(folder, "session", "link").symlink_to(outside)
            words = [sys.executable, "-c", "import time; time.sleep(60)", f"--temp-dir={folder}/session"]
            subprocess.Popen(words, pass_fds=[writing])  # an agent of its Ray
            os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    os.close(writing)
    kept = {"tuner_own", "tuner_file", "tuner_link"}
    (killed,) = {each.name for each in sessions.iterdir()} - kept
    shutil.copytree(sessions / killed, sessions / "tuner_copy", symlinks=True)
    kept.add("tuner_copy")
    with alone.session_folder() as first, alone.session_folder() as second:
        mine = {Path(folder).parent.name for folder in (first, second)}
        assert {each.name for each in sessions.iterdir()} == {*kept, *mine} and killed not in mine
    with open(reading) as pipe:
        assert select.select([pipe], [], [], 10)[0]  # the agent has ended
    assert {each.name for each in sessions.iterdir()} == kept
    assert os.listdir(sessions / "tuner_own") == ["owned"] and (sessions / "tuner_copy" / "ray" / "session").exists()
    assert os.listdir(outside) == ["kept"]


def test_checkpoints_are_written_in_rays_session_which_a_killed_worker_leaves_to_it(tmp_path, monkeypatch):
    from ray._private import worker

    monkeypatch.setattr(worker, "_global_node", SimpleNamespace(get_session_dir_path=lambda: str(tmp_path)))
    with session_folder() as folder:
        assert Path(folder).parents[1] == tmp_path
    monkeypatch.setattr(worker, "_global_node", None)
    with session_folder() as folder:
        assert Path(folder).is_dir()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".ray").mkdir()
    return tmp_path / ".ray" / "auth_token"


@pytest.mark.parametrize("mode, becomes", [(0o644, 0o600), (0o600, 0o600), (0o640, 0o640), (0o400, 0o400)])
def test_a_token_that_is_there_keeps_its_content_and_everybody_loses_it(home, mode, becomes):
    home.write_text("the user's own")
    home.chmod(mode)
    keep_token_private()
    assert home.read_text() == "the user's own" and stat.S_IMODE(home.stat().st_mode) == becomes
    target = home.rename(home.with_name("elsewhere"))  # what a link leads to is not changed
    target.chmod(mode)
    home.symlink_to(target)
    keep_token_private()
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_whoever_wants_no_token_gets_none(home, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    keep_token_private()
    assert not home.exists()


def nothing():
    return None, None


def test_the_processes_of_a_ddp_trial_meet_on_loopback_alone():
    with contextlib.closing(Processes(nothing, 2)) as group:
        listeners = set().union(*(listening(process.pid) for process in group.processes))
    assert listeners and all(is_loopback(address) for _, address in listeners), sorted(listeners)
