"""A resume with checkpoints that hold code: those of this user's search are loaded, a stranger's only with --trust."""

import shutil

import pytest

SPACE = """
import os
import torch
from pathlib import Path
from types import SimpleNamespace
from ray import tune
from tuner.space import Space
from tuner.training import seals


def train(config):
    begin = 0
    if checkpoint := tune.get_checkpoint():
        file = Path(checkpoint.path) / "own.ckpt"
        if why := seals.why_unsafe(file):
            raise ValueError(why)
        begin = torch.load(file, weights_only=False)["own"].epoch
    for epoch in range(begin + 1, config["epochs"] + 1):
        folder = Path(f"saved{epoch}")
        folder.mkdir()
        torch.save({"own": SimpleNamespace(epoch=epoch)}, folder / "own.ckpt")
        seals.seal(folder / "own.ckpt")
        tune.report({"loss": 1 / epoch, "begin": begin}, checkpoint=tune.Checkpoint.from_directory(folder))


space = Space(params={"x": tune.uniform(0, 1)}, train=train, length="epochs", max_epochs=2, num_samples=2)
"""


@pytest.fixture
def saved(search, tmp_path):
    """A search of two trials with two epochs; its folder, and the call that resumes it with more epochs."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "space.py").write_text(SPACE)
    results = "--results", str(tmp_path / "results")
    space = str(tmp_path / "own" / "space.py")
    assert search(space, *results, "--scheduler", "fifo").code == 0

    def resume(epochs, *more):
        ran = search(None, *results, "--resume", "test", "--max-epochs", str(epochs), *more)
        return ran.code, ran.out + ran.err

    return tmp_path / "results" / "test", resume


def test_this_users_search_continues_and_elsewhere_it_needs_trust(saved, tmp_path, monkeypatch):
    folder, resume = saved
    code, out = resume(3)
    assert code == 0 and out.count("completed after epoch 3") == 2, out
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "elsewhere"))
    journal = (folder / "journal.jsonl").read_text()
    code, out = resume(4)
    assert code == 2 and "own.ckpt may run code when it is loaded" in out and "--trust" in out, out
    assert "trial_failed" not in (folder / "journal.jsonl").read_text()[len(journal) :]
    code, out = resume(4, "--trust")
    assert code == 0 and out.count("completed after epoch 4") == 2, out


def test_a_changed_checkpoint_is_not_loaded(saved):
    folder, resume = saved
    shutil.copy(folder / "ray/00000/checkpoint_000000/own.ckpt", folder / "ray/00001/checkpoint_000001/own.ckpt")
    _, out = resume(3)
    assert "own.ckpt has more than tensors and plain values" in out and "trial 00000 completed after epoch 3" in out, (
        out
    )
