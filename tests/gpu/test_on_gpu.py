"""The real command and its pace on a GPU; `run_on_gpu.sh` takes what these tests print into its report.

On pretended GPUs the tests themselves are tried, so they train little.
"""

import os
import statistics
import subprocess
import sys

import pytest
import torch
from machines import ROOT

from tuner.engine.local.alone import num_gpus
from tuner.record.reading import read
from tuner.record.results import load

SMALL = bool(os.environ.get("PRETENDED_GPUS"))
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.slow,
    pytest.mark.skipif(not (SMALL or torch.cuda.is_available()), reason="needs a CUDA device"),
]
MIB = 1 << 20


def ran(*words):
    """Runs a module on the GPUs to its end; returns its output."""
    env = {**os.environ, "ON_GPUS_TRAIN": "1000" if SMALL else "400000"}
    command = [sys.executable, "-m", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def search(results, *options):
    """The real command's trials, which must all complete."""
    usual = ["--searcher", "grid", "--scheduler", "fifo", "--wandb", "disabled", "--results", results, "--name", "test"]
    ran("tuner.run", "--space", ROOT / "tests" / "spaces" / "on_gpus.py", *usual, *options)
    trials = load(results / "test").trials
    assert {trial.status for trial in trials} == {"completed"}, [trial.reason for trial in trials]
    return trials


TWO = ["--gpus-per-trial", "2", "--strategy"]
EACH = {f"single {precision}": ["--precision", precision] for precision in ("fp32", "bf16", "fp16")}
EACH |= {strategy: [*TWO, strategy] for strategy in ("dp", "model", "pipeline")}
EACH["ddp"] = [*TWO, "ddp", "--workers-per-trial", "2"]


@pytest.mark.parametrize("name", EACH)
def test_each_strategy_and_precision_trains(tmp_path, name):
    if not name.startswith("single") and num_gpus() < 2:
        pytest.skip(f"{name} needs two devices; test_parallel has it on one")
    if SMALL and name not in ("single fp32", "model", "ddp"):
        pytest.skip("a pretended device has no numerics, and shows the others as it shows model")
    trials = search(tmp_path, "--max-epochs", "2", "--num-samples", "1", *EACH[name])
    last = trials[0].reports[-1].metrics
    loss, peak, epoch_s = (last[key] for key in ("loss", "gpu_memory_peak_bytes", "train_s"))
    print(f"{name}: loss {loss:.5f}, peak GPU memory {peak / MIB:.1f} MiB, {epoch_s:.3f} s per epoch")


def test_the_loop_beside_a_bare_one():
    few = ["--images", "32", "--repeats", "1", "--batch-sizes", "16"] if SMALL else ["--repeats", "3"]
    print(ran("benchmarks.loop", "--device", "cuda", *few))


@pytest.mark.parametrize(("share", "at_once"), [("0.25", 4), ("1", 1)])
def test_four_trials_on_quarters_and_one_after_another(tmp_path, share, at_once):
    options = ["--gpus-per-trial", share, "--cpus-per-trial", "0.25", "--max-concurrent-trials", at_once]
    trials = search(tmp_path, *options, "--num-samples", "4", "--max-epochs", "5")
    times = [event["time"] for event in read(tmp_path / "test" / "journal.jsonl") if event["event"] == "report"]
    metrics = [report.metrics for trial in trials for report in trial.reports]
    epoch_s, peak = (statistics.median(m["train_s"] for m in metrics), max(m["gpu_memory_peak_bytes"] for m in metrics))
    first_to_last = f"{max(times) - min(times):.1f} s from the first to the last report"
    print(f"{share} GPUs per trial: {first_to_last}, {epoch_s:.3f} s per epoch, peak memory {peak / MIB:.1f} MiB")
