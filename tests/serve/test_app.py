"""The dashboard's API over journals written here: what it answers, and whom it refuses."""

import json
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.serve.conftest import TOKEN, begin, client_of, serving
from tuner.record.journal import Journal
from tuner.record.results import Following, load
from tuner.record.storage.lock import only_driver
from tuner.serve import answers
from tuner.serve.__main__ import main
from tuner.serve.app import create_app
from tuner.serve.page import HERE as SCRIPTS
from tuner.serve.reading.stream import CHUNK_BYTES, MOST_LINES, Place, read_on

NONE = {"rung": None, "bracket": None, "cutoff": None, "recorded": 0}


def start(journal, trial, **config):
    journal.write("trial_suggested", trial, config=config)
    journal.write("trial_started", trial, config=config, resources={"CPU": 1}, node="n")


def end(journal, trial, epoch, value, status, reason, action="stop", **decision):
    journal.write("decision", trial, epoch=epoch, value=value, action=action, reason=reason, **{**NONE, **decision})
    journal.write("trial_ended", trial, status=status, reason=reason)


@pytest.fixture
def results(tmp_path):
    """One finished experiment: trial 0 trained to the end, trial 1 was pruned, trial 2 diverged."""
    folder = tmp_path / "results"
    folder.mkdir()
    journal = begin(folder, max_epochs=4, num_samples=3)
    for trial, values in {"0": [3.0, 2.0, 1.5, 1.0], "1": [4.0], "2": [float("nan")]}.items():
        start(journal, trial, lr=0.1 * (1 + int(trial)), act="<script>alert(1)</script>")
        for epoch, value in enumerate(values, 1):
            journal.write("report", trial, epoch=epoch, metrics={"loss": value})
    journal.write("decision", "0", epoch=1, value=3.0, action="continue", reason="first", **{**NONE, "rung": 1})
    end(journal, "1", 1, 4.0, "pruned", "worse", rung=1, bracket=None, cutoff=3.5, recorded=1)
    end(journal, "2", 1, float("nan"), "pruned", "the training diverged")
    end(journal, "0", 4, 1.0, "completed", "trained its 4 epochs")
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    return folder


@pytest.fixture
def client(results):
    return client_of(create_app(results))


