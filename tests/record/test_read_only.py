"""Results on a disk that takes nothing: what reads shows them, what writes says so in one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import further

from tests.serve.conftest import begin, train

# root may write whatever a mode says: only the mount refuses, in a namespace of its own.
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
ASK = """
import sys, httpx, subprocess
served = subprocess.Popen([sys.executable, "-m", "tuner.serve", "--results", sys.argv[1], "--port", "0"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
url = served.stdout.readline().split(" at ")[1].split()[0]
for part in ("", "/trials", "/rungs", "/figures"):
    httpx.get(f"{url}api/experiments/mine{part}", trust_env=False).raise_for_status()
print(httpx.get(f"{url}api/experiments", trust_env=False).json()["experiments"][0]["state"])
served.terminate()
print(served.communicate(timeout=30)[1], served.returncode)
"""


@pytest.fixture
def mounted(tmp_path):
    """Runs a command while `tmp_path/results` with one search is mounted read-only."""
    probe = ["unshare", "--mount", "bash", "-c", MOUNT, str(tmp_path), "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    (tmp_path / "results").mkdir()
    journal = begin(tmp_path / "results", "mine")
    config, stop = {"x": 1.0, "speed": 1.0, "noise": 0.0}, {"action": "stop", "reason": "slow"}
    rung = {"epoch": 1, "rung": 1, "bracket": 0, "value": 1.0, "cutoff": 0.5, "recorded": 2}
    train(journal, "00000", config, [1.0], rung | stop, status="pruned", reason="slow")
    train(journal, "00001", config, [0.5] * 10)
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()

    def run(*argv):
        command = ["unshare", "--mount", "bash", "-c", MOUNT, str(tmp_path / "results"), sys.executable, *argv]
        env = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=env)

    return run


def test_the_dashboard_shows_it(mounted, tmp_path):
    ran = mounted("-c", ASK, str(tmp_path / "results"))
    assert ran.stdout.split() == ["finished", "0"], ran


@pytest.mark.parametrize(
    "argv",
    [
        ["tuner.report", "mine"],
        ["tuner.run", "--resume", "mine", "--num-samples", "20"],
        *further([
            (["tuner.audit", "mine"],),
            (["tuner.run", "--space", "quadratic"],),  # starts a Ray of its own before it writes
            (["tuner", "mirror", "results/mine", "--mode", "offline", "--all"],),
        ], 3),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_would_write_says_so_in_one_line(mounted, tmp_path, argv):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("*")}
    ran = mounted("-m", *argv)
    lines = [line for line in ran.stderr.splitlines() if not line.startswith("still ")]  # on a busy machine
    assert ran.returncode == 2 and len(lines) == 1 and lines[0].startswith("tuner: error: "), ran
    assert "ritten" in lines[0] or "Read-only" in lines[0]
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "results").rglob("*")}
