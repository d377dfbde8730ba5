"""How many checkpoints of a trial stay, and what is said when the disk is nearly full."""

from types import SimpleNamespace

import pytest

from tuner import RequestError
from tuner.spec.experiment import Experiment
from tuner.tuning import assembly

SPACE = """
import json
from pathlib import Path
from ray import tune
from tuner.space import Space

LOSSES = [5, 3, 4, 2, 6, 7, 1, 8]


def train(config):
    begin = 0
    if checkpoint := tune.get_checkpoint():
        begin = json.loads((Path(checkpoint.path) / "epoch").read_text())
    for epoch in range(begin + 1, config["epochs"] + 1):
        folder = Path(f"saved{epoch}")
        folder.mkdir()
        (folder / "epoch").write_text(str(epoch))
        checkpoint = tune.Checkpoint.from_directory(folder) if epoch != SKIPPED else None
        tune.report({"loss": LOSSES[epoch - 1] + config["x"], "begin": begin}, checkpoint=checkpoint)


space = Space(params={"x": tune.uniform(0, 1)}, train=train, length="epochs", max_epochs=6, num_samples=2)
"""


def kept(folder):
    """The epochs whose checkpoints are there, for each trial."""
    trials = [folder / "ray" / trial for trial in ("00000", "00001")]
    return [[int(each.read_text()) for each in sorted(trial.glob("checkpoint_*/epoch"))] for trial in trials]


@pytest.mark.parametrize(
    ("skipped", "num", "before", "best", "after"),
    [
        (0, 1, [4, 6], 4, [7, 8]),
        (4, 1, [2, 6], 2, [7, 8]),  # the best report has no checkpoint
        (0, 0, [1, 2, 3, 4, 5, 6], 4, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_the_best_and_the_newest_checkpoint_of_a_trial_stay(search, tmp_path, skipped, num, before, best, after):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "space.py").write_text(SPACE.replace("SKIPPED", str(skipped)))
    results = "--results", str(tmp_path / "results")
    more = ("--scheduler", "fifo", "--keep-checkpoints", str(num))
    ran = search(str(tmp_path / "own" / "space.py"), *results, *more)
    folder = tmp_path / "results" / "test"
    assert ran.code == 0 and kept(folder) == [before, before], ran.out + ran.err
    assert (folder / "best" / "checkpoint" / "epoch").read_text() == str(best)
    ran = search(None, *results, "--resume", "test", "--max-epochs", "8")
    assert ran.code == 0 and kept(folder) == [after, after], ran.out + ran.err
    assert (folder / "best" / "checkpoint" / "epoch").read_text() == "7"


def test_population_based_training_keeps_all():
    with pytest.raises(RequestError, match="--keep-checkpoints 1: --scheduler pbt may copy any checkpoint"):
        Experiment(space="x", scheduler="pbt", keep_checkpoints=1)


def test_a_nearly_full_disk_is_said_once(monkeypatch, tmp_path):
    said, free = [], [11, 9, 8]
    disk = SimpleNamespace(disk_usage=lambda folder: SimpleNamespace(free=free.pop(0) * 1e9, total=100e9))
    monkeypatch.setattr(assembly, "shutil", disk)
    room = assembly.Room(tmp_path / "test", said.append)
    for _ in range(2):
        room.on_trial_save(0, [], None)
    room.on_trial_save(0, [], None)
    assert len(said) == 1 and f"less than 10% of the disk of {tmp_path} is free: 9.0 GB" in said[0]
    assert "--keep-checkpoints 1" in said[0]
