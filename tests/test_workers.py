"""Trials in worker processes through the real command: an answer, and nothing left of them, however they end."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tuner import train
from tuner.results import load

SPACES = Path(__file__).parent / "spaces"
DDP = ["--strategy", "ddp", "--workers-per-trial", "2"]


def groups_left():
    """Placement groups that are not removed; Ray removes them a moment after their search."""
    from ray.util import placement_group_table

    until = time.monotonic() + 20
    while time.monotonic() < until:
        left = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
        if not left:
            return []
        time.sleep(0.2)
    return left


def workers_left():
    """Processes of workers that are still there, once they had time to end."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        left = [p.info for p in psutil.process_iter(["pid", "name", "cmdline"]) if is_worker(p.info)]
        if not left:
            return []
        time.sleep(0.2)
    return left


def is_worker(info):
    return "WorkerActor" in " ".join(info["cmdline"] or [])


@pytest.fixture
def nothing_left(one_ray):
    """Looks behind a search in this process's Ray, whose processes can be told from those of others."""
    yield
    ours = psutil.Process().children(recursive=True)
    until = time.monotonic() + 20
    while time.monotonic() < until and (left := [p for p in ours if p.is_running() and is_worker_process(p)]):
        time.sleep(0.2)
    assert not left and not groups_left()


def is_worker_process(process):
    try:
        return "WorkerActor" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def curves(record):
    return [(t.id, t.status, [report.metrics["loss"] for report in t.reports]) for t in record.trials]


def test_ddp_finds_what_single_finds_prunes_as_it_does_and_leaves_nothing(search, nothing_left, capsys):
    ran = search("tiny.py", "--num-samples", "4", "--max-epochs", "4", *DDP, name="ddp")
    alone = search("tiny.py", "--num-samples", "4", "--max-epochs", "4", "--max-concurrent-trials", "1", name="single")
    assert ran.code == 0 and "test        loss" in ran.out and "2 CPU a trial in 2 workers" in ran.out
    assert "pruned" in {trial.status for trial in ran.record.trials}
    for (*told, losses), (*expected, others) in zip(curves(ran.record), curves(alone.record), strict=True):
        assert told == expected and losses == pytest.approx(others, rel=1e-4)
    assert train.main([str(ran.folder / "best" / "config.json")]) == 0
    said = capsys.readouterr().out
    trial, _ = ran.record.best()
    for report in trial.reports:
        assert f"epoch {report.epoch}/4: loss {report.metrics['loss']:.4f}" in said
    tested = json.loads((ran.folder / "best" / "metrics.json").read_text())["test"]
    assert f"loss {tested['loss']:.4f}, accuracy {tested['accuracy']:.4f}" in said
