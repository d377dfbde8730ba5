"""A trial's output is cut at a limit, with a line that says so."""

import errno

from tuner.errors.output import Bounded, flushed


def kept(texts, most):
    parts = []
    write = Bounded(parts.append, most)
    assert [write(text) for text in texts] == [len(text) for text in texts]
    return "".join(parts)


def test_what_fits_is_kept_as_it_is():
    assert kept(["one\n", "two\n"], 100) == "one\ntwo\n"


def test_beyond_the_limit_is_said_once_and_dropped():
    output = kept(["12345678"] * 1000, 20)
    assert output.startswith("1234567812345678123") and output.count("not kept") == 1 and len(output) < 200
    assert "cut after 20 bytes" in output


def test_one_text_above_the_limit_is_cut():
    assert kept(["x" * 1000], 10).startswith("x" * 10 + "\n[what follows")


def test_what_has_no_room_is_lost_and_nothing_else():
    def full(*text):
        raise OSError(errno.ENOSPC, "No space left on device")

    assert Bounded(full)("text") == 4
    flushed(full)()
