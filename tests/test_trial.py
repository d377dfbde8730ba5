"""A trial waits for room for its checkpoint, and for nothing else."""

import errno

import pytest

from tuner.drive import trial
from tuner.record.columns import WAITS


@pytest.mark.parametrize(
    "trouble",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EROFS, "Read-only file system"),
        RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/0"),
        RuntimeError("Unable to set up cluster storage with the following settings"),
    ],
)
def test_what_the_disk_refused_is_tried_again(monkeypatch, trouble):
    monkeypatch.setattr(trial.time, "sleep", lambda seconds: None)
    tries, told = [], []
    monkeypatch.setattr(trial.tune, "report", told.append)

    def report():
        tries.append(1)
        if len(tries) < 3:
            raise trouble

    trial.patiently(report)
    assert len(tries) == 3
    assert told == [{WAITS: f"a checkpoint cannot be saved ({trouble})"}] * 2


@pytest.mark.parametrize("error", [RuntimeError("a bug of the user's"), OSError(errno.ENOENT, "no"), KeyError("x")])
def test_a_trials_own_error_is_raised_at_once(error):
    def report():
        raise error

    with pytest.raises(type(error)):
        trial.patiently(report)
