"""One driver an experiment, and none once it is dead."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from tuner.errors import RequestError
from tuner.record.storage import lock
from tuner.record.storage.lock import abandoned, driver_of, only_driver

HOLD = """
import sys, time
from pathlib import Path
from tuner.record.storage.lock import only_driver
with only_driver(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_dead_driver_is_free(tmp_path):
    assert not abandoned(tmp_path)  # a folder that none ever held
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "held\n"
    with pytest.raises(RequestError, match=f"process {first.pid} on .* is running this experiment"):
        with only_driver(tmp_path):
            pass
    assert driver_of(tmp_path).startswith(f"process {first.pid} on ") and not abandoned(tmp_path)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert driver_of(tmp_path) == "" and abandoned(tmp_path)
    with only_driver(tmp_path):
        assert (tmp_path / ".driver").read_text().startswith(f"process {os.getpid()} on ")
    (tmp_path / lock.HOLDER).write_text("process 1 on elsewhere\n")
    assert not abandoned(tmp_path)  # of another host's driver it cannot be told


def test_a_full_disk_is_one_line_and_frees_the_lock(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(lock, "write_atomically", full)
        with pytest.raises(RequestError, match="cannot be written to .No space left on device.; give another"):
            with only_driver(tmp_path):
                pass
    with only_driver(tmp_path):
        pass


def test_who_looks_at_the_lock_keeps_no_driver_from_it(tmp_path):
    with only_driver(tmp_path):
        pass
    looks = lock.locked(tmp_path / lock.LOCK)
    assert looks.__enter__()
    threading.Timer(0.1, looks.__exit__, [None] * 3).start()
    with only_driver(tmp_path):
        assert not abandoned(tmp_path)
