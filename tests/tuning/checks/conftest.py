"""A command line that must be refused: exit code 2 and one line; no Ray is started, no file is left."""

import contextlib

import pytest
from killing import SPACES

from tuner import run


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Runs a command line that must be refused; gives the text of its one line."""
    import ray

    from tuner.tuning import driver

    def start(*args, **kwargs):
        pytest.fail("Ray was started for a wrong request")

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(driver, "ray_here", lambda *args: contextlib.nullcontext())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(SPACES)
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").touch()

    def command(*argv):
        before = sorted(tmp_path.rglob("*"))
        code = run.main([argument.replace("TMP", str(tmp_path)) for argument in argv])
        message = capsys.readouterr()
        assert code == 2
        assert message.err.startswith("tuner: error: ") and message.err.count("\n") == 1, message.err
        assert "Traceback" not in message.out + message.err
        left = [path for path in sorted(tmp_path.rglob("*")) if path not in before and "__pycache__" not in path.parts]
        assert [path for path in left if path != tmp_path / "results"] == [], "a refused request left files"
        return message.err.removeprefix("tuner: error: ").strip()

    return command
