"""The dashboard's API over journals written here: what it answers, and whom it refuses."""

import itertools
import json
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient
from journals import Journal

from tests.serve.conftest import TOKEN, begin, client_of, started, train
from tuner.record.results import Following, load
from tuner.record.storage.lock import only_driver
from tuner.serve import answers
from tuner.serve.__main__ import main
from tuner.serve.app import create_app
from tuner.serve.page import HERE as SCRIPTS


@pytest.fixture
def results(tmp_path):
    """One finished experiment: trial 0 trained to the end, trial 1 was pruned, trial 2 diverged."""
    folder = tmp_path / "results"
    folder.mkdir()
    journal = begin(folder, max_epochs=4, num_samples=3)
    configs = [{"lr": 0.1 * number, "act": "<script>alert(1)</script>"} for number in (1, 2, 3)]
    first = {"epoch": 1, "rung": 1, "value": 3.0, "action": "continue", "reason": "first"}
    last = {"epoch": 4, "value": 1.0, "action": "stop", "reason": "trained its 4 epochs"}
    train(journal, "0", configs[0], [3.0, 2.0, 1.5, 1.0], first, last)
    worse = {"epoch": 1, "rung": 1, "value": 4.0, "cutoff": 3.5, "recorded": 1, "action": "stop", "reason": "worse"}
    train(journal, "1", configs[1], [4.0], worse, status="pruned", reason="worse")
    diverged = {"epoch": 1, "value": float("nan"), "action": "stop", "reason": "the training diverged"}
    train(journal, "2", configs[2], [float("nan")], diverged, status="pruned", reason="the training diverged")
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


def test_a_rung_says_how_well_its_metric_predicts_the_searched_one(client, tmp_path):
    assert get(client, "/demo/prediction") == {"rungs": [], "left_out": 0}
    journal = begin(tmp_path, metric="accuracy", mode="max", prune_by="loss")
    first = {"epoch": 1, "rung": 1, "value": 3.0, "action": "continue", "reason": "first"}
    train(journal, "0", {"lr": 0.1}, [3.0], first)
    journal.close()
    (row,) = get(client_of(create_app(tmp_path)), "/demo/prediction")["rungs"]
    unknown = {"trials": 0, "value": None, "low": None, "high": None}
    assert row == {"rung": 1, "bracket": None, "band": None, "at_rung": unknown, "at_end": unknown}


def test_the_front_has_the_points_that_load_best_numbers(client, tmp_path):
    assert get(client, "/demo/front") == {"points": [], "left_out": 0}
    journal = begin(tmp_path, metric=("loss", "size"), mode=("min", "min"))
    for trial, size in (("0", 9), ("1", 3)):
        journal.write("trial_suggested", trial, config={"lr": size})
        journal.write("report", trial, epoch=1, metrics={"loss": 1.0 / size, "size": size})
    journal.close()
    knee, other = get(client_of(create_app(tmp_path)), "/demo/front")["points"]
    assert (knee["point"], other["point"]) == (0, 1) and {knee["trial"], other["trial"]} == {"0", "1"}
    assert other["values"] == {"loss": 1.0 / other["config"]["lr"], "size": other["config"]["lr"]}


def test_the_list_says_state_counts_and_best(client):
    (row,) = get(client, "")["experiments"]
    assert (row["name"], row["state"], row["started"]) == ("demo", "finished", 1000.0)
    assert [row["counts"][status] for status in ("completed", "pruned", "diverged")] == [1, 1, 1]
    assert row["best"]["value"] == 1.0
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
    train(journal, "0", {"lr": 0.1}, [], error="boom")
    assert get(client, "/broken")["best"] is None and set(get(client, "/broken/figures")) == {"timeline"}
    assert get(client, "/broken/trials")["trials"][0]["errors"] == ["boom"]


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
    late = {"rung": 2, "bracket": None, "cutoff": None, "recorded": 0, "reason": "late"}
    journal.write("decision", "1", epoch=1, value=4.0, action="stop", **late)
    journal.close()
    assert [row["trial"] for row in get(client, f"/demo/trials?since={lines + 1}")["trials"]] == ["1"]
    answer = get(client, f"/demo/rungs?since={lines + 1}")
    assert [(d["trial"], d["reason"]) for d in answer["decisions"]] == [("1", "worse"), ("1", "late")]
    assert answer["total"] == 5 and len(answer["rungs"]) == 2


