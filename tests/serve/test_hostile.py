"""Folders that somebody else made: each is a row that says what is wrong with it, and its neighbours notice nothing."""

import json
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from journals import append, lines_of

from tests.serve import conftest
from tests.serve.conftest import HERE, client_of
from tuner.record.format import FORMAT
from tuner.record.results import Following
from tuner.record.saved_experiment import COPY, FILE, digest
from tuner.record.storage.lock import driver_of
from tuner.serve.app import create_app
from tuner.serve.client import Client, ServiceError
from tuner.serve.reading.results_reader import ResultsReader

VIEWS = ("", "/trials", "/rungs", "/prediction", "/figures", "/what-if", "/contour?x=lr&y=b", "/trials/0", "/audit")
CONFIG = {"lr": 0.1, "b": 1}
STARTED = {"time": 1.0, "event": "trial_started", "trial": "0", "config": CONFIG, "resources": {}, "node": "n"}
REPORT = {"time": 2.0, "event": "report", "trial": "0", "epoch": 1, "metrics": {"loss": 0.5}}
DECISION = {
    "time": 3.0, "event": "decision", "trial": "0", "epoch": 1, "rung": 1, "bracket": 0, "value": 0.5, "cutoff": None,
    "recorded": 0, "action": "continue", "reason": "first",
}  # fmt: skip


def begin(results, name, events=(), facts=None, **options):
    """An experiment with these events, whatever they are."""
    options = {"space": "tiny", "max_epochs": 4, "reduction_factor": 2, **options}
    conftest.begin(results, name, {"space": {"params": {}}, **(facts or {})}, **options).close()
    folder = results / name
    first = {"time": 0.5, "event": "experiment_started", "format": FORMAT}
    (folder / "journal.jsonl").write_bytes(lines_of(first, *events))
    return folder


# Each of these returns a function that makes a folder of a name.


def journal(*events):
    return lambda results, name: begin(results, name, [STARTED, *events])


def raw(content):
    def make(results, name):
        with open(begin(results, name, [STARTED]) / "journal.jsonl", "ab") as file:
            file.write(content)

    return make


def options(**changed):
    """An experiment.json that agrees with its checksum, and holds these options."""

    def make(results, name):
        folder = begin(results, name, [STARTED, REPORT])
        document = json.loads((folder / FILE).read_text())
        del document["sha256"]
        document["options"] |= changed
        (folder / COPY).unlink()
        (folder / FILE).write_text(json.dumps({**document, "sha256": digest(document)}))

    return make


def ray(**files):
    """A folder as plain Ray Tune leaves it, with these files of one trial."""

    def make(results, name):
        trial = results / name / "trial_0"
        trial.mkdir(parents=True)
        (results / name / "experiment_state-1.json").write_text("{}")
        for file, content in files.items():
            (trial / file.replace("__", ".")).write_bytes(content)

    return make


def instead(file, make_other):
    """Something else, or other bytes, where a file is expected."""

    def make(results, name):
        folder = begin(results, name, [STARTED, REPORT])
        for path in [folder / file, *([folder / COPY] if file == FILE else [])]:
            path.unlink(missing_ok=True)
        make_other(folder / file) if callable(make_other) else (folder / file).write_bytes(make_other)

    return make


# What `tests/fuzz` draws seldom or never; it draws hundreds of other folders.
DAMAGED = {
    "journal is a pipe": instead("journal.jsonl", os.mkfifo),
    "journal is a folder": instead("journal.jsonl", lambda path: path.mkdir()),
    "both experiment.json are folders": instead(FILE, lambda path: path.mkdir()),
    "experiment.json is nested": instead(FILE, b"[" * 200_000),
    "experiment.json is long": instead(FILE, b" " * (17 << 20)),
    "a line without an end": raw(b"a" * (17 << 20)),
    "a nested line": raw(b"[" * 200_000 + b"\n"),
    "an epoch that is a text": journal({**REPORT, "epoch": "1"}),
    "an epoch of 10^9": journal({**REPORT, "epoch": 10**9}),
    "a checkpoint elsewhere": journal({**REPORT, "checkpoint": "../../../etc"}),
    "a trial that is a path": journal({**REPORT, "trial": "../../x"}),
    "created is a text": lambda results, name: begin(results, name, facts={"created": "now"}),
    "rungs without an end": options(reduction_factor=1.0000001),
    "metric is long": options(metric="x" * 10_000),
    "a budget of 400 digits": options(time_budget="9" * 400 + "s"),
    "Ray: nested results": ray(result__json=b"[" * 200_000 + b"\n{}\n"),
}
READABLE = {
    "metrics of 1e308": journal(
        *({**REPORT, "epoch": n, "metrics": {"loss": 1.7e308, "train_s": 1.7e308}} for n in (1, 2))
    ),
    "a name with a slash": journal({**STARTED, "config": {"model/lr": 1, "model": {"lr": 2}}}, REPORT),
    "half a pair of surrogates": journal({**STARTED, "config": {"\udcff": "\udcff"}}, REPORT),
    "a setting of 300 levels": journal({**STARTED, "config": {"a": json.loads("[" * 300 + "NaN" + "]" * 300)}}, REPORT),
    "another name than its folder's": options(name="elsewhere", results="/etc"),
    "a log scale beyond floats": lambda results, name: begin(
        results, name,
        [
            {**event, "trial": str(i)}
            for i in range(3)
            for event in (STARTED | {"config": {"lr": 1.7e308 / 10**i}}, REPORT)
        ],
        facts={"space": {"params": {"lr": {"kind": "loguniform"}, "b": 5}}},
    ),
    "the audit is a pipe": instead("audit.json", os.mkfifo),
    "the holder is a pipe": instead(".driver", os.mkfifo),
    "best is a file": instead("best", b""),
    "Ray: Infinity": ray(
        result__json=b'{"training_iteration": Infinity, "loss": 1}\n{"training_iteration": 1, "timestamp": Infinity, '
        b'"time_total_s": -Infinity, "loss": Infinity}\n'
    ),
}  # fmt: skip


