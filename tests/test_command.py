"""Every wrong request of `test_refusals` through the command itself: a process, its exit code, its one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_refusals import FILES, HEAD, OPTIONS, SPACE_NAMES, TINY

ROOT = Path(__file__).parent.parent
REQUESTS = [
    *((["--space", TINY, *argv], None, said) for argv, said in OPTIONS),
    *((argv, None, said) for argv, said in SPACE_NAMES),
    *((["--space", "mine.py"], text, said) for text, said in FILES if "TMP" not in said),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "text", "said"), REQUESTS, ids=[f"{i}: {' '.join(argv)}" for i, (argv, *_) in enumerate(REQUESTS)]
)
def test_the_command_ends_with_2_and_one_line(tmp_path, argv, text, said):
    (tmp_path / "empty").mkdir()
    if text is not None:
        (tmp_path / "mine.py").write_text((HEAD if "Space(" in text else "") + text)
    command = [sys.executable, "-m", "tuner.run", *(word.replace("TMP", str(tmp_path)) for word in argv)]
    ended = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("tuner: error: ") and ended.stderr.count("\n") == 1, ended.stderr
    assert said in ended.stderr
    assert "Traceback" not in ended.stdout
