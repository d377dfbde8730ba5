"""The commands answer without ray and torch, their options are a contract, and `import tuner` sets what Ray reads."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tuner
from tuner import run
from tuner.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
OPTIONS = {
    "--space", "--list", "--num-samples", "--max-epochs", "--grace-period", "--reduction-factor", "--brackets",
    "--searcher",
    "--scheduler", "--metric", "--mode", "--cpus-per-trial", "--gpus-per-trial", "--workers-per-trial", "--strategy",
    "--precision", "--on-oom", "--max-concurrent-trials", "--time-budget", "--seed", "--name", "--results",
    "--gpu-hours", "--cpu-hours", "--epoch-budget",
    "--resume", "--address", "--data-dir", "--wandb", "--wandb-project", "--dry-run", "--tensorboard", "--help",
    "--param", "--report", "--words", "--point", "--stop", "--perturbation-interval",
    "--confirm", "--confirm-seeds", "--start-from", "--prior", "--prune-by", "--prune-mode", "--constraint",
    "--trial-timeout", "--max-failures", "--keep-checkpoints", "--priority", "--trust", "--no-preflight", "--table",
    "--unchecked",
}  # fmt: skip
PROGRAM = """
import runpy, sys
sys.argv = ["tuner.run", {option!r}]
try:
    runpy.run_module("tuner.run", run_name="__main__", alter_sys=True)
except SystemExit as ended:
    assert not ended.code, ended.code
heavy = {{"ray", "torch", "numpy", "pandas", "wandb"}} & set(sys.modules)
assert not heavy, heavy
"""


ASKS_FOR_RAY = """
import importlib, os, sys
class First:
    def find_spec(self, name, path=None, target=None):
        if name == "ray":
            print([os.environ.get(name) for name in {names}], flush=True)
            os._exit(0)
sys.meta_path.insert(0, First())
importlib.import_module({module!r})
import ray
"""


def ran(*words):
    env = {name: value for name, value in os.environ.items() if name not in tuner.ENVIRONMENT}  # set here already
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_answers_help(command):
    done = ran("-m", "tuner", command, "--help")
    assert done.returncode == 0 and re.search(rf"\btuner[. ]{command}\b", done.stdout.splitlines()[0]), done.stderr


def test_an_unknown_command_is_refused_with_the_nearest_and_help_lists_the_commands():
    done = ran("-m", "tuner", "serv")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == (f"tuner: error: serv: the commands are {', '.join(COMMANDS)}; did you mean 'serve'?\n")
    done = ran("-m", "tuner", "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: tuner {run,serve,")
    assert ran("-m", "tuner").returncode == 2


def test_help_imports_neither_ray_nor_torch_and_its_options_are_the_contracts():
    done = ran("-c", PROGRAM.format(option="--help"))
    assert done.returncode == 0 and done.stderr == ""
    assert set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", done.stdout, re.MULTILINE)) == OPTIONS
    assert "Exit codes: 0 done" in " ".join(done.stdout.split())
    assert "ray://" not in done.stdout  # an address that is always refused


def test_the_help_begins_with_the_ten_options_that_most_searches_use():
    group = ran("-m", "tuner.run", "--help").stdout.split("most used:")[1].split("\n\n")[0]
    assert re.findall(r"^  (--[a-z-]+)", group, re.MULTILINE) == [
        "--space", "--num-samples", "--max-epochs", "--metric", "--mode", "--gpus-per-trial", "--max-concurrent-trials",
        "--time-budget", "--resume", "--dry-run",
    ]  # fmt: skip


def test_list_imports_neither_ray_nor_torch():
    done = ran("-c", PROGRAM.format(option="--list"))
    assert done.returncode == 0, done.stderr
    assert "cifar" in done.stdout and "LeNet on CIFAR-10" in done.stdout


@pytest.mark.parametrize("module", ["tuner.tuning.driver", "tuner.space"])
def test_what_ray_reads_is_set_before_ray_is_imported(module):
    done = ran("-c", ASKS_FOR_RAY.format(module=module, names=list(tuner.ENVIRONMENT)))
    assert done.stdout.strip() == str(list(tuner.ENVIRONMENT.values())), done.stderr


@pytest.mark.parametrize(
    "first", ["import tuner.run, ray", "import search_spaces.quadratic"]
)  # imports Ray before tuner
def test_ray_has_read_it_or_is_corrected_without_a_warning(first):
    read = "from ray._private import ray_constants; print(ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV)"
    done = ran("-c", f"{first}\n{read}")
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_ray_that_was_started_before_is_warned_of_in_one_line(one_ray):
    program = (
        "import logging, ray, sys\n"
        "ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)\n"
        "print('READY', file=sys.stderr, flush=True)\n"
        "import tuner"
    )
    done = ran("-c", program, one_ray.get_runtime_context().gcs_address)
    (line,) = done.stderr.partition("READY\n")[2].splitlines()
    assert "import tuner before ray.init()" in line


@pytest.mark.parametrize(
    ("error", "what", "advice"),
    [
        (MemoryError(), "tuner: error: MemoryError (", "; memory ran out: "),
        (
            ImportError("libtorch_cpu.so: failed to map segment from shared object"),
            "shared object (",
            "; memory ran out: ",
        ),
        (ModuleNotFoundError("No module named 'pandas'"), "No module named 'pandas' (", "; reinstall what it names"),
    ],
)
def test_a_process_without_memory_and_a_damaged_installation_are_told_in_one_line(
    monkeypatch, capsys, error, what, advice
):
    def search(call):
        raise error

    monkeypatch.setattr(run, "run_search", search)
    assert run.main(["--space", "quadratic"]) == 2
    told = capsys.readouterr().err
    assert what in told and advice in told and told.count("\n") == 1
