"""A journal that ends anywhere: `--resume` goes on from there to the end of the unbroken search."""

import random
import shutil

import pytest

from tuner.journal import read
from tuner.results import load

ONE_AT_A_TIME = ["--max-concurrent-trials", "1", "--cpus-per-trial", "2"]
PAIRS = [
    ("random", "asha"), ("hyperopt", "asha"), ("optuna", "asha"), ("refine", "median"), ("bohb", "bohb"),
    ("random", "hyperband"), ("random", "pbt"),
]  # fmt: skip


def cut(folder, target, num_events):
    """A copy of an experiment as if its driver had died after `num_events` events."""
    shutil.copytree(folder, target)
    lines = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (target / "journal.jsonl").write_bytes(b"".join(lines[:num_events]))


def told(trial):
    """All that must not depend on where a search was cut; the settings of pbt change on the way."""
    curve = [(report.epoch, report.metrics["loss"]) for report in trial.reports]
    return trial.id, trial.config, trial.status, trial.reason, curve


def decided(folder):
    """Every decision in its order, without its time."""
    events = [event for event in read(folder / "journal.jsonl") if event["event"] == "decision"]
    return [{name: value for name, value in event.items() if name != "time"} for event in events]


def assert_same(one, other):
    assert [told(trial) for trial in load(other).trials] == [told(trial) for trial in load(one).trials]
    assert decided(other) == decided(one)


@pytest.mark.parametrize(("searcher", "scheduler"), PAIRS)
def test_a_search_cut_anywhere_ends_as_the_unbroken_one(search, tmp_path, searcher, scheduler):
    options = ["--searcher", searcher, "--scheduler", scheduler, "--num-samples", "7", "--max-epochs", "4"]
    whole = search("tiny.py", *options, *ONE_AT_A_TIME, name="whole")
    assert whole.code == 0
    num_events = len(read(whole.folder / "journal.jsonl"))
    stream = random.Random(f"{searcher} {scheduler}")
    for number in sorted(stream.sample(range(1, num_events), 3)):
        cut(whole.folder, tmp_path / f"cut{number}", number)
        resumed = search("", "--resume", f"cut{number}", name=f"cut{number}")
        assert resumed.code == 0, resumed.err
        assert_same(whole.folder, resumed.folder)
