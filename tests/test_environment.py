"""What Ray reads from the environment is set before it is imported, whichever module of ours comes first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tuner

ROOT = Path(__file__).parents[1]
WAYS_IN = [
    "tuner.run", "tuner.train", "tuner.audit", "tuner.report", "tuner.serve.__main__",
    "tuner.serve.jobs.requests", "tuner.tuning.driver", "tuner.tuning.session", "tuner.tuning.searchers.sampling",
    "tuner.space",
]  # fmt: skip


ASKS_FOR_RAY = """
import importlib, os, sys
class First:
    def find_spec(self, name, path=None, target=None):
        if name == "ray":
            print([os.environ.get(name) for name in {names}], flush=True)
            os._exit(0)
sys.meta_path.insert(0, First())
importlib.import_module({module!r})
import ray
"""


def output_of(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    env = {name: value for name, value in os.environ.items() if name not in tuner.ENVIRONMENT}  # set here already
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("module", WAYS_IN)
def test_every_way_in_sets_it_before_ray_is_imported(module):
    program = ASKS_FOR_RAY.format(module=module, names=list(tuner.ENVIRONMENT))
    assert output_of(program)[0] == str(list(tuner.ENVIRONMENT.values()))


@pytest.mark.parametrize(
    "first", ["import tuner.run, ray", "import search_spaces.quadratic", "import ray, tuner"]
)  # the second imports Ray before tuner
def test_ray_has_read_it_or_is_corrected_without_a_warning(first):
    program = f"{first}\nfrom ray._private import ray_constants\nprint(ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV)"
    corrected, warned = output_of(program)
    assert corrected == "False" and not warned


def test_a_ray_that_was_started_before_is_warned_of_in_one_line(one_ray):
    program = (
        "import logging, ray, sys\n"
        "ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)\n"
        "print('READY', file=sys.stderr, flush=True)\n"
        "import tuner"
    )
    address = one_ray.get_runtime_context().gcs_address
    (line,) = output_of(program, address)[1].partition("READY\n")[2].splitlines()
    assert "import tuner before ray.init()" in line
