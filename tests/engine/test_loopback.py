"""A search without `--address` is reached from its own machine alone, and leaves no secret that others can read."""

import contextlib
import ipaddress
import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from killing import TRIAL_ACTORS

from tuner.engine.local.alone import keep_token_private
from tuner.training.group import Processes


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


@pytest.fixture
def sessions():
    """Where Ray's session goes; a short path, because those of sockets below it have 107 characters at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_a_search_listens_on_loopback_alone_and_its_files_are_private(tmp_path, sessions):
    command = [sys.executable, "-m", "tuner.run", "--space", "quadratic", "--num-samples", "4", "--wandb", "disabled"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    env |= {"HOME": str(tmp_path), "RAY_TMPDIR": str(sessions)}
    with open(tmp_path / "output", "w") as output:
        search = subprocess.Popen(
            [*command, "--results", str(tmp_path / "results")], env=env, stdout=output, stderr=output, umask=0o022
        )
        listeners, modes = set(), set()
        while search.poll() is None:
            listeners |= listening(search.pid)
            with contextlib.suppress(FileNotFoundError):
                modes |= {stat.S_IMODE(folder.stat().st_mode) for folder in sessions.iterdir()}
            time.sleep(0.3)  # a look takes 50 ms of a CPU
    assert modes == {0o700} and not list(sessions.iterdir())
    assert search.returncode == 0, (tmp_path / "output").read_text()
    names = {name for name, _ in listeners}
    assert {"gcs_server", "raylet"} <= names and any(name.startswith(TRIAL_ACTORS) for name in names)
    assert all(is_loopback(address) for _, address in listeners), sorted(listeners)
    token = tmp_path / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and stat.S_IMODE(token.parent.stat().st_mode) == 0o700


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


def test_what_a_link_points_to_is_not_changed(home, tmp_path):
    (tmp_path / "elsewhere").write_text("x")
    (tmp_path / "elsewhere").chmod(0o644)
    home.symlink_to(tmp_path / "elsewhere")
    keep_token_private()
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o644


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
