"""Tasks and actors that a trial starts by Ray: what they write by a relative path is the trial's.

Ray starts its worker processes in the folder in which the search was started.
"""

import subprocess
import sys

import pytest

WRITING = """
import os
import ray
from ray import tune

def write(name):
    with open(name + ".txt", "w") as file:
        file.write(os.environ.get("OWN", ""))

def within(config):
    tune.report({"score": config["x"]})
    write("inner trial")

def work(config):
    if config["runtime_env"]:
        ray.init(runtime_env={"env_vars": {"OWN": "1"}})
    ray.get(ray.remote(num_cpus=0)(write).remote("task"))
    ray.get(ray.remote(num_cpus=0)(Actor).remote().write.remote())

class Actor:
    def write(self):
        write("actor")
"""
FUNCTION = """
from tuner import Space, tune
import writing

def train(config):
    writing.work(config)
    tune.report({"loss": 1.0})

space = Space(params={"runtime_env": tune.grid_search([False, True])}, train=train)
"""
PROGRAM = """
import os
from ray import tune
import writing

assert "RAY_ADDRESS" not in os.environ
tune.Tuner(writing.within, param_space={"x": 1.0}).fit()
writing.work({"runtime_env": False})
print('{"loss": 1.0}')
"""


def searched(folder, *words):
    """Search in `folder` by the command; for each trial, the text of each `.txt` file that it left."""
    usual = "--name", "test", "--wandb", "disabled"
    command = sys.executable, "-m", "tuner.run", *usual, *words
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not list(folder.glob("*.txt"))
    trials = sorted((folder / "results" / "test" / "ray").glob("0*"))
    return [{path.name: path.read_text() for path in (trial / "files").glob("*.txt")} for trial in trials]


@pytest.mark.slow
def test_what_tasks_and_actors_of_a_trial_write_is_the_trials(tmp_path):
    (tmp_path / "writing.py").write_text(WRITING)
    (tmp_path / "space.py").write_text(FUNCTION)
    trials = searched(tmp_path, "--space", "space.py", "--num-samples", "1")
    assert trials == [{"task.txt": "", "actor.txt": ""}, {"task.txt": "1", "actor.txt": "1"}]


@pytest.mark.slow  # each trial starts a Ray
def test_a_command_that_uses_ray_starts_its_own(tmp_path):
    (tmp_path / "writing.py").write_text(WRITING)
    (tmp_path / "train.py").write_text(PROGRAM)
    words = "--param", "x=uniform(0, 1)", "--metric", "loss", "--num-samples", "1", "--", "python", "train.py"
    (files,) = searched(tmp_path, *words)
    assert set(files) == {"inner trial.txt", "task.txt", "actor.txt"}