@pytest.fixture
def service(tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    begin(results, "good", [STARTED, REPORT, DECISION])
    client = client_of(create_app(results))
    client.results = results
    return client


def shown(client, name):
    """The statuses of every view; each answer is JSON, and an error says what is wrong."""
    statuses = {}
    for view in VIEWS:
        answer = client.get(f"/api/experiments/{name}{view}")
        assert answer.status_code in (200, 404, 422), answer.text
        assert answer.status_code == 200 or (answer.json()["error"] and "the service failed" not in answer.text)
        statuses[view] = answer.status_code
    return statuses


def rows(client):
    answer = client.get("/api/experiments")
    assert answer.status_code == 200, answer.text
    return {row["name"]: row for row in answer.json()["experiments"]}


@pytest.fixture
def patient(monkeypatch):
    """The list waits for all folders."""
    for limit in ("LIST_S", "EACH_S"):
        monkeypatch.setattr(f"tuner.serve.reading.results_reader.{limit}", 60.0)


def test_a_damaged_folder_is_a_row_that_says_so(service, patient):
    names = {f"bad{number}": kind for number, kind in enumerate(DAMAGED)}
    for name, kind in names.items():
        DAMAGED[kind](service.results, name)
    for _ in range(2):  # the second time from what is kept
        listed = rows(service)
        assert listed["good"]["error"] == "" and listed["good"]["epochs"] == 1
        for name, kind in names.items():
            assert listed[name]["state"] == "damaged" and listed[name]["error"], kind
    for name, kind in names.items():
        assert shown(service, name)["/trials"] == 422, kind
        shutil.rmtree(service.results / name)
    assert list(rows(service)) == ["good"]
    for name in names:
        begin(service.results, name, [STARTED, REPORT])  # it is repaired
    good = shown(service, "good")
    assert {good[view] for view in ("", "/trials", "/rungs", "/figures", "/what-if", "/trials/0")} == {200}
    assert {row["error"] for row in rows(service).values()} == {""}


def test_what_is_odd_is_shown(service, patient):
    for number, kind in enumerate(READABLE):
        READABLE[kind](service.results, f"odd{number}")
        statuses = shown(service, f"odd{number}")
        assert {statuses[view] for view in ("", "/trials", "/rungs", "/figures")} == {200}, kind
    assert {row["error"] for row in rows(service).values()} == {""}


def test_a_folder_that_may_not_be_entered_is_a_row(service, monkeypatch):
    begin(service.results, "bad")
    for module, name in ((os, "open"), (os, "lstat"), (os, "scandir"), (os, "listdir"), (os, "stat")):
        real = getattr(module, name)

        def guarded(path, *args, real=real, **named):
            if f"{service.results}/bad/" in f"{path}/" and f"{path}" != f"{service.results}/bad":
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **named)

        monkeypatch.setattr(module, name, guarded)
    listed = rows(service)
    assert "Permission denied" in listed["bad"]["error"] and listed["good"]["error"] == ""


def test_who_reads_one_experiment_does_not_wait_for_another(tmp_path, monkeypatch):
    for name in ("good", "slow"):
        begin(tmp_path, name, [STARTED, REPORT])
    reader = ResultsReader(tmp_path)
    reader.summaries()
    append(tmp_path / "slow" / "journal.jsonl", {**REPORT, "epoch": 2})
    begun, release, load = threading.Event(), threading.Event(), Following.load

    def slow(self, *limits):
        begun.set()
        assert release.wait(30)
        return load(self, *limits)

    monkeypatch.setattr(Following, "load", slow)
    with ThreadPoolExecutor(1) as threads:
        read = threads.submit(reader.view, "slow")
        assert begun.wait(30) and reader.view("good").summary.epochs == 1
        assert {s.name: s.epochs for s in reader.summaries()} == {"good": 1, "slow": 1}  # as it was
        release.set()
        assert read.result().summary.epochs == 2


