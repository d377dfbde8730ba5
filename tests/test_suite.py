"""How the suite runs: `pytest --without-ray` never imports Ray, and one process runs all tests that use Ray."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROGRAM = """
import sys, pytest
code = pytest.main(["--without-ray", "-n", "0", "-p", "no:cacheprovider", *sys.argv[1:]])
print(sorted(name for name in sys.modules if name.partition(".")[0] == "ray"))
sys.exit(code)
"""
FEW = [
    "errors/test_errors.py",
    "record/test_files.py",
    "test_gpus.py",
    "record/test_records.py",
    "training/test_memory.py",
    "views/test_parameter_figures.py",
]
WITH_RAY = "tuning/resume/test_resume.py"  # skipped as a whole: it imports Ray itself


@pytest.mark.parametrize(
    ("paths", "least"),
    [
        pytest.param([*FEW, WITH_RAY], 100, id="few", marks=pytest.mark.slow),
        pytest.param([""], 1000, id="all", marks=[pytest.mark.nightly, pytest.mark.timeout(900)]),
    ],
)
def test_ray_is_never_imported_and_most_tests_run(paths, least):
    command = [sys.executable, "-c", PROGRAM, *(str(TESTS / path) for path in paths)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, summary, imported = done.stdout.splitlines()
    assert imported == "[]"
    counts = {outcome: int(number) for number, outcome in re.findall(r"(\d+) (passed|skipped)", summary)}
    assert counts["passed"] >= least and counts["skipped"] >= 1, summary


def test_the_tests_on_ray_come_first_and_are_less_than_half(request):
    """pytest-xdist gives the first half of the tests to one process; so the other one starts no Ray."""
    on_ray = ["one_ray" in item.fixturenames for item in request.session.items]
    assert on_ray == sorted(on_ray, reverse=True)
    if request.config.args_source is not request.config.ArgsSource.ARGS:
        assert sum(on_ray) < len(on_ray) / 2
