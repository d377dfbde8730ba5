"""The README's own command, under `uv run`: its workers use the driver's environment, and no other one is built."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from journals import read

import tuner

ROOT = Path(__file__).parents[2]
UV = os.environ.get("UV") or shutil.which("uv")


@pytest.mark.slow  # a Ray of its own; by default `test_main.py` has what keeps Ray from another environment
@pytest.mark.skipif(not UV or Path(sys.prefix) != ROOT / ".venv", reason="runs where uv has made the environment")
def test_workers_under_uv_use_the_drivers_environment(tmp_path, sessions):
    readme = (ROOT / "README.md").read_text()
    (words,) = re.findall(r"^pip install uv && uv (run .*--space) cifar", readme, re.MULTILINE)
    options = ["--num-samples", "1", "--results", str(tmp_path), "--name", "mine", "--wandb", "disabled"]
    users = {name: value for name, value in os.environ.items() if name not in tuner.ENVIRONMENT}  # this process set it
    done = subprocess.run(
        [UV, *words.split(), str(ROOT / "tests" / "spaces" / "functions.py:interpreter"), *options],
        cwd=ROOT,
        env=users | {"UV_NO_SYNC": "1", "RAY_TMPDIR": str(sessions)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    (report,) = [event for event in read(tmp_path / "mine" / "journal.jsonl") if event["event"] == "report"]
    worker = {name: report["metrics"][name] for name in ("prefix", "tuner", "ray")}
    program = "import json, ray, sys, tuner; print(json.dumps([sys.prefix, tuner.__file__, ray.__file__]))"
    driver = subprocess.run(
        [UV, "run", "--no-sync", "python", "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert list(worker.values()) == json.loads(driver.stdout.splitlines()[-1])
    built = [path for path in sessions.rglob("*") if path.name in ("pyvenv.cfg", "working_dir_files")]
    assert not [path for path in built if path.name == "pyvenv.cfg" or any(path.iterdir())], built
