"""The journal: any prefix of its bytes reads as a prefix of its events, and every line is strict JSON."""

import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import Journal, follow, lines_of, read, scan

from tuner.errors import RequestError
from tuner.errors.gate import fingerprint, plain
from tuner.record import clock, journal
from tuner.record.format import FORMAT
from tuner.record.lines import Chain, document_of
from tuner.record.reading import Reading
from tuner.record.storage.files import MOST_BYTES

DECIDED = {"rung": 1, "bracket": 0, "value": 0.5, "cutoff": None, "recorded": 0, "action": "stop", "reason": "why"}


def write_some(path):
    book = Journal(path)
    book.write("experiment_started", name="x")
    book.write("trial_suggested", "00000", config={"lr": 0.1, "name": "Zürich", "many": [1, {"a": None}]})
    book.write("report", "00000", epoch=1, metrics={"loss": math.nan, "accuracy": 0.5, "big": math.inf})
    book.write("decision", "00000", epoch=1, **DECIDED | {"value": -math.inf, "reason": "line one\nline two"})
    book.write("experiment_finished", state="finished")
    book.close()


def same(one, other):
    return json.dumps(one) == json.dumps(other)  # NaN is not itself


def test_a_journal_cut_anywhere_goes_on_from_its_last_whole_line(tmp_path):
    write_some(tmp_path / "whole")
    content, events = (tmp_path / "whole").read_bytes(), read(tmp_path / "whole")
    cut = tmp_path / "cut"
    for length in range(0, len(content) + 1, 3):
        cut.write_bytes(content[:length])
        book = Journal(cut)
        book.write("experiment_resumed", name="x")
        book.close()
        events_read = read(cut)
        assert same(events_read[:-1], events[: content[:length].count(b"\n")])
        assert events_read[-1]["event"] == "experiment_resumed"


def test_a_closed_journal_is_on_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(os.readlink(f"/proc/self/fd/{handle}"))))
    write_some(tmp_path / "j")
    assert synced[-1] == tmp_path / "j" and tmp_path in synced  # the folder has its name


def test_a_sync_waits_for_all_lines_and_costs_nothing_without_a_new_one(tmp_path, monkeypatch):
    synced, book = [], Journal(tmp_path / "j")
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    for number in range(3):
        book.write("report", "0", epoch=number, metrics={})
    book.sync()
    book.sync()
    assert synced == [(tmp_path / "j").stat().st_size]
    book.close()
    synced.clear()
    Journal(tmp_path / "j").close()  # a killed process may have left its lines in memory
    assert (tmp_path / "j").stat().st_size in synced


def test_lines_for_which_nobody_waits_are_synced_too(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MOST_UNSYNCED", 1000)
    synced, book = [0], Journal(tmp_path / "j")
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    for number in range(100):
        book.write("report", "0", epoch=number, metrics={})
    assert len(synced) > 5 and (tmp_path / "j").stat().st_size - synced[-1] <= 1000


def test_a_failed_sync_is_waited_for_like_a_full_disk(tmp_path, monkeypatch):
    book, asked, answers = Journal(tmp_path / "j"), [], iter([errno.EIO, errno.ENOSPC, 0])

    def fsync(handle):
        if number := next(answers):
            with (tmp_path / "j").open("r+b") as file:  # as NFS forgets what a failed sync could not write
                file.write(bytes(file.seek(0, os.SEEK_END) - file.seek(at)))
            raise OSError(number, "fails")

    monkeypatch.setattr(os, "fsync", lambda handle: None)
    book.write("report", "0", epoch=1, metrics={})
    book.sync()
    at = (tmp_path / "j").stat().st_size
    monkeypatch.setattr(os, "fsync", fsync)
    book.blocked = lambda error, path: asked.append(error.errno) is None
    book.write("report", "0", epoch=2, metrics={})
    book.write("report", "0", epoch=3, metrics={})
    book.sync()
    assert asked == [errno.EIO, errno.ENOSPC] and next(answers, None) is None
    assert [event["epoch"] for event in read(tmp_path / "j")] == [1, 2, 3]


def test_times_go_on_from_the_last_event_whatever_the_time_is_set_to(tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "_offset", clock._offset + 4e8)  # a session on a machine whose clock was wrong
    write_some(tmp_path / "j")
    monkeypatch.undo()
    book = Journal(tmp_path / "j")
    for wrong in (-4e8, 4e8):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: 1.7e9 + wrong)
        book.write("report", "0", epoch=1, metrics={})
    times = [event["time"] for event in read(tmp_path / "j")]
    assert times == sorted(times) and times[-1] - times[0] < 60


