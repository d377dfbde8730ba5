"""What is printed is readable in a narrow terminal, can be copied from there, never steers it, and has a limit."""

import errno
import io
import logging
import shlex

import pytest

from tuner import gpus, report
from tuner.errors import PrintableFormatter, output, say
from tuner.errors.output import Bounded, if_there_is_room
from tuner.record.saved_experiment import load_experiment, save_experiment
from tuner.spec.experiment import Experiment

HEADING = (
    "cifar-20261124-230432: 6 by random; asha: compares trials after epochs 1, 2 and continues the best 1/2; a trial "
    "trains at most 3 epochs; 1 CPU per trial, 2 trials at once"
)
LINES = [
    HEADING,
    "!!! CIFAR-10 sample: 5,000 images, not all 60,000; see --data-dir !!!",
    "saved       About 4 of 18 epochs (22 %) and 11 s on workers. This estimate lets each trial train at its own rate.",
    "tuner: error: --space digits.py: its model needs 64 inputs (/home/me/a-long-folder/digits.py, line 12); change it",
    "folder      /home/me/a folder/results",
]
COMMANDS = [
    "audit       uv run python -m tuner.audit cifar-20261124-230432 --trials 5 --results /tmp/a-long-folder/results",
    "retrain     python -m tuner.train '/home/me/a folder with spaces/results/cifar-20261124-230432/best/config.json'",
    "interrupted; continue with: python -m tuner.audit cifar-20261124-230432 --trials 5 --results /tmp/a-long-folder",
]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(monkeypatch, line, width=80, *, term="xterm", no_color="1", stream=Terminal):
    """What `say` writes to a terminal."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)
    say(line, to=(shown := stream()))
    return shown.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("line", LINES)
def test_lines_break_between_words_and_align_with_their_label(monkeypatch, line, width):
    lines = printed(monkeypatch, line, width).splitlines()
    assert " ".join(lines).split() == line.split()
    assert max(map(len, lines)) <= width and (len(lines) > 1) == (len(line) > width)
    indent = 12 if line.startswith("saved") else 2
    assert all(each.startswith(" " * indent) and each[indent] != " " for each in lines[1:])


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_can_be_copied_from_a_narrow_terminal(monkeypatch, line, width):
    start = line.index("uv run" if "uv run" in line else "python")
    text = printed(monkeypatch, line, width)
    copied = text[text.index(line[start : start + 6]) :]
    assert shlex.split(copied.replace("\\\n", " ")) == shlex.split(line[start:])  # as a shell reads it
    lines = copied.splitlines()
    assert all(each.endswith(" \\") for each in lines[:-1]) and not lines[-1].endswith("\\")
    words = shlex.split(line)
    assert all(len(each) <= width or any(word in each for word in words if len(word) > width - 2) for each in lines)


def test_a_call_from_python_can_be_copied_from_a_narrow_terminal(monkeypatch):
    call = "tuner.search(space, resume='lenet', results='/home/me/a folder with spaces/results', num_samples=20)"
    text = printed(monkeypatch, f"extend      from Python: {call}", 40)
    copied = text[text.index("tuner.search") :]
    assert " ".join(copied.split()) == call and "/home/me/a folder with spaces/results" in copied
    compile(copied, "copied", "eval")


def test_a_pipe_gets_each_line_whole_and_without_colours(monkeypatch):
    for line in LINES + COMMANDS:
        assert printed(monkeypatch, line, 40, no_color="", stream=io.StringIO) == line + "\n"


@pytest.mark.parametrize("line", [*LINES, *COMMANDS, "NOTE: a notice", "best        trial 3", "failed      trial 1"])
def test_the_head_of_a_line_is_coloured_where_the_terminal_has_colours(monkeypatch, line):
    text, plain = printed(monkeypatch, line, no_color=""), printed(monkeypatch, line)
    assert text.replace("\x1b", "").count("[0m") == (0 if line in (HEADING, COMMANDS[-1]) else 1)
    assert "\x1b" not in plain and "\x1b" not in printed(monkeypatch, line, term="dumb", no_color="")
    for code in [output.BOLD, output.RED, output.YELLOW, f"{output.BOLD};{output.GREEN}", "0"]:
        text = text.replace(f"\x1b[{code}m", "")
    assert text == plain


def test_a_warning_is_wrapped_as_other_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    record = logging.makeLogRecord({"msg": HEADING})
    assert PrintableFormatter().format(record) == HEADING
    monkeypatch.setattr("sys.stderr", Terminal())
    assert PrintableFormatter().format(record).splitlines() == output.fitted(HEADING, 80)


STEERING = set("\x1b\x07\x9b\r\u202e")


def test_a_search_prints_no_control_character_of_its_spaces(search, capsys):
    ran = search("functions.py:steering")
    assert ran.code == 0 and not STEERING & set(ran.out + ran.err)
    assert r"value\x1b[2J" in ran.out and r"no\x1b[2J" in ran.out  # the table and the ending
    assert report.main([ran.folder.name, "--results", str(ran.folder.parent)]) == 0
    assert gpus.main(["--results", str(ran.folder.parent)]) == 0
    again = search(None, "--resume", "test", "--dry-run")
    assert again.code == 0 and not STEERING & set(again.out + again.err + capsys.readouterr().out)


def test_a_warning_about_a_folder_prints_none(tmp_path, capfd):
    folder = tmp_path / "x\x1b[2J"
    folder.mkdir()
    save_experiment(Experiment(), folder, {})
    (folder / "experiment.json").unlink()
    record = logging.makeLogRecord({"msg": "%s\n%s", "args": (folder, "\x9b")})
    assert PrintableFormatter().format(record) == f"{tmp_path}/x\\x1b[2J\n\\x9b"
    logger = logging.getLogger("tuner.record.saved_experiment")
    before, logger.propagate = logger.propagate, False  # without pytest's handlers, as in a terminal
    try:
        load_experiment(folder)
    finally:
        logger.propagate = before
    assert "its copy" in (output := capfd.readouterr().err) and not STEERING & set(output)


def kept(texts, most):
    parts = []
    write = Bounded(parts.append, most)
    assert [write(text) for text in texts] == [len(text) for text in texts]
    return "".join(parts)


def test_what_fits_is_kept_and_what_is_beyond_the_limit_is_said_once_and_dropped():
    assert kept(["one\n", "two\n"], 100) == "one\ntwo\n"
    output = kept(["12345678"] * 1000, 20)
    assert output.startswith("1234567812345678123") and output.count("not kept") == 1 and len(output) < 200
    assert "cut after 20 bytes" in output
    assert kept(["x" * 1000], 10).startswith("x" * 10 + "\n[what follows")

    def full(*text):
        raise OSError(errno.ENOSPC, "No space left on device")

    assert Bounded(full)("text") == 4
    if_there_is_room(full)
