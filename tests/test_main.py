"""The command `tuner`."""

import re
import subprocess
import sys

import pytest

from tuner.__main__ import COMMANDS


def ran(*words):
    return subprocess.run([sys.executable, "-m", "tuner", *words], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_answers_help(command):
    done = ran(command, "--help")
    assert done.returncode == 0 and re.search(rf"\btuner[. ]{command}\b", done.stdout.splitlines()[0]), done.stderr


def test_an_unknown_command_is_refused_with_the_nearest():
    done = ran("serv")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == (f"tuner: error: serv: the commands are {', '.join(COMMANDS)}; did you mean 'serve'?\n")


def test_help_lists_the_commands_and_no_command_is_refused():
    assert ran("--help").returncode == 0 and ran("--help").stdout.startswith("usage: tuner {run,serve,")
    assert ran().returncode == 2
