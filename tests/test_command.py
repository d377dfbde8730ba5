"""Wrong requests through the command itself, every fourth of `test_refusals` too: its exit code, its one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_refusals import FILES, HEAD, OPTIONS, SPACE_NAMES, TINY
from tiers import further

ROOT = Path(__file__).parent.parent
REQUESTS = [
    *((["--space", TINY, *argv], None, message) for argv, message in OPTIONS),
    *((argv, None, message) for argv, message in SPACE_NAMES),
    *((["--space", "mine.py"], text, message) for text, message in FILES if "TMP" not in message),
][::4]  # 4 s each


@pytest.mark.parametrize(
    ("argv", "text", "message"),
    further(REQUESTS, 1),
    ids=[f"{i}: {' '.join(argv)}" for i, (argv, *_) in enumerate(REQUESTS)],
)
def test_the_command_ends_with_2_and_one_line(tmp_path, argv, text, message):
    (tmp_path / "empty").mkdir()
    if text is not None:
        (tmp_path / "mine.py").write_text((HEAD if "Space(" in text else "") + text)
    assert message in refused(tmp_path, *(word.replace("TMP", str(tmp_path)) for word in argv))


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("mine.txt", "Not a directory"),
        pytest.param("long" * 25, "path length cannot exceed 107 bytes", marks=pytest.mark.slow),
    ],
)
def test_a_machine_on_which_ray_does_not_start_is_told_in_one_line(tmp_path, folder, message):
    (tmp_path / "mine.txt").write_text("")
    refusal = refused(tmp_path, "--space", "quadratic", "--name", "mine", RAY_TMPDIR=str(tmp_path / folder))
    assert message in refusal and "RAY_TMPDIR" in refusal
    assert not (tmp_path / "results" / "mine").exists()  # the same command can be given again


def refused(folder, *argv, **variables):
    """What the command says of a request that it refuses, all of it, in `folder`."""
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    command = [sys.executable, "-m", "tuner.run", *argv]
    ended = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("still ")]  # on a busy machine
    assert len(lines) == 1 and lines[0].startswith("tuner: error: "), ended.stderr
    assert "Traceback" not in ended.stdout
    return lines[0]
