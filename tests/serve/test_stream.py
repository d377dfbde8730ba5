"""Server-sent events: the lines of a journal, from where a client was, to few clients at once."""

import time

import httpx
import pytest
from journals import Journal

from tests.serve.conftest import begin, serving, train
from tuner.serve.app import MOST_STREAMS, create_app
from tuner.serve.reading.stream import CHUNK_BYTES, MAX_SENT_LINES, Place, read_on


@pytest.fixture
def served(tmp_path):
    """A service of one experiment on a real port: a stream does not end, and a test client waits for the end."""
    journal = begin(tmp_path)
    train(journal, "0", {"x": 1.0}, [3.0, 2.0, 1.0])
    journal.close()
    with serving(create_app(tmp_path)) as served:
        served.journal = tmp_path / "demo" / "journal.jsonl"
        served.events = f"{served.url}api/experiments/demo/events"
        yield served


def ids(lines, number):
    """The ids of the next `number` events."""
    numbers = []
    for line in lines:
        numbers += [int(line.removeprefix("id: "))] if line.startswith("id: ") else []
        if len(numbers) == number:
            return numbers


def test_events_are_the_journals_lines_and_go_on(served):
    written = served.journal.read_text().splitlines()
    with httpx.stream("GET", served.events, timeout=10) as stream:
        lines = stream.iter_lines()
        assert ids(lines, len(written) - 1) == list(range(1, len(written)))
        assert [next(lines) for _ in range(3)] == ["", f"data: {written[-1]}", f"id: {len(written)}"]
        journal = Journal(served.journal)
        journal.write("experiment_resumed")
        assert ids(lines, 1) == [len(written) + 1]
        journal.close()


@pytest.mark.parametrize("how", [{"params": {"after": 3}}, {"headers": {"Last-Event-ID": "3"}}])
def test_a_reconnect_goes_on_after_the_last_event(served, how):
    with httpx.stream("GET", served.events, timeout=10, **how) as stream:
        assert ids(stream.iter_lines(), 2) == [4, 5]


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "journal.jsonl"
    one, two = b"data: one\nid: 1\n\n", b"data: two\nid: 2\n\n"
    assert read_on(path, Place()) == (b"", Place())
    path.write_bytes(b"one\ntw")
    assert read_on(path, Place()) == (one, Place(4, 1)) and read_on(path, Place(4, 1)) == (b"", Place(4, 1))
    path.write_bytes(b"one\ntwo\n")
    assert read_on(path, Place(4, 1)) == (two, Place(8, 2)) == read_on(path, Place(), after=1)
    path.write_bytes(b"")
    assert read_on(path, Place(4, 1)) is None


def test_a_journal_of_line_ends_is_followed_in_parts(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"\n" * (CHUNK_BYTES + 5))
    frames, place = read_on(path, Place(), after=MAX_SENT_LINES - 1)
    assert frames == b"data: \nid: %d\n\n" % MAX_SENT_LINES and place == (MAX_SENT_LINES, MAX_SENT_LINES)


def test_no_more_streams_are_open_than_may_be_and_all_are_counted_down(served):
    asked = b"GET /api/experiments/demo/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    for _ in range(2):  # what was open is free again, and the whole number of it
        opened = [served.connect(asked) for _ in range(MOST_STREAMS + 60)]
        heads = [connection.recv(15) for connection in opened]
        assert heads.count(b"HTTP/1.1 200 OK") == MOST_STREAMS
        assert heads.count(b"HTTP/1.1 503 Se") == 60
        for connection in opened:
            connection.close()
        until = time.monotonic() + 20
        while served.state.connections and time.monotonic() < until:
            time.sleep(0.05)
