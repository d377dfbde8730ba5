"""A trial waits for room for its checkpoint, and for nothing else."""

import errno
import resource
from pathlib import Path

import pytest
import torch

from tuner.record.report_keys import WAITS
from tuner.tuning import trial


@pytest.fixture
def reports(monkeypatch):
    """What a trial tells its driver while it waits; it waits without sleeping."""
    texts = []
    monkeypatch.setattr(trial.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(trial.tune, "report", texts.append)
    return texts


@pytest.mark.parametrize(
    "trouble",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        OSError(errno.EROFS, "Read-only file system"),
        OSError(errno.ESTALE, "Stale file handle"),
        RuntimeError("Unable to set up cluster storage with the following settings"),
    ],
)
def test_what_the_disk_refused_is_tried_again(reports, trouble):
    tries = []

    def report():
        tries.append(1)
        if len(tries) < 3:
            raise trouble

    trial.patiently(report)
    assert len(tries) == 3
    assert reports == [{WAITS: f"a checkpoint cannot be saved ({trouble})"}] * 2


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a bug of the user's"),
        RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0"),
        OSError(errno.ENOENT, "no"),
        OSError(errno.EFBIG, "File too large"),
        KeyError("x"),
    ],
)
def test_what_would_fail_again_is_raised_at_once(reports, error):
    def report():
        raise error

    with pytest.raises(type(error)):
        trial.patiently(report)
    assert not reports


def test_a_state_on_a_full_disk_is_written_when_there_is_room(reports, tmp_path, monkeypatch):
    path, state = tmp_path / "state.pt", {"weights": torch.ones(100_000)}
    path.symlink_to("/dev/full")
    monkeypatch.setattr(trial.time, "sleep", lambda seconds: path.unlink())
    trial.patiently(trial.write_state, state, path)
    assert torch.equal(torch.load(path, weights_only=True)["weights"], state["weights"])
    assert reports == [{WAITS: "a checkpoint cannot be saved ([Errno 28] No space left on device)"}]


def test_a_state_larger_than_files_may_be_is_an_error_with_its_reason(reports, tmp_path: Path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            trial.patiently(trial.write_state, {"weights": torch.ones(100_000)}, tmp_path / "state.pt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not reports