STANDS_STILL = """
import time
from tuner.record import clock
clock.BEAT_S, clock.STILL_S = 0.05, 1.0
with clock.standstills() as stood_still:
    print("begun", stood_still(), flush=True)
    input()
    print(stood_still(), stood_still())
"""


def test_a_process_knows_that_it_was_stopped_or_suspended():
    process = subprocess.Popen(
        [sys.executable, "-c", STANDS_STILL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "begun 0.0\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    process.send_signal(signal.SIGCONT)
    first, again = map(float, process.communicate("\n")[0].split())
    assert 1.2 < first < 10 and again == 0


def test_a_standstill_is_journaled_before_the_event_that_comes_after_it(tmp_path):
    journal, stood = Journal(tmp_path / "journal.jsonl"), [0.0, 7.25, 0.0]
    journal.stood_still = lambda: stood.pop(0)
    journal.write("experiment_started")
    for epoch in (1, 2):
        journal.write("report", "00000", epoch=epoch, metrics={})
    journal.close()
    events = read(tmp_path / "journal.jsonl")
    assert [event["event"] for event in events] == ["experiment_started", "search_stood_still", "report", "report"]
    assert events[1]["seconds"] == 7.25


def test_every_line_is_strict_json_in_the_order_time_event_trial(tmp_path):
    write_some(tmp_path / "j")
    for line in (tmp_path / "j").read_text().splitlines():
        event = json.loads(line, parse_constant=pytest.fail)
        assert list(event)[:2] == ["time", "event"]
        assert "trial" not in event or list(event)[2] == "trial"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e-300, 3])
def test_a_number_of_a_report_and_a_decision_is_read_back_as_it_was(tmp_path, value):
    book = Journal(tmp_path / "j")
    book.write("report", "0", epoch=1, metrics={"loss": value, "word": "nano"})
    book.write("decision", "0", epoch=1, **{**DECIDED, "value": value, "cutoff": value})
    book.close()
    report, decision = read(tmp_path / "j")
    for number in (report["metrics"]["loss"], decision["value"], decision["cutoff"]):
        assert type(number) is type(value) and (number == value or (math.isnan(value) and math.isnan(number)))
    assert report["metrics"]["word"] == "nano"


