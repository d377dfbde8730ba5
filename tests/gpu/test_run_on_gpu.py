"""The script for the day a GPU is there: without one it says so; on pretended devices all its tests run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "run_on_gpu.sh"


def run(tmp_path, env, *options):
    words = ["bash", str(SCRIPT), str(tmp_path / "report.md"), *options]
    env = {**env, "PYTHON": sys.executable}
    return subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    done = run(tmp_path, {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PRETENDED_GPUS": ""})
    assert done.returncode == 77 and done.stdout == "" and not (tmp_path / "report.md").exists()
    assert done.stderr.startswith("run_on_gpu: no GPU was tried: torch") and done.stderr.count("\n") == 1


@pytest.mark.chaos  # as long as a minute and a half of searches
def test_on_pretended_devices_its_tests_run_and_are_in_the_report(machine, tmp_path):
    done = run(tmp_path, machine(2, total_bytes=1 << 30).env)
    report = (tmp_path / "report.md").read_text()
    assert done.returncode == 0, done.stdout + done.stderr
    assert report.startswith("# 2 x NVIDIA H200\n") and "FAILED" not in report
    for printed in ("ddp: loss", "model: loss", "LeNet, synthetic", "0.25 GPUs per trial: ", "1 GPUs per trial: "):
        assert f"\n{printed}" in report


@pytest.mark.slow
def test_a_test_that_fails_is_in_the_report(machine, tmp_path):
    done = run(tmp_path, machine(1, total_bytes=1 << 12).env, "-k", "bare_one")  # nothing fits into 4 KiB
    report = (tmp_path / "report.md").read_text()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED tests/gpu/test_on_gpu.py::test_the_loop_beside_a_bare_one" in report and "out of memory" in report
