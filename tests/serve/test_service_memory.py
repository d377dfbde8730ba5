"""One budget of memory for all experiments; and what is read is the folder that was looked at."""

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from tests.serve.test_hostile import REPORT, STARTED, begin
from tuner.errors import RequestError
from tuner.record.reading import NotYet
from tuner.record.storage.files import open_in
from tuner.record.storage.lock import abandoned
from tuner.serve.analysis.analyses import Analyser
from tuner.serve.reading import experiment_reader as budget
from tuner.serve.reading.experiment_reader import Crowded
from tuner.serve.reading.results_reader import ResultsReader
from tuner.serve.reading.stream import event_frames

SIZE = 400  # reports of a journal: about 500 kB of weight


def journals(results, count):
    for number in range(count):
        begin(results, f"e{number}", [STARTED, *({**REPORT, "epoch": n} for n in range(1, SIZE + 1))])


@pytest.fixture
def sliced(monkeypatch):
    """Journals are read 5 kB at a time."""
    monkeypatch.setattr("tuner.record.storage.files.CHUNK_BYTES", 5000)


class Records:
    """Records that count how often they are dropped."""

    folder = Path("demo")

    def __init__(self, is_whole, is_read=False):
        self.is_whole, self.is_read, self.dropped = is_whole, is_read, 0

    def forget(self):
        self.dropped += not self.is_read
        return not self.is_read


@pytest.mark.parametrize(
    ("others", "dropped", "error"),
    [  # the other records, the least recently used first: (weight, whole, being read)
        ([(400_000, True, False), (400_000, True, False)], [1, 0], None),
        ([(400_000, False, False), (400_000, True, False)], [0, 1], None),
        ([(300_000, False, False), (500_000, False, False)], [1, 0], None),  # the smaller partial ones
        ([(400_000, True, True), (400_000, True, False)], [0, 1], None),
        ([(800_000, False, False)], [0], Crowded),  # this one must give way
        ([(300_000, False, True), (350_000, False, True)], [0, 0], NotYet),
    ],
)
def test_records_that_are_whole_long_unused_or_smaller_make_room(monkeypatch, others, dropped, error):
    monkeypatch.setattr(budget, "MOST_MEMORY", 1_000_000)
    memory, asking = budget.MemoryBudget(), Records(is_whole=False)
    kept = [Records(*kind) for _, *kind in others]
    for records, (weight, *_) in zip(kept, others, strict=True):
        memory.hold(records, weight)
    if error is None:
        memory.hold(asking, 400_000)
    else:
        with pytest.raises(error) as refused:
            memory.hold(asking, 400_000)
        assert refused.type is error
    assert [records.dropped for records in kept] == dropped


def test_what_is_used_is_dropped_last_and_what_takes_too_much_is_refused(monkeypatch):
    monkeypatch.setattr(budget, "MOST_MEMORY", 1_000_000)
    memory, first, second = budget.MemoryBudget(), Records(True), Records(True)
    memory.hold(first, 400_000)
    memory.hold(second, 400_000)
    memory.touch(first)
    memory.hold(Records(False), 400_000)
    assert (first.dropped, second.dropped, memory.total) == (0, 1, 800_000)
    with pytest.raises(RequestError, match="demo has too many values"):
        memory.hold(first, 1_000_001)


def test_all_that_is_read_at_a_time_stays_within_one_budget(tmp_path, monkeypatch, sliced):
    journals(tmp_path, 6)
    totals, hold = [], budget.MemoryBudget.hold

    def watched(self, holder, weight):
        hold(self, holder, weight)
        totals.append(self.total)

    monkeypatch.setattr(budget.MemoryBudget, "hold", watched)
    ResultsReader(tmp_path).view("e0")
    most = int(2.5 * totals[-1])
    totals.clear()
    monkeypatch.setattr(budget, "MOST_MEMORY", most)
    reader, read = ResultsReader(tmp_path), set()

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