def test_a_float_of_a_configuration_stays_a_float_and_a_text_a_text(tmp_path):
    config = {"a": math.inf, "b": "inf", "net": {"c": [1.0, math.nan, {"d": -math.inf}], "e": "nan"}, "f": {"-inf": 1}}
    book = Journal(tmp_path / "j")
    book.write("trial_suggested", "00000", config=config)
    book.close()
    (event,) = read(tmp_path / "j")
    assert fingerprint(event["config"]) == fingerprint(config) and "non_finite" not in event
    json.loads((tmp_path / "j").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("places", [1, [1], [[]], [["b"]], [["a", "b"]], [["a"], ["a"]], [[{}]]])
def test_a_place_without_a_float_is_damage(tmp_path, places):
    event = {
        "time": 1.0,
        "event": "trial_suggested",
        "trial": "0",
        "config": {"a": "inf", "b": 1},
        "non_finite": places,
    }
    (tmp_path / "j").write_bytes(lines_of({**REPORT, "format": FORMAT}, event))
    assert scan(tmp_path / "j").damage.startswith("line 2")


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_a_line_is_read_as_the_standard_library_reads_it(value):
    event = {"time": 1.5, "event": "trial_suggested", "trial": "0", "config": {"given": value}}
    assert same(document_of(Chain().event_of(lines_of(event)[:-1])), json.loads(json.dumps(event)))


def test_a_follower_sees_events_as_they_come_and_ends_with_the_search(tmp_path):
    path = tmp_path / "j"
    path.touch()
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(follow(path, pause_s=0.01)))
    thread.start()
    with open(path, "ab", buffering=0) as file:
        first = {"time": 1, "event": "experiment_started", "format": FORMAT}
        last = {"time": 2, "event": "experiment_finished", "state": "finished"}
        lines = lines_of(first, last)
        file.write(lines[:30])
        thread.join(0.05)
        assert seen == [] and thread.is_alive()
        file.write(lines[30:])
    thread.join(5)
    assert [event["event"] for event in seen] == ["experiment_started", "experiment_finished"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True), (np.str_("relu"), "relu"),
        (np.array([2.5]), 2.5), (None, None), ((1, np.int32(2)), [1, 2]), ({1: {"a": np.float32(1)}}, {"1": {"a": 1}}),
        (torch.tensor([1.5]), 1.5), (torch.tensor(3), 3), (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
    ],
)  # fmt: skip
def test_plain_gives_pythons_own_types(value, expected):
    result = plain(value)
    assert result == expected and type(result) is type(expected)
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("flip", [1, 2, 0x80])
def test_an_altered_byte_ends_the_reading_at_its_line(tmp_path, flip):
    path = tmp_path / "j"
    write_some(path)
    content, events = path.read_bytes(), read(path)
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
        number = content[:at].count(b"\n")
        scanned = scan(path)
        assert same(scanned.events, events[:number]) and bool(scanned.damage) == (at < len(content) - 1)


def test_a_damaged_journal_is_copied_and_cut_when_it_is_opened(tmp_path):
    path = tmp_path / "j"
    write_some(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"0.5", b"0.6")
    path.write_bytes(b"".join(lines))
    assert (
        "line 3 (the line does not match its checksum: it was altered, or is of another journal)" == scan(path).damage
    )
    with pytest.raises(RequestError, match="line 3"):
        read(path)
    Journal(path).close()
    assert path.read_bytes() == b"".join(lines[:2])
    assert [copy.read_bytes() for copy in tmp_path.glob("j.damaged-*")] == [b"".join(lines)]


REPORT = {"time": 1.0, "event": "report", "trial": "0", "epoch": 1, "metrics": {}}


@pytest.mark.parametrize(
    "damaged",
    [
        *(REPORT | wrong for wrong in (
            {"epoch": "1"}, {"epoch": 10**9}, {"metrics": []}, {"checkpoint": "../x"}, {"config": 5}, {"trial": None},
            {"trial": "../../x"}, {"time": math.nan}, {"event": []}, {"copied": "/"}, {"refused": 1},
        )),
        *({**REPORT, "event": "decision", **DECIDED} | wrong for wrong in (
            {"value": {}}, {"recorded": -1}, {"rung": math.inf}, {"action": None}, {"cutoff": "x"}, {"band": "0"},
        )),
        {"time": 3, "event": "trial_ended", "trial": "0", "status": [], "reason": ""},
        {"time": 3, "event": "trial_started", "trial": "0", "resources": {}},
        {"time": 3, "event": "length_learned", "trial": "0", "epochs": 0, "rungs": [1]},
        {"time": 3, "event": "experiment_finished", "state": "<script>"},
        *(["nan"], "inf", [], 7, None),
        b'{"time": 1, "event": "experiment_started"}\n',  # without a checksum
        b"x" * (MOST_BYTES + 1),  # without an end
    ],
)  # fmt: skip
def test_whoever_reads_takes_the_same_events(tmp_path, damaged):
    path = tmp_path / "j"
    first = lines_of({**REPORT, "format": FORMAT})
    path.write_bytes(first + damaged if isinstance(damaged, bytes) else lines_of({**REPORT, "format": FORMAT}, damaged))
    assert scan(path).damage.startswith("line 2")
    for reader in (read, lambda path: Reading(path).read_on().records()):
        with pytest.raises(RequestError, match=r"damaged at line 2 \(.*\); --resume goes on from"):
            reader(path)
    Journal(path).close()
    assert path.read_bytes() == first and Reading(path).read_on().records()


