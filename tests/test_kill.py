"""The driver is killed without warning, and `--resume` goes on as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner.results import load

SPACES = Path(__file__).parent / "spaces"
COMMAND = [sys.executable, "-m", "tuner.run", "--wandb", "disabled", "--max-concurrent-trials", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["random", "hyperopt", "refine"])
def test_a_killed_search_ends_as_the_unbroken_one(tmp_path, searcher):
    options = ["--space", str(SPACES / "slow.py"), "--searcher", searcher, "--results", str(tmp_path)]
    subprocess.run([*COMMAND, *options, "--name", "whole"], check=True, capture_output=True)
    command = [*COMMAND, *options, "--name", "killed"]
    stream = random.Random(searcher)
    for _ in range(4):
        killed_in = stream.uniform(4, 12)
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            process.wait(killed_in)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(2)  # Ray's processes notice that their driver is gone
        if (tmp_path / "killed" / "experiment.json").exists():
            command = [*COMMAND, "--resume", "killed", "--results", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True)
    whole, killed = load(tmp_path / "whole"), load(tmp_path / "killed")
    assert [told(trial) for trial in killed.trials] == [told(trial) for trial in whole.trials]


def told(trial):
    curve = [(report.epoch, report.metrics["loss"]) for report in trial.reports]
    return trial.id, trial.config, trial.status, trial.reason, curve
