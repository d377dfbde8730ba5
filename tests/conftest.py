"""One Ray for the whole test session; searches of the tests join it instead of starting their own."""

import os
from pathlib import Path

import pytest

import tuner  # noqa: F401  (before any test imports ray: it sets what ray reads then)

SPACES = Path(__file__).parent / "spaces"


@pytest.fixture(autouse=True)
def no_home(tmp_path, monkeypatch):
    """W&B keys and caches of whoever runs the tests stay out of them."""
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.fixture(scope="session")
def one_ray():
    """Ray on this machine with two CPUs, told from no cluster of the environment."""
    os.environ.pop("RAY_ADDRESS", None)
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def search(one_ray, tmp_path, capsys):
    """`search("tiny.py", "--searcher", "grid")` runs the real command in `tmp_path`; gives its code and folder."""
    from tuner import run
    from tuner.record import results

    def command(space, *options, name="test"):
        given = ["--space", str(SPACES / space) if space.endswith(".py") else space] if space else []
        code = run.main([*given, "--results", str(tmp_path), "--name", name, "--wandb", "disabled", *options])
        said = capsys.readouterr()
        record = results.load(tmp_path / name) if (tmp_path / name / "experiment.json").exists() else None
        return Ran(code, said.out, said.err, tmp_path / name, record)

    return command


class Ran:
    """What a search in a test left."""

    def __init__(self, code, out, err, folder, record):
        self.code, self.out, self.err, self.folder, self.record = code, out, err, folder, record

    @property
    def trials(self):
        return {trial.id: trial for trial in self.record.trials}