def test_a_long_journal_is_read_in_parts_and_the_list_does_not_wait_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.record.storage.files.CHUNK_BYTES", 1000)
    monkeypatch.setattr("tuner.serve.reading.results_reader.EACH_S", -1.0)
    begin(tmp_path, "long", [STARTED, *({**REPORT, "epoch": n} for n in range(1, 40))])
    reader, states = ResultsReader(tmp_path), []
    for _ in range(20):
        (row,) = reader.summaries()
        states.append(row.state)
    assert states[0] == "reading" and states[-1] == "running" and row.epochs == 39
    assert states.count("reading") < 10
    monkeypatch.setattr("tuner.serve.reading.results_reader.VIEW_S", -1.0)
    service = client_of(create_app(tmp_path))
    answer = service.get("/api/experiments/long")
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "1" and "so far" in answer.json()["error"]
    while answer.status_code == 503:
        answer = service.get("/api/experiments/long")
    assert answer.json()["epochs"] == 39


def test_a_journal_that_is_too_long_is_named_and_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.serve.reading.results_reader.MOST_JOURNAL_BYTES", 100)
    begin(tmp_path, "long", [STARTED, REPORT])
    assert "at most 100 are read here" in ResultsReader(tmp_path).summaries()[0].error


def test_values_that_take_far_more_memory_than_text_are_named_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tuner.serve.reading.results_reader.MAX_RECORD_BYTES", 150_000)
    begin(tmp_path, "ours", [STARTED, {**REPORT, "metrics": {"loss": 1, "a": [[]] * 2_000}}])
    rows = json.dumps({"training_iteration": 1, "loss": 1, "a": [[]] * 2_000}).encode() + b"\n"
    ray(result__json=rows)(tmp_path, "rays")
    assert all("too many values" in summary.error for summary in ResultsReader(tmp_path).summaries())


LONG = "n" * 100_000


@pytest.mark.parametrize(
    "long", [{"facts": {"data": {"notice": LONG}}}, {"events": [{**STARTED, "config": {"lr": LONG}}, REPORT]}]
)
def test_a_row_of_the_list_is_short_whatever_the_folder_holds(tmp_path, long):
    begin(tmp_path, "bad", **long)
    (row,) = ResultsReader(tmp_path).summaries()
    assert "make a summary of more than" in row.error and len(json.dumps(vars(row))) < 2_000


def test_the_list_ends_in_time_and_goes_on_where_it_ended(tmp_path, monkeypatch):
    for n in range(9):
        begin(tmp_path, f"e{n}", [STARTED, REPORT])
    reader, read, load = ResultsReader(tmp_path), [], Following.load

    def slow(self, *limits):
        read.append(self.folder.name)
        time.sleep(0.05)
        return load(self, *limits)

    monkeypatch.setattr(Following, "load", slow)
    monkeypatch.setattr("tuner.serve.reading.results_reader.LIST_S", 0.12)
    rows = [reader.summaries() for _ in range(9)]
    assert all(len(each) == 9 for each in rows) and {row.state for row in rows[0]} == {"running", "reading"}
    assert {row.state for row in rows[-1]} == {"running"} and len(set(read)) == len(read) == 9


def test_a_list_is_made_once_for_all_who_wait_for_it_and_health_waits_for_no_thread(service, monkeypatch):
    release, made = threading.Event(), []

    def slow_list(path):
        made.append(release.wait(30))
        return []

    monkeypatch.setattr(os, "listdir", slow_list)
    threads = [threading.Thread(target=service.get, args=["/api/experiments"]) for _ in range(60)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    assert service.get("/api/health").status_code == 200
    release.set()
    for thread in threads:
        thread.join(30)
    assert len(made) <= 4


def test_no_lock_is_truncated_and_none_is_made_by_a_reader(tmp_path):
    folder = begin(tmp_path, "bad", [STARTED])
    assert driver_of(folder) == "" and not (folder / ".lock").exists()
    (tmp_path / "mine").write_text("mine")
    (folder / ".lock").symlink_to(tmp_path / "mine")
    (folder / ".driver").write_text(f"process 1 on {os.uname().nodename}")
    assert ResultsReader(tmp_path).view("bad").summary.state == "running"
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_client_asks_again_when_it_is_told_to(monkeypatch):
    replies = [ServiceError(503, "being read", 0.01), ServiceError(503, "being read", 0.01), {"name": "long"}]

    def answered(self, method, path):
        if isinstance(replies[0], ServiceError):
            raise replies.pop(0)
        return replies[0]

    monkeypatch.setattr(Client, "_json", answered)
    assert Client(HERE).get("long") == {"name": "long"}
