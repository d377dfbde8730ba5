"""A search whose trials fail by the user's code: it stops, says where, and goes on after the code was corrected."""

import re

import pytest
from tiers import further

from tuner.record.texts import formatted

OPTIONS = ("--max-concurrent-trials", "1")
BUGGY = """
from ray import tune
from tuner import Space
FACTOR = "two"
def train(config):
    for epoch in range(1, 4):
        tune.report({"loss": config["x"] / epoch if epoch != 2 else config["x"] / FACTOR})
space = Space(params={"x": tune.uniform(1, 2)}, train=train, max_epochs=3, num_samples=6)
"""


@pytest.mark.parametrize("scheduler", further(["asha", "hyperband", "median"], 3))
def test_a_search_stops_when_its_first_trials_fail_alike_and_goes_on_after_a_correction(
    search_here, tmp_path, scheduler
):
    space = tmp_path / "buggy.py"
    space.write_text(f"{BUGGY}# {scheduler}\n")  # else the module of another test is used
    ran = search_here(str(space), "--scheduler", scheduler, *OPTIONS)
    place = f"({space}, line 7)"
    statuses = [trial.status for trial in ran.record.trials]
    assert ran.code == 1 and statuses.count("failed") == 3 and set(statuses) <= {"failed", "pruned"}
    last = ran.record.trials[-1].id
    line = next(line for line in ran.out.splitlines() if line.startswith("failed "))
    assert line.startswith(f"failed      3 trials, {last} the last, in epoch 2: TypeError: unsupported operand")
    assert place in line and line.endswith(f"full traceback: {ran.folder}/ray/{last}/error.txt")
    assert "the search was stopped, as these trials failed alike and none succeeded\n" in ran.out
    assert ran.out.count("TypeError: ") == 2, ran.out  # once when it happens, once with the traceback's file
    assert f"--resume test --results {tmp_path} --space {space}" in ran.out and "retrain" not in ran.out
    finished = ran.events[-1]
    assert finished["state"] == "failed" and place in finished["reason"]

    unchanged = search_here(str(space), "--resume", "test", *OPTIONS)  # the cause may lie outside of the space's file
    continued = "3 trials continue (3 that had failed; 3 from epoch 1, without a checkpoint)"
    assert unchanged.code == 1 and continued in unchanged.out, unchanged.err

    space.write_text(space.read_text().replace('"two"', "2"))
    again = search_here(str(space), "--resume", "test", *OPTIONS)
    assert again.code == 0, again.err
    num = len(statuses)
    assert f"{continued}, {num - 3} done, {6 - num} still to come" in again.out
    assert not [trial.id for trial in again.record.trials if trial.status == "failed"]
    assert len(again.record.trials) == 6 and "6/6 done: " in again.out and "failed" not in again.out.partition("+--")[2]

    third = search_here(str(space), "--resume", "test", "--num-samples", "7", *OPTIONS)  # the replay agrees
    assert third.code == 0 and len(third.record.trials) == 7 and "0 trials continue, 6 done" in third.out
    trial, report = third.record.best()  # the counts and the best value are those of the whole search
    best = f"best loss {formatted(report.metrics['loss'])} (trial {trial.id})"
    assert re.search(rf"^7/7 done: .* \| {re.escape(best)}", third.out, re.MULTILINE)
    assert [line[:11] for line in third.out.splitlines() if line.startswith("trial 0")] == ["trial 00006"]
