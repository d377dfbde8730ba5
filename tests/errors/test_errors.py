"""Texts that a terminal may be given."""

import tracemalloc

import pytest

from tuner.errors import RequestError, nearest, printable

HOSTILE = [
    "\x1b]0;evil\x07",
    "\x9b31m",
    "a\r\nb\tc",
    "\u202egnp.exe\u2066\u200f",
    "half \ud800",
    "line\u2028end",
    "zero\x00\x7f",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_terminal_would_obey_is_shown_as_its_escape(text):
    assert printable(text).isprintable() and printable(text).encode().decode("unicode_escape") == text


@pytest.mark.parametrize("text", ["", "loss 0.5", "Zürich, 学習率, ∞ ± ² \U0001f600", "C:\\temp 'x' \"y\""])
def test_what_can_be_read_stays_as_it_is(text):
    assert printable(text) == text


def test_an_error_is_one_line_that_no_terminal_obeys():
    assert str(RequestError("--name \x1b[2J\nforged: \u202eok")) == r"--name \x1b[2J forged: \u202eok"


def test_a_near_name_is_named_and_a_text_of_any_length_takes_little_memory():
    assert nearest("learning_rat", ["learning_rate"]) == nearest("lr", ["learning_rate"]) != ""
    tracemalloc.start()
    assert nearest("asha" + "[" * 20_000, ["asha", "x" * 20_000]) == ""
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
