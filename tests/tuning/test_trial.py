"""A trial waits for room for its checkpoint, and for nothing else."""

import errno

import pytest

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
    path = tmp_path / "state.pt"
    path.symlink_to("/dev/full")
    monkeypatch.setattr(trial.time, "sleep", lambda seconds: path.unlink())
    trial.patiently(path.write_bytes, b"state")
    assert path.read_bytes() == b"state"
    assert reports == [{WAITS: "a checkpoint cannot be saved ([Errno 28] No space left on device)"}]
