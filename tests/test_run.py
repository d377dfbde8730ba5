"""`tuner.run` as a command: fast help, the options that users rely on, and one line for a refused request."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_refusals import FILES, HEAD, OPTIONS, SPACE_NAMES, TINY
from tiers import further

ROOT = Path(__file__).parent.parent
OFFERED = set(
    """--space --list --num-samples --max-epochs --grace-period --reduction-factor --brackets --searcher --scheduler
    --metric --mode --cpus-per-trial --gpus-per-trial --workers-per-trial --strategy --precision --on-oom
    --max-concurrent-trials --time-budget --seed --name --results --resume --address --data-dir --wandb --wandb-project
    --dry-run --tensorboard --help --point --stop --perturbation-interval --trial-timeout --max-failures --priority
    --trust --no-preflight --table""".split()
)
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


def output_of(option):
    command = [sys.executable, "-c", PROGRAM.format(option=option)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0 and ran.stderr == "", ran.stderr
    return ran.stdout


def test_help_lists_the_options_of_the_contract_and_imports_neither_ray_nor_torch():
    text = output_of("--help")
    assert "Exit codes: 0 done" in text and "ray://" not in text
    assert set(re.findall(r"^│ (?:-h, )?(--[a-z-]+)", text, re.MULTILINE)) == OFFERED


def test_list_imports_neither_ray_nor_torch():
    text = output_of("--list")
    assert "cifar" in text and "LeNet on CIFAR-10" in text


REQUESTS = [  # every fourth of `test_refusals`: 4 s each
    *((["--space", TINY, *argv], None, message) for argv, message in OPTIONS),
    *((argv, None, message) for argv, message in SPACE_NAMES),
    *((["--space", "mine.py"], text, message) for text, message in FILES if "TMP" not in message),
][::4]


@pytest.mark.parametrize(
    ("argv", "text", "message"),
    further(REQUESTS, 1),
    ids=[f"{i}: {' '.join(argv)}" for i, (argv, *_) in enumerate(REQUESTS)],
)
def test_the_command_ends_with_2_and_one_line(tmp_path, argv, text, message):
    (tmp_path / "empty").mkdir()
    if text is not None:
        (tmp_path / "mine.py").write_text((HEAD if "Space(" in text else "") + text)
    assert message in refused(tmp_path, *(word.replace("TMP", str(tmp_path)) for word in argv))


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("mine.txt", "Not a directory"),
        pytest.param("long" * 25, "path length cannot exceed 107 bytes", marks=pytest.mark.slow),
    ],
)
def test_a_machine_on_which_ray_does_not_start_is_told_in_one_line(tmp_path, folder, message):
    (tmp_path / "mine.txt").write_text("")
    refusal = refused(tmp_path, "--space", "quadratic", "--name", "mine", RAY_TMPDIR=str(tmp_path / folder))
    assert message in refusal and "RAY_TMPDIR" in refusal
    assert not (tmp_path / "results" / "mine").exists()  # the same command can be given again


def refused(folder, *argv, **variables):
    """What the command says of a request that it refuses, all of it, in `folder`."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, "-m", "tuner.run", *argv]
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("still ")]  # on a busy machine
    assert len(lines) == 1 and lines[0].startswith("tuner: error: "), ended.stderr
    assert "Traceback" not in ended.stdout
    return lines[0]
