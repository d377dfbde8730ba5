"""A trial waits for room for its checkpoint, and for nothing else."""

import contextlib
import errno

import pytest

from tuner.engine.workers import retried


@pytest.fixture
def told(monkeypatch):
    """What a trial tells its driver while it waits; it waits without sleeping."""
    monkeypatch.setattr(retried.time, "sleep", lambda seconds: None)
    return []


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
def test_what_the_disk_refused_is_tried_again_and_what_would_fail_again_is_raised_at_once(told, error):
    outcomes = iter([error, error, None])

    def report():
        if outcome := next(outcomes):
            raise outcome

    with contextlib.nullcontext() if error in PASSING else pytest.raises(type(error)):
        retried.patiently(report, told.append)
    why = getattr(error, "strerror", None) or "its experiment's folder is gone"
    assert told == ([f"a checkpoint cannot be saved ({why})"] * 2 if error in PASSING else [])
    assert len([*outcomes]) == (0 if error in PASSING else 2)


def test_a_state_on_a_full_disk_is_written_when_there_is_room(told, tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    path.symlink_to("/dev/full")
    monkeypatch.setattr(retried.time, "sleep", lambda seconds: path.unlink())
    retried.patiently(lambda: path.write_bytes(b"state"), told.append)
    assert path.read_bytes() == b"state"
    assert told == ["a checkpoint cannot be saved (No space left on device)"]
