"""How the suite runs: in two processes, with one Ray, which the searches of tests join instead of starting their own.

* The tests that use this Ray (fixture `one_ray`) run first. pytest-xdist gives the first half of the tests to one
  process, so only this process starts Ray. A process that has finished takes tests from the end of the other's list.
* All slow tests run in two processes too, because most of them start processes and wait for them. A quarter of
  them use this Ray, so one process starts it here too.
* A part of the suite runs in one process, as do the tests in a browser: two would only cost imports.
"""

import atexit
import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest
from harm.snapshots import difference, snapshot

import tuner  # noqa: F401  (before any test imports ray: it sets what ray reads then)

SPACES = Path(__file__).parent / "spaces"
CHECKOUT = Path(__file__).parents[1]
CACHES = ".git .venv .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis uv.lock".split()
SURROUNDINGS = pytest.StashKey[dict]()


def pytest_configure(config):
    gc.disable()  # until all is imported: what a collection makes stays
    # As in an activated environment: the commands that tuner prints then begin with `python`.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def pytest_xdist_auto_num_workers(config):
    """Two for the whole suite and for all slow tests, none for a part of them and for the tests in a browser."""
    options = config.option
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and not (options.keyword or options.lf)
    return min(2, len(os.sched_getaffinity(0))) if whole and options.markexpr in TIERS else 0


# The first is the default in pyproject.toml.
TIERS = ("not slow and not browser and not chaos and not nightly", "slow and not nightly")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: "one_ray" not in item.fixturenames)


def pytest_collection_finish():
    """A full garbage collection would walk the imported modules, 1 GB of objects, in 2 s."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish():
    """pytest ends with five full collections, which leave out what is frozen; the interpreter's own does not."""
    gc.freeze()
    atexit.register(gc.unfreeze)


def pytest_sessionstart(session):
    if not hasattr(session.config, "workerinput"):  # a process of pytest-xdist
        session.config.stash[SURROUNDINGS] = surroundings()


def pytest_terminal_summary(terminalreporter, config):
    """List what the tests changed in the checkout and in the user's home; with CI set, fail."""
    for line in difference(config.stash[SURROUNDINGS], surroundings()).values():
        terminalreporter.write_line(f"changed while the tests ran: {line}", red=True)
        if "CI" in os.environ:
            terminalreporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED


def surroundings():
    """Return what the checkout and the first level of the home contain (30 ms).

    Hidden entries of the home are left out, because libraries write their caches there, and `ray_results`, where Ray's
    own Tuner writes, which some tests make.
    """
    entries = snapshot(CHECKOUT, [CHECKOUT / name for name in CACHES], contents=False)
    for path in (path for path in Path.home().glob("[!.]*") if path.name != "ray_results"):
        entries |= snapshot(path, path.iterdir() if path.is_dir() else (), contents=False)
    entries = {path: entry for path, entry in entries.items() if "__pycache__" not in path}
    # A folder's time also changes with the names in it, such as `__pycache__`; other names are compared themselves.
    return {path: entry._replace(mtime_ns=entry.mtime_ns * (entry.type == "file")) for path, entry in entries.items()}


@pytest.fixture(autouse=True)
def no_home(tmp_path, monkeypatch):
    """W&B keys and caches of whoever runs the tests stay out of them."""
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("UV", raising=False)  # the commands that the search prints are then those without uv


@pytest.fixture
def sessions():
    """A folder for Ray's sessions; its path is short, because those of sockets below it have 107 characters at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def one_ray():
    """Ray on this machine with two CPUs, whatever cluster the environment names."""
    os.environ.pop("RAY_ADDRESS", None)
    os.environ["RAY_worker_niceness"] = "0"  # with 15 the other tests would keep them waiting
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
        words = ["--space", str(SPACES / space) if ".py" in space and "/" not in space else space] if space else []
        usual = {"--results": str(tmp_path), "--name": name, "--wandb": "disabled"}
        usual = [word for option, value in usual.items() if option not in options for word in (option, value)]
        code = run.main([*words, *usual, *options])
        output = capsys.readouterr()
        record = results.load(tmp_path / name) if (tmp_path / name / "experiment.json").exists() else None
        return Ran(code, output.out, output.err, tmp_path / name, record)

    return command


@pytest.fixture
def here(one_ray, tmp_path, monkeypatch):
    """A folder to search in, with trials that train in this process (`workerless.InThisProcess`)."""
    from workerless import in_this_process

    monkeypatch.chdir(tmp_path)
    with in_this_process():
        yield tmp_path


@pytest.fixture
def one_thread():
    """Threads that outnumber the free cores make small steps a hundred times slower."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def search_here(search):
    """As `search`, but its trials train in this process, one at a time (`workerless.InThisProcess`)."""
    from workerless import in_this_process

    with in_this_process():
        yield search


class Ran:
    """What a search in a test left."""

    def __init__(self, code, out, err, folder, record):
        self.code, self.out, self.err, self.folder, self.record = code, out, err, folder, record

    @property
    def events(self):
        from journals import read

        return read(self.folder / "journal.jsonl")

    @property
    def trials(self):
        return {trial.id: trial for trial in self.record.trials}
