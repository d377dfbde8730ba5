"""One budget of memory for all experiments; and what is read is the folder that was looked at."""

import asyncio
import os
import threading

import pytest

from tests.serve.test_hostile import REPORT, STARTED, begin
from tuner.errors import RequestError
from tuner.record.reading import NotYet
from tuner.record.storage.files import open_in
from tuner.record.storage.lock import abandoned
from tuner.serve.analysis import Analyser
from tuner.serve.reading import results_reader
from tuner.serve.reading.results_reader import ResultsReader
from tuner.serve.reading.stream import event_frames

SIZE = 400  # reports of a journal: about 500 kB of weight


def journals(results, count):
    for number in range(count):
        begin(results, f"e{number}", [STARTED, *({**REPORT, "epoch": n} for n in range(1, SIZE + 1))])


@pytest.mark.slow
def test_all_that_is_read_at_a_time_stays_within_one_budget(tmp_path, monkeypatch):
    journals(tmp_path, 6)
    monkeypatch.setattr("tuner.record.storage.files.CHUNK_BYTES", 5000)
    monkeypatch.setattr("tuner.serve.reading.results_reader.TURN_S", 0.0)  # they take turns after each chunk
    read, totals, make_room = set(), [], ResultsReader._make_room

    def watched(self, kept):
        make_room(self, kept)
        totals.append(sum(each.weight for each in self._experiments.values()))

    monkeypatch.setattr(ResultsReader, "_make_room", watched)
    reader = ResultsReader(tmp_path)
    reader.view("e0")
    most = int(2.5 * reader._experiments["e0"].weight)

    monkeypatch.setattr(results_reader, "MAX_RECORD_BYTES", most)
    totals.clear()

    def asking(name):
        while name not in read:
            try:
                assert reader.view(name).summary.epochs == SIZE
                read.add(name)
            except NotYet:
                pass

    threads = [threading.Thread(target=asking, args=[f"e{n}"], daemon=True) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(read) == 6 and max(totals) <= most


def test_what_was_not_asked_for_longest_is_dropped_first_and_figures_count_too(tmp_path, monkeypatch):
    journals(tmp_path, 4)
    reader = ResultsReader(tmp_path)

    def held():
        return "".join(name[-1] for name in sorted(reader._experiments) if reader._experiments[name].last.view)

    reader.view("e0")
    monkeypatch.setattr(results_reader, "MAX_RECORD_BYTES", int(2.5 * reader._experiments["e0"].weight))
    for name in ("e1", "e0", "e2"):
        view = reader.view(name)
    assert held() == "02"
    view.drawn["curves", ""] = b"x" * reader._experiments["e0"].weight
    reader.view("e2")  # from memory
    assert held() == "2" and reader.unchanged("e0").epochs == SIZE


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
    for name in ("experiment.json", "journal.jsonl", ".driver"):
        with pytest.raises(OSError):
            open_in(results / "e", name)
    assert not abandoned(results / "e")  # the process that it names is the other folder's


def test_an_open_stream_does_not_follow_a_link_that_comes_later(results):
    """It looks at the journal many times a second, for as long as a page is open."""

    async def frames():
        journal, frames = ResultsReader(results).folder("e") / "journal.jsonl", []
        async for frame in event_frames(journal, 0, lambda: False, pause_s=0):
            frames.append(frame)
            if len(frames) == 2:
                swapped(results)
        return frames

    _, second = asyncio.run(asyncio.wait_for(frames(), 60))  # the stream ends at the link
    assert b"\nid: 1\n" in second


def test_the_process_of_costly_questions_does_not_follow_a_link_that_comes_later(results):
    analyser, folder = Analyser(), str(results / "e")
    choices = {"scheduler": "asha", "grace_period": 1, "reduction_factor": 2, "brackets": 1}
    status, text = analyser.answer(folder, "what-if", choices)
    assert status == 200
    swapped(results)
    status, text = analyser.answer(folder, "what-if", choices)
    assert status == 422 and b"secret" not in text


def test_a_service_reads_the_experiment_that_was_written_last_before_anybody_asks(tmp_path):
    ResultsReader(tmp_path).read_newest()  # an empty folder
    journals(tmp_path, 3)
    (tmp_path / "no experiment").write_text("")
    os.utime(tmp_path / "e1" / "journal.jsonl", (2e9, 2e9))
    reader = ResultsReader(tmp_path)
    reader.read_newest()
    assert [summary and summary.epochs for summary in map(reader.unchanged, ("e0", "e1", "e2"))] == [None, SIZE, None]
