"""Trials in worker processes through the real command: an answer, and nothing left of them, however they end."""

import json
import time

import psutil
import pytest
from tiers import further
from workerless import in_this_process

from tuner import train
from tuner.record.texts import formatted

DDP = ["--strategy", "ddp", "--workers-per-trial", "2"]


@pytest.fixture
def nothing_left(one_ray):
    """Looks behind a search in this process's Ray for ddp workers and placement groups, which end a moment later."""
    from ray.util import placement_group_table

    yield
    ours, until = psutil.Process().children(recursive=True), time.monotonic() + 20
    left = [None]
    while left and time.monotonic() < until:
        time.sleep(0.2)
        running = [process for process in psutil.process_iter(["cmdline"]) if process in ours]
        left = [process for process in running if "WorkerActor" in " ".join(process.info["cmdline"] or [])]
        left += [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
    assert not left


def curves(record):
    return [(t.id, t.status, [report.metrics["loss"] for report in t.reports]) for t in record.trials]


@pytest.mark.parametrize("number", further([2, 4], 1))
def test_ddp_finds_what_single_finds_prunes_as_it_does_and_leaves_nothing(search, nothing_left, capsys, number):
    size = ["--num-samples", str(number), "--max-epochs", str(number), "--scheduler", "asha"]
    ran = search("tiny.py", *size, *DDP, name="ddp")
    with in_this_process():
        alone = search("tiny.py", *size, "--max-concurrent-trials", "1", name="one")
    assert ran.code == 0 and "test        loss" in ran.out and "2 CPU per trial in 2 workers" in ran.out
    assert "pruned" in {trial.status for trial in ran.record.trials}
    for (*decisions, losses), (*expected, others) in zip(curves(ran.record), curves(alone.record), strict=True):
        assert decisions == expected and losses == pytest.approx(others, rel=1e-4)
    assert train.main([str(ran.folder / "best" / "config.json")]) == 0
    output = capsys.readouterr().out
    trial, _ = ran.record.best()
    for report in trial.reports:
        assert f"epoch {report.epoch}/{number}: loss {formatted(report.metrics['loss'])}" in output
    tested = json.loads((ran.folder / "best" / "metrics.json").read_text())["test"]
    assert f"loss {formatted(tested['loss'])}, accuracy {formatted(tested['accuracy'])}" in output


COUNTING = """
import counted
import numpy as np
import torch
import tuner
from tuner import tune

def data():
    inputs = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    return tuner.Splits(tuner.Arrays(inputs[:40], inputs[:40, 0]), tuner.Arrays(inputs[40:], inputs[40:, 0]))

def model(config):
    counted.count += 1
    print("model", counted.count, flush=True)
    return torch.nn.Linear(4, 1)

def loss(outputs, targets):
    return (outputs[:, 0] - targets).square().mean()

task = tuner.Task(data=data, model=model, optimizer=lambda p, c: torch.optim.SGD(p, lr=c["lr"]), loss=loss,
    model_metrics={"count": lambda model: counted.count})
space = tuner.Space(params={"lr": tune.uniform(0.01, 0.1)}, task=task, metric="loss", max_epochs=2)
"""


def test_the_ranks_of_ddp_inherit_nothing_from_the_trial_before(search, nothing_left, tmp_path):
    (tmp_path / "counted.py").write_text("count = 0\n")
    (tmp_path / "space.py").write_text(COUNTING)
    ran = search(str(tmp_path / "space.py"), "--num-samples", "3", "--scheduler", "fifo", *DDP)
    assert ran.code == 0
    assert [[each.metrics["count"] for each in trial.reports] for trial in ran.record.trials] == [[1, 1]] * 3
    printed = [(ran.folder / "ray" / trial.id / "stdout").read_text() for trial in ran.record.trials]
    assert all("model 1\n" in text and text.count("model") == 1 for text in printed)  # of rank 0 alone


@pytest.mark.slow  # its groups start anew five times
def test_a_worker_in_trouble_is_its_trials_alone(search, nothing_left):
    ran = search("tiny.py:quarrel", "--scheduler", "fifo")
    assert ran.code == 0
    ends = {trial.config["trouble"]: (trial.status, trial.reason) for trial in ran.record.trials}
    for trouble in ("none", "scarce", "last"):
        assert ends[trouble] == ("completed", "trained its 3 epochs"), trouble
    assert ends["raises"][0] == "failed" and "a bug of the user's" in ends["raises"][1]
    assert ends["dies"][0] == "failed" and "exit code 9" in ends["dies"][1]
    sizes = {t.config["trouble"]: [r.metrics["micro_batch_size"] for r in t.reports] for t in ran.record.trials}
    assert sizes["none"] == [8, 8, 8] and sizes["scarce"] == [8, 2, 2]  # 8, 4 and 2 at once from the second epoch on


@pytest.mark.parametrize("strategy", ["dp", *further(["model", "pipeline"], 2)])
def test_one_process_with_several_devices_finds_what_single_finds(search_here, strategy):
    small = ["--num-samples", "2", "--max-epochs", "2", "--max-concurrent-trials", "1"]
    ran = search_here("tiny.py", *small, "--strategy", strategy, name=strategy)
    alone = search_here("tiny.py", *small, name="single")
    assert ran.code == 0 and "test        loss" in ran.out
    assert ("NOTE: --strategy dp copies" in ran.out) == (strategy == "dp")
    for (*decisions, losses), (*expected, others) in zip(curves(ran.record), curves(alone.record), strict=True):
        assert decisions == expected and losses == pytest.approx(others, rel=1e-4)
    assert train.main([str(ran.folder / "best" / "config.json")]) == 0


def test_a_function_has_no_strategy(search):
    ran = search("functions.py", *DDP)
    assert ran.code == 2 and "--strategy ddp: needs a Space(task=...)" in ran.err
