"""One budget of memory for all experiments; and what is read is the folder that was looked at."""

import asyncio
import json
import os
import threading

import pytest

from tests.serve.test_hostile import REPORT, STARTED, begin
from tuner.errors import RequestError
from tuner.record.reading import NotYet
from tuner.record.storage.files import open_in
from tuner.record.storage.lock import abandoned
from tuner.serve.analysis.questions import Answers
from tuner.serve.reading import memory
from tuner.serve.reading.results_reader import ResultsReader
from tuner.serve.reading.stream import LOOK_S, PAUSE_S, event_frames

SIZE = 400  # reports of a journal: about 500 kB of weight


def journals(results, count):
    for number in range(count):
        begin(results, f"e{number}", [STARTED, *({**REPORT, "epoch": n} for n in range(1, SIZE + 1))])


@pytest.fixture
def sliced(monkeypatch):
    """Journals are read 5 kB at a time."""
    monkeypatch.setattr("tuner.record.storage.files.CHUNK_BYTES", 5000)


def weight_of(results):
    reader = ResultsReader(results)
    reader.view("e0")
    return reader._memory.total


def test_all_that_is_read_at_a_time_stays_within_one_budget(tmp_path, monkeypatch, sliced):
    journals(tmp_path, 6)
    most = int(2.5 * weight_of(tmp_path))
    monkeypatch.setattr(memory, "MOST_MEMORY", most)
    reader, weights, read, over = ResultsReader(tmp_path), [], set(), threading.Event()
    hold = memory.Memory.hold

    def watched(self, holder, weight):
        try:
            hold(self, holder, weight)
        finally:
            weights.append(sum(each._followed.weight for each in reader._watched.values()))

    monkeypatch.setattr(memory.Memory, "hold", watched)

    def asking(name):
        while name not in read and not over.is_set():
            try:
                assert reader.view(name).summary.epochs == SIZE
                read.add(name)
            except NotYet:
                pass

    threads = [threading.Thread(target=asking, args=[f"e{n}"]) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    over.set()
    assert len(read) == 6 and max(weights) <= most
    assert reader._memory.total <= most


def test_of_those_half_read_the_one_that_was_read_furthest_stays(tmp_path, monkeypatch, sliced):
    journals(tmp_path, 2)
    monkeypatch.setattr(memory, "MOST_MEMORY", int(1.2 * weight_of(tmp_path)))
    reader = ResultsReader(tmp_path)
    monkeypatch.setattr("tuner.serve.reading.results_reader.VIEW_S", -1.0)  # a slice at each look
    views = {}
    for _ in range(200):
        for name in ("e0", "e1"):
            try:
                views[name] = views.get(name) or reader.view(name)
            except NotYet:
                pass
    assert len(views) == 2


def test_one_that_alone_takes_more_is_a_row_that_says_so(tmp_path, monkeypatch):
    journals(tmp_path, 1)
    begin(tmp_path, "good", [STARTED, REPORT])
    monkeypatch.setattr(memory, "MOST_MEMORY", 300_000)
    reader = ResultsReader(tmp_path)
    rows = {row.name: row for row in reader.summaries()}
    assert "too many values" in rows["e0"].error and rows["good"].error == ""
    assert reader._memory.total == memory.LEAST_WEIGHT


def test_records_that_nobody_reads_on_make_room(tmp_path, monkeypatch, sliced):
    journals(tmp_path, 2)
    monkeypatch.setattr(memory, "MOST_MEMORY", int(1.2 * weight_of(tmp_path)))
    monkeypatch.setattr(memory, "IDLE_S", 0.0)
    reader = ResultsReader(tmp_path)
    monkeypatch.setattr("tuner.serve.reading.results_reader.VIEW_S", -1.0)
    with pytest.raises(NotYet):
        for _ in range(3):
            reader.view("e0")
    monkeypatch.setattr("tuner.serve.reading.results_reader.VIEW_S", 60.0)
    assert reader.view("e1").summary.epochs == SIZE


def test_a_service_that_ends_reads_nothing_more(tmp_path):
    journals(tmp_path, 1)
    ending = threading.Event()
    reader = ResultsReader(tmp_path, stopping=ending.is_set)
    ending.set()
    for ask in (reader.summaries, lambda: reader.view("e0"), lambda: list(reader.unless_stopping([1]))):
        with pytest.raises(NotYet, match="is shutting down"):
            ask()


# --- a folder that is put in the place of another --------------------------------------------------------------------


def swapped(results):
    """Puts a link to somebody's folder in the place of the experiment, after it was looked at."""
    (results / "e").rename(results.parent / "was")
    (results / "e").symlink_to(results.parent / "secret")


@pytest.fixture
def results(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    begin(results, "e", [STARTED, REPORT])
    begin(tmp_path, "secret", [STARTED, *({**REPORT, "epoch": n} for n in range(1, 8))])
    (tmp_path / "secret" / ".driver").write_text(f"process 1 on {os.uname().nodename}")
    return results


def test_a_link_that_comes_after_the_look_is_not_followed(results, monkeypatch):
    reader = ResultsReader(results)
    look = ResultsReader.folder

    def late(self, name):
        folder = look(self, name)
        swapped(results)
        return folder

    monkeypatch.setattr(ResultsReader, "folder", late)
    with pytest.raises(RequestError) as error:
        reader.view("e")
    assert "secret" not in str(error.value)
    assert not abandoned(results / "e")  # the process that it names is the other folder's


def test_no_reader_of_a_shared_folder_follows_a_link(results):
    ResultsReader(results)
    swapped(results)
    for name in ("experiment.json", "journal.jsonl", ".driver"):
        with pytest.raises(OSError):
            open_in(results / "e", name)
    with pytest.raises((OSError, ValueError)):
        open_in(results / "e", "/experiment.json")
    begin(results, "good", [STARTED])
    with open_in(results / "good", "experiment.json") as file:
        assert json.loads(file.read())["options"]["name"] == "good"


def test_an_open_stream_does_not_follow_a_link_that_comes_later(results):
    """It looks at the journal many times a second, for as long as a page is open."""

    async def frames():
        frames, events = [], event_frames(ResultsReader(results).journal("e"), 0, lambda: False, pause_s=0)
        async for frame in events:
            frames.append(frame)
            if len(frames) == 2:
                swapped(results)
        return frames

    _, second = asyncio.run(asyncio.wait_for(frames(), 60))  # the stream ends at the link
    assert b"\nid: 1\n" in second


def test_an_open_stream_looks_often_at_a_quiet_journal_and_shares_the_looks_with_other_streams(results, monkeypatch):
    pauses = []

    async def slept(seconds):
        pauses.append(seconds)

    async def frames(num_streams):
        pauses.clear()
        journal = ResultsReader(results).journal("e")
        async for _ in event_frames(journal, 0, lambda: len(pauses) >= 3, num_streams=lambda: num_streams):
            pass
        return list(pauses)

    monkeypatch.setattr("tuner.serve.reading.stream.asyncio.sleep", slept)
    assert asyncio.run(frames(1)) == [PAUSE_S, LOOK_S, LOOK_S]  # the journal has a line at first
    assert asyncio.run(frames(4)) == [PAUSE_S, 4 * LOOK_S, 4 * LOOK_S]
    assert asyncio.run(frames(100)) == [PAUSE_S, PAUSE_S, PAUSE_S]


def test_the_process_of_costly_questions_does_not_follow_a_link_that_comes_later(results):
    answers, folder = Answers(1 << 20), str(results / "e")
    choices = {"scheduler": "asha", "grace_period": 1, "reduction_factor": 2, "brackets": 1}
    status, text = answers.answer(folder, "what-if", choices)
    assert status == 200
    swapped(results)
    status, text = answers.answer(folder, "what-if", choices)
    assert status == 422 and "secret" not in text


def test_a_service_reads_the_experiment_that_was_written_last_before_anybody_asks(tmp_path):
    ResultsReader(tmp_path).read_newest()  # an empty folder
    journals(tmp_path, 3)
    (tmp_path / "no experiment").write_text("")
    os.utime(tmp_path / "e1" / "journal.jsonl", (2e9, 2e9))
    reader = ResultsReader(tmp_path)
    reader.read_newest()
    assert [name for name, watched in reader._watched.items() if watched.last] == ["e1"]
    assert reader.unchanged("e1").epochs == SIZE
