"""A search in a user's program leaves the program's settings, processes and temporary folders as they were."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from program_state import different, state
from spaces import tiny

from tuner import RequestError, search

TESTS = Path(__file__).parents[1]
# A thread starts `sleep` during the search, then presses Ctrl-C twice. A child from before sleeps, too.
PROGRAM = """
import json, logging, os, pathlib, signal, subprocess, sys, threading, time
import tuner, ray, ray.tune, psutil
from program_state import different, state
from tuner import Space, tune

def train(config):
    for _ in range(300):
        time.sleep(0.1)
        tune.report({"loss": 1.0})

def interrupt():
    journal = pathlib.Path("results/x/journal.jsonl")
    while not journal.exists() or b'"report"' not in journal.read_bytes():
        time.sleep(0.05)
    own.append(subprocess.Popen(["sleep", "99"]))
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    if not over:
        os.kill(os.getpid(), signal.SIGINT)

sys.dont_write_bytecode = True
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
handler = logging.NullHandler()
handler.setFormatter(logging.Formatter("own: %(message)s"))
logging.getLogger("ray").addHandler(handler)
own, over, before = [subprocess.Popen(["sleep", "99"])], [], state()
threading.Thread(target=interrupt, daemon=True).start()
space = Space(params={"x": tune.uniform(0, 1)}, train=train, metric="loss", num_samples=1, max_epochs=300)
try:
    tuner.search(space, name="x", wandb="disabled", preflight=False)
except KeyboardInterrupt:
    over.append(True)
changed = different(before, state())
deadline = time.monotonic() + 20
while len(psutil.Process().children()) > 2 and time.monotonic() < deadline:
    time.sleep(0.1)
print(json.dumps([bool(over), changed, [each.poll() for each in own], len(psutil.Process().children())]))
for each in own:
    each.kill()
"""


def test_an_interrupted_search_leaves_a_programs_settings_and_processes(tmp_path, sessions):
    env = os.environ | {"RAY_TMPDIR": str(sessions), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True, [], [None, None], 2], done.stdout


@pytest.mark.parametrize("end", ["finished", "refused", "interrupted"])
def test_a_search_with_the_programs_own_ray_leaves_its_settings(here, monkeypatch, end):
    import ray.tune

    def fit(self):
        raise KeyboardInterrupt

    if end == "interrupted":
        monkeypatch.setattr(ray.tune.Tuner, "fit", fit)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "30")
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(here))  # a trial sets it, here in this process
    before, ended = state(), "finished"
    try:
        metric = "los" if end == "refused" else "loss"
        search(tiny, name="x", metric=metric, num_samples=1, max_epochs=1, grace_period=1, wandb="disabled")
    except RequestError:
        ended = "refused"
    except KeyboardInterrupt:
        ended = "interrupted"
    assert (ended, different(before, state())) == (end, [])


IMPORTS_WANDB = """
import wandb
from tuner import Space, tune
def train(config):
    import wandb
    tune.report({"loss": config["x"]})
space = Space(params={"x": tune.uniform(0, 1)}, train=train, metric="loss", num_samples=2)
"""


@pytest.mark.parametrize(("imported", "mode"), [("os", "disabled"), ("wandb", "offline")])
def test_a_search_leaves_nothing_in_the_temporary_folder(tmp_path, sessions, imported, mode):
    (tmp_path / "own.py").write_text(IMPORTS_WANDB.replace("wandb", imported))
    env = os.environ | {"RAY_TMPDIR": str(sessions), "TMPDIR": str(sessions)}
    command = [sys.executable, "-m", "tuner.run", "--space", "own.py", "--wandb", mode, "--table", "off"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [name for name in os.listdir(sessions) if "wandb" in name] == []