def get(client, path):
    answer = client.get(f"/api/experiments{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_list_says_state_counts_and_best(client):
    (row,) = get(client, "")["experiments"]
    assert (row["name"], row["state"], row["started"]) == ("demo", "finished", 1000.0)
    assert row["counts"] == {
        "suggested": 0, "running": 0, "paused": 0, "completed": 1, "pruned": 2, "failed": 0, "interrupted": 0
    }  # fmt: skip
    assert row["best"]["trial"] == "0" and row["best"]["value"] == 1.0
    assert row["resume"].startswith("python -m tuner.run --resume demo --results ") and row["retrain"] == ""


def test_trials_come_in_pages_with_their_reason_and_nan_as_a_string(client):
    rows = {row["trial"]: row for row in get(client, "/demo/trials")["trials"]}
    assert rows["2"]["last"] == "nan" and rows["2"]["best"] is None
    assert (rows["1"]["status"], rows["1"]["rung"], rows["1"]["reason"]) == ("pruned", 1, "worse")
    page = get(client, "/demo/trials?offset=1&limit=1")
    assert page["total"] == 3 and [row["trial"] for row in page["trials"]] == ["1"]
    for query in ("offset=-1", "limit=0", "limit=10001", "limit=x", "offset=1e99", "offset=nan"):
        answer = client.get(f"/api/experiments/demo/trials?{query}")
        assert answer.status_code == 422 and query.partition("=")[0] in answer.json()["error"]


def test_close_calls_come_first(client):
    answer = get(client, "/demo/rungs")
    assert [d["margin"] for d in answer["decisions"]] == [0.5, None, None, None]
    (rung,) = answer["rungs"]
    assert (rung["reached"], rung["continued"], rung["stopped"], rung["cutoff_then"]) == (2, 1, 1, 3.5)


def test_what_is_appended_is_seen_and_what_is_not_is_not_read_again(client, results, monkeypatch):
    reads = []
    load = Following.load
    monkeypatch.setattr(Following, "load", lambda self, *limits: reads.append(self) or load(self, *limits))
    for _ in range(3):
        get(client, "/demo")
        get(client, "")
    assert len(reads) == 1
    journal = Journal(results / "demo" / "journal.jsonl")
    journal.write("experiment_resumed")
    journal.close()
    assert get(client, "/demo")["state"] == "running" and len(reads) == 2


def test_one_without_a_journal_is_shown_as_just_begun_and_one_whose_trials_failed_has_no_best(client, results):
    begin(results, "new").close()
    (results / "new" / "journal.jsonl").unlink()
    assert get(client, "/new")["lines"] == 0 and get(client, "/new/figures") == {}
    journal = begin(results, "broken")
    start(journal, "0", lr=0.1)
    journal.write("trial_failed", "0", error="boom", kind="user", will_retry=False)
    journal.write("trial_ended", "0", status="failed", reason="boom")
    assert get(client, "/broken")["best"] is None and set(get(client, "/broken/figures")) == {"timeline"}
    assert get(client, "/broken/trials")["trials"][0]["errors"] == ["boom"]


# --- changes --------------------------------------------------------------------------------------------------------


def test_all_rows_of_changes_are_those_of_the_other_routes(client):
    changes, trials, rungs = (get(client, f"/demo/{part}") for part in ("changes", "trials", "rungs"))
    assert (changes["since"], changes["left_out"], changes["figures"]) == (0, 0, {})
    assert changes["summary"] == get(client, "/demo") and changes["parameters"] == ["lr"]
    assert (changes["trials"], changes["num_trials"]) == (trials["trials"], 3)
    assert (changes["rungs"], changes["decisions"]) == (rungs["rungs"], rungs["decisions"])
    assert changes["decisions"][0]["trial"] == "1" and changes["num_decisions"] == 4
    few = get(client, "/demo/changes?limit=1")
    assert [row["trial"] for row in few["trials"]] == ["0"] and few["num_trials"] == 3
    beyond = get(client, "/demo/changes?since=10000")
    assert beyond["since"] == 0 and len(beyond["trials"]) == 3


def test_only_trials_with_news_are_sent_again_and_their_decisions(client, results):
    lines = get(client, "/demo")["lines"]
    assert get(client, f"/demo/trials?since={lines}") == {"total": 3, "trials": [], "left_out": 0}
    assert get(client, f"/demo/changes?since={lines}")["trials"] == []
    journal = Journal(results / "demo" / "journal.jsonl")
    journal.write("report", "0", epoch=5, metrics={"loss": 0.5})
    changes = get(client, f"/demo/changes?since={lines}")
    assert [(row["trial"], row["last"]) for row in changes["trials"]] == [("0", 0.5)]
    assert {row["trial"] for row in changes["decisions"]} == {"0"}
    assert (changes["since"], changes["num_trials"], changes["num_decisions"]) == (lines, 3, 4)
    assert changes["summary"]["lines"] == lines + 1
    journal.write("decision", "1", epoch=1, value=4.0, action="stop", reason="late", **{**NONE, "rung": 2})
    journal.close()
    assert [row["trial"] for row in get(client, f"/demo/trials?since={lines + 1}")["trials"]] == ["1"]
    answer = get(client, f"/demo/rungs?since={lines + 1}")
    assert [(d["trial"], d["reason"]) for d in answer["decisions"]] == [("1", "worse"), ("1", "late")]
    assert answer["total"] == 5 and len(answer["rungs"]) == 2


def test_the_figures_that_were_asked_for_are_sent(client):
    drawn = get(client, "/demo/figures")
    assert set(drawn) == {"curves", "rung_values", "history", "parallel", "slices", "timeline"}
    assert "<script" not in client.get("/api/experiments/demo/figures").text  # though a setting has one
    assert get(client, "/demo/changes?figures=curves&figures=usage")["figures"] == {"curves": drawn["curves"]}
    assert client.get("/api/experiments/demo/changes?figures=none").status_code == 422


def test_rows_and_figures_together_stay_below_the_largest_answer(client, monkeypatch):
    size = len(client.get("/api/experiments/demo/changes").content)
    monkeypatch.setattr(answers, "MOST_BYTES", size + 1000)
    figures = get(client, "/demo/changes?figures=curves&figures=history")["figures"]
    texts = json.dumps([figure["layout"] for figure in figures.values()])
    assert "left out" in texts and not all(figure["data"] for figure in figures.values())


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_from_elsewhere(client):
    page = client.get("/")
    assert page.status_code == 200 and "//" not in page.text.replace("<!doctype html>", "")
    for path in ("/page.css", "/page.js", "/plotly.min.js"):
        assert path in page.text and client.get(path).status_code == 200
    for name in set(re.findall(r'from "\./(.*?)"', "".join(path.read_text() for path in SCRIPTS.glob("*.js")))):
        module = client.get(f"/{name}")  # a browser runs a module only if its type is JavaScript
        assert module.status_code == 200 and module.headers["content-type"].startswith("text/javascript")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self' 'unsafe-eval';")
    assert "unsafe-inline" not in policy and "http" not in policy and "*" not in policy


def test_plotlys_script_is_sent_compressed_and_once_a_day(client):
    plain = client.get("/plotly.min.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and len(plain.content) == int(plain.headers["content-length"])
    first = client.get("/plotly.min.js", headers={"Accept-Encoding": "gzip, br"})
    assert first.headers["content-encoding"] == "gzip" and first.headers["vary"] == "Accept-Encoding"
    assert first.num_bytes_downloaded < 0.35 * len(plain.content) and first.content == plain.content
    assert first.headers["cache-control"] == plain.headers["cache-control"] == "private, max-age=86400"


def test_nothing_but_the_page_may_run_a_script(client):
    for path in ("/api/experiments", "/api/docs", "/page.js", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'self';")
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_the_api_is_described(client):
    paths = client.get("/api/openapi.json").json()["paths"]
    writes = {path for path, methods in paths.items() if set(methods) - {"get"}}
    actions = ("", "/{name}", *(f"/{{name}}/{each}" for each in ("stop", "resume", "notes", "archive", "rename")))
    assert writes == {f"/api/experiments{rest}" for rest in actions}
    docs = client.get("/api/docs").text
    assert all(path in docs for path in paths) and "http" not in docs and "<script" not in docs


def test_the_page_writes_texts_as_texts():
    code = "".join(path.read_text() for path in SCRIPTS.glob("*.js"))
    assert not any(way in code for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("))


# --- attacks --------------------------------------------------------------------------------------------------------

NAMES = [
    "..", "../secret", "..%2fsecret", "%2e%2e%2fsecret", "..%5csecret", "%2fetc%2fpasswd", "demo%00", "%00",
    "demo%2f..%2fdemo", ".hidden", "-rf", "demo%0a", "demo%20", "a" * 101, "%ff", "link", "*", quote("démo"),
]  # fmt: skip


@pytest.mark.parametrize("part", ["", "/trials", "/rungs", "/figures", "/events"])
def test_a_name_cannot_leave_the_results(client, results, part):
    begin(results.parent, "secret").close()
    (results / "link").symlink_to(results.parent / "secret")
    begin(results, "hidden").close()
    (results / "hidden").rename(results / ".hidden")
    for name in NAMES:
        answer = client.get(f"/api/experiments/{name}{part}")
        assert answer.status_code == 404 and list(answer.json()) == ["error"], name
    assert [row["name"] for row in get(client, "")["experiments"]] == ["demo"]


@pytest.mark.parametrize("file", ["experiment.json", "journal.jsonl"])
def test_a_linked_file_is_not_followed(client, results, file):
    begin(results.parent, "secret").close()
    begin(results, "half").close()
    (results / "half" / file).unlink()
    (results / "half" / file).symlink_to(results.parent / "secret" / file)
    assert client.get("/api/experiments/half").status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.com", "evil.com:8800", "127.0.0.1.evil.com", "localhost.evil.com", "192.0.2.2", "0.0.0.0", "", "::",
             "127.0.0.1@evil.com", "evil.com#127.0.0.1", "localhost:evil", "localhost.", "127.1"]
)  # fmt: skip
def test_a_rebound_name_is_refused(client, host):
    for path in ("/", "/page.js", "/api/health", "/api/experiments/demo/events"):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 403 and list(answer.json()) == ["error"]


def test_names_of_loopback_are_let_in(client):
    for host in ("127.0.0.1", "localhost:9", "[::1]:8800", "LOCALHOST", "127.9.9.9", "[::1]", "::1"):
        assert client.get("/api/health", headers={"Host": host}).status_code == (200 if host != "::1" else 403)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_not_known(results, method):
    client = client_of(create_app(results, token=TOKEN), TOKEN)
    for path in ("/", "/api/experiments", "/api/experiments/demo"):
        answer = client.request(method, path)
        assert answer.status_code == 405 and list(answer.json()) == ["error"]
        assert "access-control-allow-origin" not in answer.headers


def test_no_other_file_is_served(client):
    for path in ("/results_reader.py", "/page.py", "/../app.py", "/api", "/api/nothing", "/static/..%2fapp.py"):
        answer = client.get(path)
        assert answer.status_code == 404 and list(answer.json()) == ["error"]


# --- the token ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": TOKEN},
     {"Authorization": f"Bearer {TOKEN[:-1]}"}, {"Cookie": "tuner="}, {"Cookie": f"tuner={TOKEN}"},
     {"Host": "127.0.0.1"}, {"X-Forwarded-For": "127.0.0.1"}, {"Authorization": b"Bearer \xff\xfe"}],
)  # fmt: skip
def test_without_the_token_nothing_is_told(results, headers):
    far = TestClient(create_app(results, host="0.0.0.0", token=TOKEN), base_url="http://box:8800")
    paths = ["/", "/page.js", "/plotly.min.js", "/api/health", "/api/docs", "/api/openapi.json", "/api/experiments"]
    for path in (*paths, "/api/experiments/demo/events", "/nothing"):
        answer = far.get(path, headers=headers)
        assert answer.status_code == 401 and list(answer.json()) == ["error"]
    assert far.get("/api/health", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.2", "box", ""])
def test_beyond_loopback_without_a_token_is_refused(results, host, monkeypatch, capsys):
    monkeypatch.delenv("TUNER_TOKEN", raising=False)
    assert main(["--results", str(results), f"--host={host}", "--port=0"]) == 2
    assert "set TUNER_TOKEN to a secret of 32 characters" in capsys.readouterr().err


# --- events ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(results):
    """The app on a real port: a stream does not end, and a test client waits for the end."""
    with serving(create_app(results)) as served:
        yield served.url.rstrip("/")


def ids(lines, number):
    """The ids of the next `number` events."""
    numbers = []
    for line in lines:
        numbers += [int(line.removeprefix("id: "))] if line.startswith("id: ") else []
        if len(numbers) == number:
            return numbers


def test_events_are_the_journals_lines_and_go_on(served, results):
    path = results / "demo" / "journal.jsonl"
    written = path.read_text().splitlines()
    with httpx.stream("GET", f"{served}/api/experiments/demo/events", timeout=10) as stream:
        lines = stream.iter_lines()
        assert ids(lines, len(written) - 1) == list(range(1, len(written)))
        assert [next(lines) for _ in range(3)] == ["", f"data: {written[-1]}", f"id: {len(written)}"]
        journal = Journal(path)
        journal.write("experiment_resumed")
        assert ids(lines, 1) == [len(written) + 1]
        journal.close()


@pytest.mark.parametrize("how", [{"params": {"after": 3}}, {"headers": {"Last-Event-ID": "3"}}])
def test_a_reconnect_goes_on_after_the_last_event(served, how):
    with httpx.stream("GET", f"{served}/api/experiments/demo/events", timeout=10, **how) as stream:
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
    frames, place = read_on(path, Place(), after=MOST_LINES - 1)
    assert frames == b"data: \nid: %d\n\n" % MOST_LINES and place == (MOST_LINES, MOST_LINES)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [["--host", "no.such.host.invalid"], ["--port", "x"], ["--port", "70000"], ["--nonsense"]],
)
def test_a_wrong_request_is_one_line_and_exit_2(results, options, monkeypatch, capsys):
    monkeypatch.setenv("TUNER_TOKEN", TOKEN)
    assert main(["--results", str(results), *options]) == 2
    output = capsys.readouterr()
    assert output.err.startswith("tuner: error: ") and output.err.count("\n") == 1 and not output.out


def test_a_port_in_use_and_a_folder_that_cannot_be_created_are_one_line(results, tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["--results", str(results), "--port", str(taken.getsockname()[1])]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "file").write_text("")
    assert main(["--results", str(tmp_path / "file" / "results")]) == 2
    err = capsys.readouterr().err
    assert f"{tmp_path}/file/results cannot be created (Not a directory); give a folder" in err and err.count("\n") == 1


def test_the_command_prints_its_address_answers_and_ends(results):
    command = [sys.executable, "-m", "tuner.serve", "--results", str(results / "new" / "results"), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output = process.stdout.readline()
        url = output.split(" at ")[1].split()[0]
        assert httpx.get(f"{url}api/health", trust_env=False).json()["status"] == "ok"
    finally:
        process.terminate()
    assert process.communicate(timeout=10)[1] == ""


def test_a_search_whose_process_was_killed_is_shown_as_interrupted(results, client):
    journal = begin(results, "killed")
    start(journal, "0", lr=0.1)
    journal.close()

    def shown():
        return client.get("/api/experiments/killed").json()

    with only_driver(results / "killed"):
        assert (shown()["state"], shown()["notice"], shown()["counts"]["running"]) == ("running", "", 1)
    assert shown()["state"] == load(results / "killed").state == "interrupted"
    assert (shown()["counts"]["running"], shown()["counts"]["interrupted"]) == (0, 1)
    assert "--resume goes on" in shown()["notice"]
    assert [row["state"] for row in client.get("/api/experiments").json()["experiments"]].count("interrupted") == 1


SLOW = """
import sys, time
from tuner.serve import __main__ as service

class Records:
    def __del__(self):
        time.sleep(60)

def create_app(*args, create=service.create_app, **named):
    app = create(*args, **named)
    app.state.records = Records()
    app.get("/slow")(lambda: print("asked", flush=True) or time.sleep(60))
    return app

service.create_app = create_app
service.main(sys.argv[1:])
"""


def test_it_ends_soon_whatever_a_thread_works_on_and_whatever_it_has_in_memory(results):
    command = [sys.executable, "-c", SLOW, "--results", str(results), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split(" at ")[1].split()[0]
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(httpx.get, f"{url}slow", trust_env=False, timeout=60)
            while process.stdout.readline() != "asked\n":
                pass
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert isinstance(asked.exception(), httpx.HTTPError)
    finally:
        process.kill()
        process.communicate()
