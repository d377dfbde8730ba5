"""`--help` and `--list` answer without ray and torch, and the options are those that users rely on."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OPTIONS = {
    "--space", "--list", "--num-samples", "--max-epochs", "--grace-period", "--reduction-factor", "--brackets",
    "--searcher",
    "--scheduler", "--metric", "--mode", "--cpus-per-trial", "--gpus-per-trial", "--workers-per-trial", "--strategy",
    "--precision", "--on-oom", "--max-concurrent-trials", "--time-budget", "--seed", "--name", "--results",
    "--resume", "--address", "--data-dir", "--wandb", "--wandb-project", "--dry-run", "--tensorboard", "--help",
    "--point", "--stop", "--perturbation-interval",
    "--trial-timeout", "--max-failures", "--priority", "--trust", "--no-preflight", "--table",
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


def output_of(option):
    command = [sys.executable, "-c", PROGRAM.format(option=option)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)


def test_help_imports_neither_ray_nor_torch_and_its_options_are_the_contracts():
    ran = output_of("--help")
    assert ran.returncode == 0 and ran.stderr == ""
    assert set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", ran.stdout, re.MULTILINE)) == OPTIONS
    assert "Exit codes: 0 done" in " ".join(ran.stdout.split())
    assert "ray://" not in ran.stdout  # an address that is always refused


def test_list_imports_neither_ray_nor_torch():
    ran = output_of("--list")
    assert ran.returncode == 0, ran.stderr
    assert "cifar" in ran.stdout and "LeNet on CIFAR-10" in ran.stdout
