"""Two drivers on one cluster tell each other what their searches want."""

import json
import subprocess
import sys
import time

import pytest

from tuner.engine.cluster.shares import Want, agreed

OTHER = """
import json, sys
import tuner, ray
from tuner.engine.cluster.shares import Want, agreed
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
for line in sys.stdin:
    print(json.dumps(agreed(Want(*json.loads(line)))), flush=True)
"""


@pytest.fixture
def other(one_ray):
    """`other(10, 4)` has a second driver want ten trials of which the cluster holds four; gives its part."""
    address = one_ray.get_runtime_context().gcs_address
    command = [sys.executable, "-c", OTHER, address]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def wants(*want):
        print(json.dumps(want), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    yield wants, process
    process.kill()
    process.wait()


def test_two_drivers_come_to_the_same_division(other):
    wants, process = other
    assert agreed(Want(10, 4)) is None  # nobody else wants anything
    assert (wants(10, 4), agreed(Want(10, 4))) == (2, 2)
    assert (wants(1, 4), agreed(Want(10, 4))) == (1, 3)  # what one cannot use is the other's
    assert (wants(10, 4, 1), agreed(Want(10, 4))) == (3, 1)  # the higher priority
    assert (agreed(Want(10, 4, 2)), wants(10, 4, 1)) == (3, 1)
    process.stdin.close()
    process.wait(60)
    until = time.monotonic() + 60
    while (part := agreed(Want(10, 4))) is not None and time.monotonic() < until:
        time.sleep(0.1)  # Ray notes a driver's end a moment later
    assert part is None
