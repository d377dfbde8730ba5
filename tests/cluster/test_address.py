"""`--address`: a real cluster of two nodes that wants a token. What cannot work is refused before the first trial."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from raylets import nodes
from tiers import further

from tuner.record.results import load

pytestmark = pytest.mark.slow  # each starts a cluster of its own

ROOT = Path(__file__).parent.parent.parent
TINY = ROOT / "tests" / "spaces" / "tiny.py"
TWO = {"num_cpus": 1}, {"num_cpus": 1}


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """The environment of a user with the cluster's token, away from the tester's own."""
    home = tmp_path_factory.mktemp("home")
    (home / "token").write_text("0123456789abcdef0123456789abcdef")
    (home / "other").write_text("ffffffffffffffffffffffffffffffff")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    paths = {"HOME": str(home), "PYTHONPATH": str(ROOT), "RAY_AUTH_TOKEN_PATH": str(home / "token")}
    return {**kept, **paths, "RAY_AUTH_MODE": "token"}


@pytest.fixture(scope="module")
def cluster(env, tmp_path_factory):
    """The address of a cluster that wants the token."""
    with nodes(env, tmp_path_factory.mktemp("cluster"), *TWO) as address:
        yield address


@pytest.fixture
def run(env, cluster, tmp_path):
    """Runs the real command against the cluster."""

    def command(*options, address=cluster, space=TINY, **changed):
        words = ["--space", str(space), "--address", address, "--wandb", "disabled", "--results", str(tmp_path / "r")]
        return subprocess.run(
            [sys.executable, "-m", "tuner.run", *words, *options],
            env={name: value for name, value in {**env, **changed}.items() if value is not None},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return command


def refusal(done):
    """The one line of a refused request."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("tuner: error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


PYTHON = """
from tuner import load_best, search
from my_space import space

if __name__ == "__main__":
    options = {"scheduler": "fifo", "max_epochs": 120, "table": "off", "wandb": "disabled"}
    ran = search(space, name="mine", address="auto", **options)
    more = search(space, resume="mine", num_samples=8, table="off")
    assert ran.state == more.state == "finished" and (len(ran.trials), len(more.trials)) == (6, 8)
    assert load_best(more.folder, space=space).metrics["test"] == more.best.test
"""
LOAD = "from tuner import load; r = load('results/mine'); print(r.state, bool(r.best), len(r.trials) * len(r.figures))"


def test_python_searches_a_cluster_and_reads_the_search_while_it_runs(env, cluster, tmp_path):
    (tmp_path / "my_space.py").write_text(TINY.read_text())
    (tmp_path / "mine.py").write_text(PYTHON)
    options = {"cwd": tmp_path, "env": {**env, "RAY_ADDRESS": cluster}, "text": True}
    search = subprocess.Popen([sys.executable, "mine.py"], stderr=subprocess.PIPE, **options)
    seen = set()
    while search.poll() is None:  # from another process
        read = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, timeout=60, **options)
        seen.add(read.stdout.partition(" 0")[0].strip() or read.stderr.strip().splitlines()[-1][:60])
    assert search.returncode == 0, search.stderr.read()
    assert any(line.startswith("running True") for line in seen), seen


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RAY_AUTH_TOKEN_PATH": "HOME/other"}, "the cluster requires its own token (here RAY_AUTH_MODE is token)"),
        ({"RAY_AUTH_TOKEN_PATH": "HOME/gone"}, "this machine has no token; copy what `ray get-auth-token` prints"),
        *further([
            ({"RAY_AUTH_MODE": "disabled"}, "the cluster requires its own token (here RAY_AUTH_MODE is disabled)"),
            ({"RAY_AUTH_TOKEN_PATH": None}, "head to ~/.ray/auth_token"),
            ({"RAY_AUTH_TOKEN_PATH": None, "RAY_AUTH_MODE": None}, "token (here RAY_AUTH_MODE is unset)"),
        ]),
    ],
)  # fmt: skip
def test_a_wrong_token_is_refused(run, env, tmp_path, changed, message):
    changed = {name: value and value.replace("HOME", env["HOME"]) for name, value in changed.items()}
    assert message in refusal(run(**changed))
    assert not list((tmp_path / "r").glob("*"))


def test_a_token_for_a_cluster_that_asks_for_none_is_refused(run, env, tmp_path):
    with nodes({**env, "RAY_AUTH_MODE": "disabled"}, tmp_path, *TWO) as address:
        for mode in ("token", None):  # a token that is there is used without a mode
            message = refusal(run(address=address, RAY_AUTH_MODE=mode))
            assert "the cluster asks for no token" in message and "set RAY_AUTH_MODE=disabled" in message
        options = ["--num-samples", "1", "--max-epochs", "1"]
        assert run(*options, address=address, RAY_AUTH_MODE="disabled").returncode == 0


def test_a_space_that_does_not_load_on_the_nodes_is_refused(run, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ray import tune\nfrom tuner.space import Space\n"
        "class Here:\n    def __reduce__(self): return (check, ())\n"
        "def check():\n    import not_on_the_nodes\n"
        "here = Here()\n"
        "def train(config):\n    return {'loss': 0.0 if here else 1.0}\n"
        "space = Space(params={'x': tune.uniform(0, 1)}, train=train)\n"
    )
    message = refusal(run(space="mine.py"))
    assert "(and 1 more): the space does not load (ModuleNotFoundError: No module named 'not_on_the_nodes')" in message


def test_a_module_of_the_users_runs_with_the_settings_sent(run, tmp_path):
    package = tmp_path / "theirs"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "helper.py").write_text("def loss(x):\n    return x * x\n")
    (package / "space.py").write_text(
        "from ray import tune\nfrom theirs.helper import loss\nfrom tuner.space import Space\n"
        "def train(config):\n    import os\n"
        "    assert os.environ['RAY_CHDIR_TO_TRIAL_DIR'] == '0'\n"
        "    tune.report({'loss': loss(config['x'])})\n"
        "space = Space(params={'x': tune.uniform(0, 1)}, train=train, max_epochs=1, num_samples=2)\n"
    )
    done = run("--name", "mine", space="theirs.space")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [trial.status for trial in load(tmp_path / "r" / "mine").trials] == ["completed"] * 2
    assert (tmp_path / "r" / "mine" / "best" / "config.json").exists() and not list((tmp_path / "r").glob(".tuner-*"))
