"""A trial waits for room for its checkpoint, and for nothing else."""

import contextlib
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


PASSING = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    OSError(errno.EROFS, "Read-only file system"),
    OSError(errno.ESTALE, "Stale file handle"),
    RuntimeError("Unable to set up cluster storage with the following settings"),
]
LASTING = [
    RuntimeError("a bug of the user's"),
    RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0"),
    OSError(errno.ENOENT, "no"),
    OSError(errno.EFBIG, "File too large"),
    KeyError("x"),
]


@pytest.mark.parametrize("error", PASSING + LASTING)
def test_what_the_disk_refused_is_tried_again_and_what_would_fail_again_is_raised_at_once(reports, error):
    outcomes = iter([error, error, None])

    def report():
        if outcome := next(outcomes):
            raise outcome

    with contextlib.nullcontext() if error in PASSING else pytest.raises(type(error)):
        trial.patiently(report)
    why = getattr(error, "strerror", None) or "its experiment's folder is gone"
    assert reports == ([{WAITS: f"a checkpoint cannot be saved ({why})"}] * 2 if error in PASSING else [])
    assert len([*outcomes]) == (0 if error in PASSING else 2)


def test_a_state_on_a_full_disk_is_written_when_there_is_room(reports, tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    path.symlink_to("/dev/full")
    monkeypatch.setattr(trial.time, "sleep", lambda seconds: path.unlink())
    trial.patiently(path.write_bytes, b"state")
    assert path.read_bytes() == b"state"
    assert reports == [{WAITS: "a checkpoint cannot be saved (No space left on device)"}]
