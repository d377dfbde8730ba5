"""What only a real GPU shows; `run_on_gpu.sh` takes what the tests of the real command print into its report.

On pretended GPUs the tests of the real command are themselves tried, so they train little.
"""

import json
import os
import statistics
import subprocess
import sys
from functools import partial

import machines
import pytest
import torch
from journals import read
from machines import MIB, ROOT

from tuner.engine.local.alone import num_gpus
from tuner.record.results import load
from tuner.training.devices import accelerator
from tuner.training.devices.accelerator import release
from tuner.training.devices.usage import Usage

SMALL = bool(os.environ.get("PRETENDED_GPUS"))
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.slow,
    pytest.mark.skipif(not (SMALL or torch.cuda.is_available()), reason="needs a CUDA device"),
]
on_a_real_one = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a real CUDA device")
training = partial(machines.training, width=1024, gpus=1)
POISON = """
import json, torch
from tuner.engine.controller.failures import kind_of
told = []
for labels in (torch.tensor([7]), torch.tensor([0])):
    try:
        loss = torch.nn.functional.cross_entropy(torch.zeros(1, 3, device="cuda"), labels.cuda())
        told.append(["", str(loss.item())])
    except Exception as error:
        told.append(kind_of(error))
print(json.dumps(told))
"""


@on_a_real_one
def test_a_batch_that_does_not_fit_shrinks_and_learns_the_same():
    whole = training(batch_size=65536, num=65536)
    expected = whole.run_epoch()
    whole.close()
    del whole
    release()
    try:
        accelerator.here.limit(400 * MIB / torch.cuda.get_device_properties().total_memory)
        shrunk = training(batch_size=65536, num=65536).run_epoch()
    finally:
        accelerator.here.limit(1)
    assert shrunk["micro_batch_size"] < 65536 == expected["micro_batch_size"]
    assert shrunk["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-4)
    assert shrunk["loss"] == pytest.approx(expected["loss"], rel=1e-3)


@on_a_real_one
def test_a_poisoned_context_is_recognised_and_stays():
    done = subprocess.run([sys.executable, "-c", POISON], cwd=ROOT, capture_output=True, text=True, timeout=100)
    first, then = json.loads(done.stdout.splitlines()[-1])
    assert first[0] == then[0] == "cuda" and "usually a label or an index out of range" in first[1]


@on_a_real_one
def test_a_resumed_training_takes_no_more_memory(tmp_path):
    trial = training(batch_size=1024, num=4096)
    trial.run_epoch()
    before = torch.cuda.memory_allocated()
    torch.save(trial.state_dict(), tmp_path / "state.pt")
    del trial
    release()
    resumed = training(batch_size=1024, num=4096)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu"))
    resumed.run_epoch()
    assert torch.cuda.memory_allocated() == pytest.approx(before, abs=MIB)


@on_a_real_one
def test_a_share_holds_and_usage_has_the_figures():
    quarter = torch.cuda.get_device_properties().total_memory // 4
    accelerator.here.limit(0.25)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(quarter + 64 * MIB, dtype=torch.uint8, device="cuda")
    accelerator.here.limit(1)
    tensor = torch.empty(quarter + 64 * MIB, dtype=torch.uint8, device="cuda")
    figures = Usage().read()
    assert figures["gpu_memory_peak_bytes"] >= figures["gpu_memory_bytes"] >= tensor.numel()
    assert 0 <= figures.get("gpu_percent", 0) <= 100


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
