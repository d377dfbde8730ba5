"""A search whose trials fail by the user's code: it stops, says where, and goes on after the code was corrected."""

import pytest
from killing import SPACES
from tiers import further

from tuner.record.texts import formatted

OPTIONS = ("--max-concurrent-trials", "1")


@pytest.mark.parametrize("scheduler", ["asha", *further(["hyperband", "median"], 2)])
def test_a_search_stops_when_its_first_trials_fail_alike_and_goes_on_after_a_correction(
    search_here, tmp_path, scheduler
):
    space = tmp_path / "buggy.py"
    space.write_text((SPACES / "buggy.py").read_text() + f"# {scheduler}\n")  # else the module of another test is used
    ran = search_here(str(space), "--scheduler", scheduler, *OPTIONS)
    place = f"({space}, line 14)"
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

    space.write_text(space.read_text().replace('"two"', "2"))
    again = search_here(str(space), "--resume", "test", *OPTIONS)
    assert again.code == 0, again.err
    num = len(statuses)
    continued = "3 trials continue (3 that had failed, as the code has changed)"
    assert f"{continued}, {num - 3} done, {6 - num} still to come" in again.out
    assert not [trial.id for trial in again.record.trials if trial.status == "failed"]
    assert len(again.record.trials) == 6 and "6/6 done: " in again.out and "failed" not in again.out.partition("+--")[2]

    third = search_here(str(space), "--resume", "test", "--num-samples", "7", *OPTIONS)  # the replay agrees
    assert third.code == 0 and len(third.record.trials) == 7 and "0 trials continue, 6 done" in third.out


def test_a_resume_without_a_correction_tries_three_more_trials(search_here, tmp_path):
    first = search_here("buggy.py", "--scheduler", "fifo", *OPTIONS)
    assert first.code == 1, first.out
    again = search_here(None, "--resume", "test", *OPTIONS)
    assert again.code == 1 and [trial.status for trial in again.record.trials] == ["failed"] * 6
    assert "failed      6 trials, 00005 the last, in epoch 2: TypeError" in again.out


def test_after_a_resume_the_counts_and_the_best_are_those_of_the_whole_search(search_here):
    first = search_here("tiny.py", "--num-samples", "4", *OPTIONS)
    best = first.record.best()
    again = search_here(None, "--resume", "test", "--num-samples", "6", *OPTIONS)
    statuses = [trial.status for trial in again.record.trials]
    line = next(line for line in again.out.splitlines() if line.startswith("6/6 done: "))
    assert line.startswith(f"6/6 done: {statuses.count('pruned')} pruned, {statuses.count('completed')} completed | ")
    trial, report = again.record.best()
    assert f"best loss {formatted(report.metrics['loss'])} (trial {trial.id})" in line
    assert report.metrics["loss"] <= best[1].metrics["loss"]
    ends = [line for line in again.out.splitlines() if line.startswith("trial 0000")]
    assert [line.split()[1] for line in ends] == ["00004", "00005"]