def test_the_figures_that_were_asked_for_are_sent(client):
    drawn = get(client, "/demo/figures")
    assert set(drawn) == {"best", "curves", "rung_values", "history", "parallel", "slices", "timeline"}
    assert "<script" not in client.get("/api/experiments/demo/figures").text  # though a setting has one
    assert get(client, "/demo/changes?figures=curves&figures=usage")["figures"] == {"curves": drawn["curves"]}
    changes = "/demo/changes?figures=curves&figures=slices"
    assert get(client, f"{changes}&values=best:loss&axis=epoch")["figures"]["curves"] == drawn["curves"]
    chosen = get(client, f"{changes}&values=last:train_s&axis=time:train_s")
    assert chosen["metrics"] == ["loss", "train_s"] and chosen["value_default"] == "1"
    slices, curves = (chosen["figures"][name]["layout"] for name in ("slices", "curves"))
    assert slices["yaxis"]["title"]["text"] == "last train_s"
    assert curves["yaxis"]["title"]["text"] == "train_s" and "on workers" in curves["xaxis"]["title"]["text"]
    wrong = ("figures=none", "figures=slices&values=best:trains", "figures=curves&axis=time:trains", "axis=clock")
    errors = [client.get(f"/api/experiments/demo/changes?{query}") for query in wrong]
    assert [answer.status_code for answer in errors] == [422] * 4
    assert all("did you mean 'train_s'" in answer.json()["error"] for answer in errors[1:3])


def test_rows_and_figures_together_stay_below_the_largest_answer(client, monkeypatch):
    size = len(client.get("/api/experiments/demo/changes?since=1").content)  # without the columns
    monkeypatch.setattr(answers, "MOST_BYTES", size + 1000)
    figures = get(client, "/demo/changes?since=1&figures=curves&figures=history")["figures"]
    texts = json.dumps([figure["layout"] for figure in figures.values()])
    assert "left out" in texts and not all(figure["data"] for figure in figures.values())


