"""What a command prints ends no search, whatever its stdout is."""

import os
import subprocess
import sys

import pytest

SAYS = """
from tuner.errors import leave, open_streams, say
import sys
{begin}
say("größe \\u2265 1")
say("more")
open("{file}", "w").write("answer")
leave(0)
"""


def ran(tmp_path, begin="open_streams()", **options):
    program = SAYS.format(begin=begin, file=tmp_path / "answer")
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, **options)
    assert done.returncode == 0 and (tmp_path / "answer").read_text() == "answer"
    return done


@pytest.mark.parametrize("begin", ["open_streams()", "", "print('größe') if False else None"])
def test_a_stdout_that_knows_only_ascii_gets_escapes(tmp_path, begin):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = ran(tmp_path, begin, stdout=subprocess.PIPE, env=environment)
    assert done.stdout == b"gr\\xf6\\xdfe \\u2265 1\nmore\n" and not done.stderr


def test_a_stdout_that_is_full_is_told_once(tmp_path):
    with open("/dev/full", "w") as full:
        done = ran(tmp_path, stdout=full)
    assert done.stderr == (b"tuner: stdout cannot be written (No space left on device); what follows is not printed\n")


def test_a_stdout_whose_reader_has_gone_is_not_told(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    assert not ran(tmp_path, stdout=writing).stderr
    os.close(writing)


@pytest.mark.parametrize("numbers", [(1,), (2,), (0, 1, 2)])
def test_a_file_of_the_command_does_not_become_a_stream_that_was_closed(tmp_path, numbers):
    ran(tmp_path, preexec_fn=lambda: [os.close(number) for number in numbers])


def test_a_program_that_has_closed_its_stdout_goes_on(tmp_path):
    ran(tmp_path, "sys.stdout.close()", stdout=subprocess.DEVNULL)
    ran(tmp_path, "sys.stdout = None", stdout=subprocess.DEVNULL)
