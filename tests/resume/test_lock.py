"""One driver an experiment, and none once it is dead."""

import os
import signal
import subprocess
import sys

import pytest

from tuner.errors import RequestError
from tuner.resume.lock import only_driver

HOLD = """
import sys, time
from pathlib import Path
from tuner.resume.lock import only_driver
with only_driver(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_dead_driver_is_free(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "held\n"
    with pytest.raises(RequestError, match=f"process {first.pid} on .* is running this experiment"):
        with only_driver(tmp_path):
            pass
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    with only_driver(tmp_path):
        assert (tmp_path / ".driver").read_text().startswith(f"process {os.getpid()} on ")


def test_the_lock_is_free_after_the_search(tmp_path):
    for _ in range(2):
        with only_driver(tmp_path):
            pass