def test_the_page_loads_nothing_from_elsewhere_and_nothing_else_may_run_a_script(client):
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
    for path in ("/api/experiments", "/api/docs", "/page.js", "/nothing"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; style-src 'self';")
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_plotlys_script_is_sent_compressed_and_once_a_day(client):
    plain = client.get("/plotly.min.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and len(plain.content) == int(plain.headers["content-length"])
    first = client.get("/plotly.min.js", headers={"Accept-Encoding": "gzip, br"})
    assert first.headers["content-encoding"] == "gzip" and first.headers["vary"] == "Accept-Encoding"
    assert first.num_bytes_downloaded < 0.35 * len(plain.content) and first.content == plain.content
    assert first.headers["cache-control"] == plain.headers["cache-control"] == "private, max-age=86400"


def test_the_api_is_described(client):
    paths = client.get("/api/openapi.json").json()["paths"]
    writes = {path for path, methods in paths.items() if set(methods) - {"get"}}
    actions = ("", "/{name}", *(f"/{{name}}/{each}" for each in ("stop", "resume", "notes", "archive")))
    assert writes == {f"/api/experiments{rest}" for rest in actions}
    docs = client.get("/api/docs").text
    assert all(path in docs for path in paths) and "http" not in docs and "<script" not in docs


NAMES = [
    "..", "../secret", "..%2fsecret", "%2e%2e%2fsecret", "..%5csecret", "%2fetc%2fpasswd", "demo%00", "%00",
    "demo%2f..%2fdemo", ".hidden", "-rf", "demo%0a", "demo%20", "a" * 101, "%ff", "link", "*", quote("démo"),
]  # fmt: skip


def test_a_name_cannot_leave_the_results(client, results):
    begin(results.parent, "secret").close()
    (results / "link").symlink_to(results.parent / "secret")
    begin(results, "hidden").close()
    (results / "hidden").rename(results / ".hidden")
    for name, part in itertools.product(NAMES, ("", "/trials", "/rungs", "/figures", "/events")):
        answer = client.get(f"/api/experiments/{name}{part}")
        assert answer.status_code == 404 and list(answer.json()) == ["error"], name
    assert [row["name"] for row in get(client, "")["experiments"]] == ["demo"]


def test_a_linked_file_is_not_followed(client, results):
    begin(results.parent, "secret").close()
    for name, file in (("a", "experiment.json"), ("b", "journal.jsonl")):
        begin(results, name).close()
        (results / name / file).unlink()
        (results / name / file).symlink_to(results.parent / "secret" / file)
        assert client.get(f"/api/experiments/{name}").status_code == 404


REBOUND = ["evil.com", "evil.com:8800", "127.0.0.1.evil.com", "localhost.evil.com", "192.0.2.2", "0.0.0.0", "", "::",
           "127.0.0.1@evil.com", "evil.com#127.0.0.1", "localhost:evil", "localhost.", "127.1"]  # fmt: skip


def test_a_rebound_name_is_refused_and_names_of_loopback_are_let_in(client):
    for host, path in itertools.product(REBOUND, ("/", "/page.js", "/api/health", "/api/experiments/demo/events")):
        answer = client.get(path, headers={"Host": host})
        assert answer.status_code == 403 and list(answer.json()) == ["error"], host
    for host in ("127.0.0.1", "localhost:9", "[::1]:8800", "LOCALHOST", "127.9.9.9", "[::1]", "::1"):
        assert client.get("/api/health", headers={"Host": host}).status_code == (200 if host != "::1" else 403)


def test_other_methods_are_not_known(results):
    client = client_of(create_app(results, token=TOKEN), TOKEN)
    methods = ("PUT", "PATCH", "OPTIONS", "TRACE", "BREW")
    for path, method in itertools.product(("/", "/api/experiments", "/api/experiments/demo"), methods):
        answer = client.request(method, path)
        assert answer.status_code == 405 and list(answer.json()) == ["error"]
        assert "access-control-allow-origin" not in answer.headers


def test_no_other_file_is_served(client):
    for path in ("/results_reader.py", "/page.py", "/../app.py", "/api", "/api/nothing", "/static/..%2fapp.py"):
        answer = client.get(path)
        assert answer.status_code == 404 and list(answer.json()) == ["error"]


OUTSIDERS = [
    {}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": TOKEN},
    {"Authorization": f"Bearer {TOKEN[:-1]}"}, {"Cookie": "tuner="}, {"Cookie": f"tuner={TOKEN}"},
    {"Host": "127.0.0.1"}, {"X-Forwarded-For": "127.0.0.1"}, {"Authorization": b"Bearer \xff\xfe"},
]  # fmt: skip


def test_without_the_token_nothing_is_told(results):
    far = TestClient(create_app(results, host="0.0.0.0", token=TOKEN), base_url="http://box:8800")
    paths = ["/", "/page.js", "/plotly.min.js", "/api/health", "/api/docs", "/api/openapi.json", "/api/experiments"]
    for headers in OUTSIDERS:
        far.app.state.keys._wrong.clear()  # else it would answer 429
        for path in (*paths, "/api/experiments/demo/events", "/nothing"):
            answer = far.get(path, headers=headers)
            assert answer.status_code == 401 and list(answer.json()) == ["error"], headers
    assert far.get("/api/health", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_beyond_loopback_without_a_token_is_refused(results, monkeypatch, capsys):
    monkeypatch.delenv("TUNER_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.2", "box", ""):
        assert main(["--results", str(results), f"--host={host}", "--port=0"]) == 2
        assert "set TUNER_TOKEN to a secret of 32 characters" in capsys.readouterr().err


def test_a_wrong_request_is_one_line_and_exit_2(results, monkeypatch, capsys):
    (results / "file").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases = {
            "--host no.such.host.invalid": "--host no.such.host.invalid --port 8800",
            f"--port {taken.getsockname()[1]}": "or end what uses the port",
            "--port x": "--port",
            "--port 70000": "--port 70000: must be 0..65535",
            "--nonsense": "--nonsense",
            f"--results {results}/file/new": f"{results}/file/new cannot be created (Not a directory); give a folder",
        }
        monkeypatch.chdir(results)
        for options, says in cases.items():
            monkeypatch.setenv("TUNER_TOKEN", TOKEN)
            assert main(options.split()) == 2
            output = capsys.readouterr()
            assert output.err.startswith("tuner: error: ") and output.err.count("\n") == 1 and not output.out
            assert says in output.err


def test_a_search_whose_process_was_killed_is_shown_as_interrupted(results, client):
    journal = begin(results, "killed")
    journal.write("trial_started", "0", config={"lr": 0.1}, resources={"CPU": 1}, node="n")
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
    service = started("-c", SLOW, "--results", str(results), "--port", "0")
    with service as (process, url), ThreadPoolExecutor(1) as threads:
        asked = threads.submit(httpx.get, f"{url}slow", trust_env=False, timeout=60)
        while process.stdout.readline() != "asked\n":
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert isinstance(asked.exception(), httpx.HTTPError)
