"""A journal that ends anywhere: `--resume` goes on from there to the end of the unbroken search.

The resumed trials of the first test train in worker processes, all others in this one.
"""

import shutil

import pytest
from journals import read
from killing import SPACES, assert_same, cut, outcome_of
from ray.tune import CheckpointConfig
from tiers import further
from workerless import in_this_process

from tuner import run
from tuner.record.results import load

ONE_AT_A_TIME = ["--max-concurrent-trials", "1", "--cpus-per-trial", "2"]


def test_a_search_cut_anywhere_ends_as_the_unbroken_one(search, tmp_path):
    """`test_every_cut.py` cuts in many places, without training; here it is real, in worker processes."""
    with in_this_process():  # the rest, in worker processes, must agree with it
        whole = search("tiny.py:cosine", "--num-samples", "7", "--max-epochs", "4", *ONE_AT_A_TIME, name="whole")
    num_events = len(read(whole.folder / "journal.jsonl"))
    cut(whole.folder, tmp_path / "cut", num_events // 2)
    resumed = search("", "--resume", "cut", name="cut")
    assert (whole.code, resumed.code) == (0, 0), resumed.err
    assert_same(whole.folder, resumed.folder)


@pytest.fixture(scope="module")
def kept(one_ray, tmp_path_factory):
    """A search of one trial at a time that has ended, with all of its checkpoints."""
    results = tmp_path_factory.mktemp("kept")
    space = ["--space", f"{SPACES}/tiny.py:cosine", "--num-samples", "3", "--max-epochs", "5", "--scheduler", "fifo"]
    with in_this_process(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.tuning.assembly.keeping", lambda num: CheckpointConfig())
        options = [*space, *ONE_AT_A_TIME, "--wandb", "disabled", "--results", str(results), "--name", "whole"]
        assert run.main(options) == 0
    return results / "whole"


@pytest.fixture
def stopped(kept, tmp_path):
    """That search, and its copy cut in the middle of its second trial."""
    events = read(kept / "journal.jsonl")
    in_second = [n for n, event in enumerate(events) if event["event"] == "report" and event["trial"] == "00001"]
    cut(kept, tmp_path / "cut", in_second[2] + 1)
    return kept, tmp_path / "cut"


def truncated(state):
    state.write_bytes(state.read_bytes()[: state.stat().st_size // 2])


def altered(state):
    content = bytearray(state.read_bytes())
    for at in range(0, len(content), 50):  # between its records a byte may be any
        content[at] ^= 0xFF
    state.write_bytes(content)


def half_copied(state):
    state.unlink()


def gone(state):
    for path in state.parents[1].glob("checkpoint_*"):
        shutil.rmtree(path)


@pytest.mark.parametrize("harm", [altered, gone, *further([truncated, half_copied], 2)])
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_taken_and_one_that_is_gone_is_made_again(
    search_here, stopped, caplog, harm
):
    whole, folder = stopped
    (second,) = [trial for trial in load(folder).trials if trial.id == "00001"]
    harm(folder / second.reports[-1].checkpoint / "state.pt")
    resumed = search_here("", "--resume", "cut", name="cut")
    assert resumed.code == 0
    said = "its latest checkpoint {} is gone" if harm is gone else "its checkpoint {} is damaged"
    assert f"trial 00001: {said.format(folder / second.reports[-1].checkpoint)}" in caplog.text
    assert "journal" not in caplog.text
    assert [outcome_of(trial) for trial in resumed.record.trials] == [outcome_of(trial) for trial in load(whole).trials]


def test_a_damaged_line_ends_the_journal_and_the_rest_is_kept_aside(search_here, stopped, caplog):
    whole, folder = stopped
    path = folder / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[9] = lines[9].replace(b'"epoch": ', b'"epoch": 1', 1).replace(b'"time": 1', b'"time": 2', 1)
    path.write_bytes(b"".join(lines))
    resumed = search_here("", "--resume", "cut", name="cut")
    assert resumed.code == 0
    assert "journal.jsonl is damaged at line 10" in caplog.text and "from the 9 events before it" in caplog.text
    assert [path.read_bytes() for path in folder.glob("journal.jsonl.damaged-*")] == [b"".join(lines)]
    assert [outcome_of(trial) for trial in resumed.record.trials] == [outcome_of(trial) for trial in load(whole).trials]


def test_completed_trials_go_on_to_more_epochs_as_if_there_had_been_as_many_from_the_start(search_here):
    options = ["--num-samples", "2", "--scheduler", "fifo", *ONE_AT_A_TIME]
    whole = search_here("tiny.py", "--max-epochs", "8", *options, name="whole")
    part = search_here("tiny.py", "--max-epochs", "5", *options, name="part")
    before = len(read(part.folder / "journal.jsonl"))
    more = search_here("", "--resume", "part", "--max-epochs", "8", name="part")
    assert more.code == 0 and {trial.status for trial in more.record.trials} == {"completed"}
    after = [event for event in read(part.folder / "journal.jsonl")[before:] if event["event"] == "report"]
    assert [(e["trial"], e["epoch"]) for e in after] == [(f"{t:05d}", e) for t in range(2) for e in (6, 7, 8)]
    assert [outcome_of(trial) for trial in more.record.trials] == [outcome_of(trial) for trial in whole.record.trials]