def test_a_damaged_first_line_promises_no_resume(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(lines_of({**REPORT, "format": FORMAT})[1:])
    with pytest.raises(RequestError, match=r"damaged at line 1 \(.*\); restore the file$"):
        read(path)


def test_a_report_too_long_for_a_line_keeps_its_short_metrics(tmp_path):
    book = Journal(tmp_path / "j")
    metrics = {"loss": 0.5, "short": "x" * 9_999, "limit": "x" * 10_000, "long": "x" * MOST_BYTES, "many": [1] * 9_000}
    book.write("report", "00000", epoch=1, metrics=metrics)
    book.write("report", "00000", epoch=2, metrics={"limit": "x" * 10_000})  # fits, so nothing is replaced
    with pytest.raises(RequestError, match=r"trial 00001: trial_suggested takes 16,7.* bytes in the journal, at most"):
        book.write("trial_suggested", "00001", config={"data": "x" * MOST_BYTES})
    book.close()
    first, second = read(tmp_path / "j")
    assert first["epoch"] == 1 and first["metrics"] == {
        "loss": 0.5,
        "short": "x" * 9_999,
        "limit": "left out: str of 10,000 characters",
        "long": f"left out: str of {MOST_BYTES:,} characters",
        "many": "left out: list of 27,000 characters",
    }
    assert second["metrics"] == {"limit": "x" * 10_000}


def test_only_a_regular_file_is_a_journal(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("pipe", "link"):
        with pytest.raises(OSError):
            Journal(tmp_path / name)
        with pytest.raises(RequestError, match=f"{name} cannot be read"):
            read(tmp_path / name)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 64 KiB, where this machine lets a test mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_full_disk_is_waited_for_or_given_up_and_no_line_is_torn(small_disk, gives_up):
    asked = []

    def blocked(error, path):
        asked.append(error.errno)
        (small_disk / "filler").unlink()
        return not gives_up

    (small_disk / "filler").write_bytes(b"x" * 40 * 1024)
    book = Journal(small_disk / "j")
    book.blocked = blocked
    for epoch in range(250):
        book.write("report", "00000", epoch=epoch, metrics={"loss": 0.5})
    book.close()
    epochs = [event["epoch"] for event in read(small_disk / "j")]
    assert asked == [errno.ENOSPC] and book.lost is gives_up and epochs == list(range(len(epochs)))
    assert 100 < len(epochs) < 250 if gives_up else len(epochs) == 250


def test_a_journal_that_another_file_replaced_is_not_written_to(tmp_path):
    book, causes = Journal(tmp_path / "j"), []
    book.blocked = lambda error, path: bool(causes.append((error.errno, error.strerror, path)))
    book.write("report", "00000", epoch=1, metrics={})
    (tmp_path / "j").rename(tmp_path / "away")
    (tmp_path / "j").touch()
    book.write("report", "00000", epoch=2, metrics={})
    assert causes == [(errno.ENOENT, "another file lies there now", tmp_path / "j")] and book.lost
    assert [event["epoch"] for event in read(tmp_path / "away")] == [1] and read(tmp_path / "j") == []
    book.write("report", "00000", epoch=3, metrics={})
    assert len(causes) == 1  # nothing more is tried
    book.close()


def test_a_folder_that_is_gone_is_waited_for(tmp_path):
    folder, away = tmp_path / "here", tmp_path / "away"
    folder.mkdir()
    book = Journal(folder / "j")
    book.blocked = lambda error, path: bool(away.rename(folder))
    folder.rename(away)
    book.write("report", "00000", epoch=1, metrics={})
    book.close()
    assert not book.lost and len(read(folder / "j")) == 1


def test_a_journal_that_was_replaced_is_read_from_its_first_line(tmp_path):
    path = tmp_path / "j"
    path.write_bytes(lines_of({**REPORT, "format": FORMAT}, {**REPORT, "trial": "1"}))
    reading = Reading(path)
    assert [trial.id for trial in reading.read_on().records()] == ["0", "1"]
    path.write_bytes(lines_of({**REPORT, "trial": "2", "format": FORMAT}))
    assert [trial.id for trial in reading.read_on().records()] == ["2"]
