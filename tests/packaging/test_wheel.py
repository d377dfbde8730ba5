"""The wheel, installed by pip into somebody's own project, searches that project's space from any folder."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from journals import read

ROOT = Path(__file__).parents[2]
SPACE = '''"""A space of my own."""
import tuner
from ray import tune
from tuner.space import Space

def train(config):
    return {"loss": config["x"] ** 2, "tuner": tuner.__file__}

space = Space(params={"x": tune.uniform(-1, 1)}, train=train, max_epochs=1)
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with a package of its own, and a Python with our wheel; other packages are those of this process."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    (folder / "my_package" / "my_space.py").write_text(SPACE)
    ran([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv")
    python = str(folder / "venv" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python]  # Debian's venv and ensurepip have no pip of their own
    ran([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], folder)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    # Paths in a .pth file have their own .pth files ignored: our checkout, installed as editable, is not seen.
    (site / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{folder}\n")
    return python


def ran(command, folder):
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow  # a Ray of its own
def test_a_space_of_ones_own_package_is_searched_from_another_folder(project, tmp_path):
    options = ["--num-samples", "2", "--name", "mine", "--wandb", "disabled"]
    out = ran([project, "-m", "tuner.run", "--space", "my_package.my_space", *options], tmp_path)
    assert "best        trial" in out
    reports = [event for event in read(tmp_path / "results" / "mine" / "journal.jsonl") if event["event"] == "report"]
    assert len(reports) == 2
    assert all("venv" in Path(report["metrics"]["tuner"]).parts for report in reports)


@pytest.mark.slow  # installs the wheel: 10 s
def test_the_spaces_that_ship_and_ones_own_are_found(project, tmp_path):
    assert "LeNet on CIFAR-10" in ran([project, "-m", "tuner.run", "--list"], tmp_path)
    planned = ran([project, "-m", "tuner.run", "--space", "cifar", "--dry-run"], tmp_path)
    assert "asha: compares trials after epochs 1, 2, 4, 8 " in planned
    assert "x uniform(-1, 1)" in ran(
        [project, "-m", "tuner.run", "--space", "my_package.my_space", "--dry-run"], tmp_path
    )
    sample = "from search_spaces.datasets.cifar10 import load_sample; print(len(load_sample('').train.targets))"
    assert ran([project, "-c", sample], tmp_path).strip() == "5000"
