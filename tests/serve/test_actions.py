"""What users do with an experiment: tags, notes, archive, delete, downloads; what nobody can make them do."""

import contextlib
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.record.test_folder import everything
from tests.serve.conftest import client_of, ended, serving
from tuner import audit
from tuner.record.notes import MAX_NOTES_CHARS, MOST_TAGS, Notes, read_notes
from tuner.record.saved_experiment import COPY
from tuner.record.storage.lock import only_driver
from tuner.serve import actions
from tuner.serve.app import create_app
from tuner.serve.client import Client
from tuner.tuning.call import SearchCall
from tuner.tuning.resume.loading import journaled_events, load_resumed

ALL, DEMO = "/api/experiments", "/api/experiments/demo"
CHANGES = {
    "notes": ("POST", f"{DEMO}/notes", {"tags": ["evil"], "notes": "evil"}),
    "archive": ("POST", f"{DEMO}/archive", {"archived": True}),
    "delete": ("DELETE", DEMO, None),
}


def change(service, what, status=200, **body):
    method, path, asked = CHANGES[what]
    answer = service.owner.request(method, path, json=body or asked)
    assert answer.status_code == status, answer.text
    return answer.json()


def listed(service):
    return [row["name"] for row in service.owner.get(ALL).json()["experiments"]]


def test_tags_and_notes_are_saved_and_shown_by_every_route(service):
    folder = ended(service)
    row = change(service, "notes", tags=["baseline", "größe/2"], notes="line 1\nline 2 <b>")
    assert (row["tags"], row["notes"], row["archived"]) == (["baseline", "größe/2"], "line 1\nline 2 <b>", False)
    assert change(service, "archive", archived=True)["archived"] and read_notes(folder).tags == ("baseline", "größe/2")
    changes = service.owner.get(f"{DEMO}/changes").json()
    for row in (service.owner.get(DEMO).json(), service.owner.get(ALL).json()["experiments"][0], changes["summary"]):
        assert (row["tags"], row["archived"], row["notes_error"]) == (["baseline", "größe/2"], True, "")
    assert change(service, "notes", tags=[], notes="")["archived"]
    assert not change(service, "archive", archived=False)["archived"]


def test_wrong_notes_are_refused(service):
    folder = ended(service)
    cases = [
        ({"tags": ["two words"]}, "tag 'two words': must be 1 to 40 letters"),
        ({"tags": ["x" * 41]}, "must be 1 to 40"),
        ({"tags": [""]}, "must be 1 to 40"),
        ({"tags": ["a", "a"]}, "a tag is given twice"),
        ({"tags": [f"t{n}" for n in range(MOST_TAGS + 1)]}, "tags: must have at most 20 items"),
        ({"tags": "baseline"}, "tags baseline: must be a valid list"),
        ({"notes": "x" * (MAX_NOTES_CHARS + 1)}, ": must have at most 2000 characters"),
        ({"notes": "a\x1b[2Jb"}, "printable characters"),
        ({"notes": "\u202eevil"}, "printable characters"),
        ({"more": 1}, "more: is unknown here"),
    ]
    for asked, says in cases:
        assert says in change(service, "notes", 422, **asked)["error"] and not (folder / "notes.json").exists()


def test_damaged_notes_are_said_and_take_nothing_down(service):
    folder = ended(service)
    ended(service, "other")
    damaged = [
        b'{"tags": ["a"', b"[]", b"null", b'{"tags": "a"}', b'{"tags": [["a"]]}', b'{"notes": 3}', b"\xff\xfe",
        b"[" * 10_000, b'{"archived": 1}', b'{"notes": "' + b"x" * 100_000 + b'"}', b'{"notes": "\\u001b[2J"}',
        b'{"tags": [1e999]}',
    ]  # fmt: skip
    for content in damaged:
        (folder / "notes.json").write_bytes(content)
        rows = {row["name"]: row for row in service.owner.get(ALL).json()["experiments"]}
        assert rows["demo"]["notes_error"].startswith("notes.json cannot be read (") and rows["demo"]["tags"] == []
        assert rows["demo"]["state"] == "finished" and rows["other"]["notes_error"] == ""
        assert "cannot be read" in change(service, "archive", 422)["error"]  # the damaged notes are kept
        assert (folder / "notes.json").read_bytes() == content
        assert change(service, "notes", tags=["new"])["tags"] == ["new"]


def test_notes_that_are_no_file_are_never_followed_or_waited_for(service, tmp_path):
    folder, secret = ended(service), tmp_path / "secret.json"
    secret.write_text('{"notes": "a secret"}')
    (folder / "notes.json").symlink_to(secret)
    row = service.owner.get(DEMO).json()
    assert row["notes"] == "" and "cannot be read" in row["notes_error"]
    change(service, "notes", notes="mine")
    assert secret.read_text() == '{"notes": "a secret"}' and not (folder / "notes.json").is_symlink()
    (folder / "notes.json").unlink()
    os.mkfifo(folder / "notes.json")
    assert "cannot be read" in service.owner.get(DEMO).json()["notes_error"]


@pytest.mark.parametrize("is_plain", [True, False])
def test_notes_of_another_program_are_kept(service, is_plain):
    folder = ended(service)
    contents = ['{"author": "me"}', '{"notes": "mine", "title": "x"}']
    if is_plain:
        (folder / "experiment.json").unlink()
        (folder / "tuner.pkl").touch()  # as Ray Tune's own folder
        contents += ["[]", "my notes", "", '{"tags": "mine"}']
    for content in contents:
        (folder / "notes.json").write_text(content)
        for action, more in (("notes", {"notes": "new"}), ("archive", {})):
            error = change(service, action, 422, **more)["error"]
            assert error.endswith("notes.json is not tuner's; rename it, or move it away, to save tags and notes")
        assert (folder / "notes.json").read_text() == content
    (folder / "notes.json").write_text('{"tags": ["a"]}')
    assert change(service, "archive")["tags"] == ["a"]


def test_changes_of_two_requests_at_once_are_both_kept(service):
    folder = ended(service)
    with ThreadPoolExecutor(2) as threads:
        threads.submit(change, service, "archive")
        threads.submit(change, service, "notes", tags=["a"])
    assert read_notes(folder) == Notes(("a",), "", True)


def test_notes_that_somebody_else_has_saved_meanwhile_are_kept(service, monkeypatch):
    folder = ended(service)
    shown = {"shown_tags": [], "shown_notes": ""}
    change(service, "notes", tags=["a", "b"], notes="ö" * MAX_NOTES_CHARS, **shown)
    change(service, "archive")
    before = (folder / "notes.json").read_bytes()
    for overtaken in (shown, {"shown_tags": ["b", "a"]}, {"shown_tags": []}, {"shown_notes": "other"}):
        error = change(service, "notes", 409, tags=["mine"], **overtaken)["error"]
        assert error == "somebody has saved other tags or notes of demo; look at them, then save again"
        assert (folder / "notes.json").read_bytes() == before
    seen = {"shown_tags": ["a", "b"], "shown_notes": "ö" * MAX_NOTES_CHARS}
    assert change(service, "notes", tags=["c"], notes="ä" * MAX_NOTES_CHARS, **seen)["archived"]
    assert "shown_tags x: must be a valid list" in change(service, "notes", 422, shown_tags="x")["error"]
    (folder / "notes.json").write_bytes(b"[]")  # counts as no notes
    change(service, "notes", 409, tags=["d"], shown_tags=["c"])
    assert change(service, "notes", tags=["d"], **shown)["tags"] == ["d"]

    def save(number):
        asked = {"tags": [f"t{number}"], "shown_tags": ["d"]}
        return service.owner.post(f"{DEMO}/notes", json=asked).status_code

    monkeypatch.setattr(actions, "read_notes", lambda path: (read_notes(path), time.sleep(0.1))[0])
    with ThreadPoolExecutor(3) as threads:
        assert sorted(threads.map(save, range(3))) == [200, 409, 409]


def test_a_search_whose_folder_was_renamed_is_resumed(service):
    folder = ended(service)
    events = journaled_events(folder, begun=True)
    folder.rename(service.results / "better")
    (row,) = service.owner.get(ALL).json()["experiments"]
    assert row["name"] == "better" and row["resume"].startswith("python -m tuner.run --resume better ")
    (service.results / "better" / "notes.json").write_bytes(b"\xff")  # which a search does not read
    with contextlib.ExitStack() as stack:  # what `--resume` loads
        experiment = load_resumed(SearchCall({"results": str(service.results)}, resume="better"), stack).experiment
    assert experiment.folder == service.results / "better"
    assert journaled_events(experiment.folder, begun=True) == events
    more = {"num_samples": 40, "max_epochs": 54, "time_budget": "1h"}
    resumed = service.owner.post(f"{ALL}/better/resume", json=more)
    assert resumed.status_code == 202 and resumed.json()["state"] == "queued", resumed.text
    service.searches.step()
    (arguments,) = service.jobs.submitted.values()
    extended = ["--num-samples=40", "--max-epochs=54", "--time-budget=1h"]
    assert arguments[:5] == ["--resume=better", "--space=quadratic", *extended]


def test_a_deletion_leaves_nothing(service):
    folder = ended(service)
    ended(service, "other")
    assert change(service, "delete") == {"name": "demo", "left": ""}
    assert os.listdir(service.results) == ["other"] == listed(service)
    assert service.owner.get(DEMO).status_code == 404
    (service.results / "other").rename(folder)
    (folder / "experiment.json").write_text("{")
    copy = (folder / COPY).read_bytes()
    (folder / COPY).unlink()  # nothing proves that it is an experiment
    assert service.owner.get(DEMO).status_code == 422 and "not an experiment" in change(service, "delete", 422)["error"]
    (folder / COPY).write_bytes(copy)  # a damaged one is deleted too
    assert change(service, "delete")["left"] == ""
    assert os.listdir(service.results) == []


def meanwhile_audited(service, monkeypatch, act):
    """What `act` returns while `python -m tuner.audit` trains."""
    returned = []
    monkeypatch.setattr(audit, "code_of", lambda *_, **__: ("quadratic", []))
    monkeypatch.setattr(audit, "lines", lambda *_, **__: [])
    monkeypatch.setattr(audit, "audit", lambda *_: returned.append(act()))
    assert audit.main(["demo", "--results", str(service.results)]) == 0
    return returned[0]


def test_an_audit_of_a_killed_search_is_no_driver_of_it(service, monkeypatch):
    journal = service.begin("demo")
    journal.close()
    with only_driver(service.results / "demo"):
        pass
    assert service.owner.get(DEMO).json()["killed"]
    state = meanwhile_audited(service, monkeypatch, lambda: service.reopened().owner.get(DEMO).json())
    assert (state["state"], state["killed"]) == ("interrupted", True)


@pytest.mark.parametrize("by", ["queue", "job", "process", "audit", "journal", "check"])
def test_a_search_that_runs_or_waits_is_kept(service, monkeypatch, by):
    def refused(status):
        return change(service, "delete", status)["error"]

    if by in ("queue", "job"):
        service.start(name="demo")
        if by == "job":
            service.searches.step()
    if by == "journal":
        service.begin("demo").close()  # its process may run on another host
    else:
        ended(service)
    if by == "process":
        with only_driver(service.results / "demo"):
            error = refused(422)
    elif by == "audit":
        error = meanwhile_audited(service, monkeypatch, lambda: refused(422))
        assert "is run by an audit in process" in error
    elif by == "check":
        with service.searches.reserved("demo"):
            error = refused(409)
    else:
        error = refused(409)
    assert re.search("running|is run by|is queued; stop it first", error)
    assert os.listdir(service.results) == ["demo"] and (service.results / "demo" / "journal.jsonl").exists()


def test_a_search_that_never_began_is_forgotten(service):
    service.start(name="demo")
    service.end_jobs("ended", 2, "tuner: error: no data")
    assert listed(service) == ["demo"]
    change(service, "delete")
    assert listed(service) == [] and service.owner.delete(DEMO).status_code == 404
    assert listed(service.reopened()) == []


def test_only_an_experiment_of_the_folder_is_changed(service, tmp_path):
    """A folder that is none, one outside, one behind a link, one of plain Ray Tune, whose process tuner cannot know."""
    outside = tmp_path / "outside"
    shutil.copytree(ended(service), outside)
    shutil.rmtree(service.results / "demo")
    (service.results / "plain").mkdir()
    (service.results / "plain" / "thesis.tex").write_text("years of work")
    (service.results / "link").symlink_to(outside)
    (service.results / "file").write_text("a file")
    (service.results / "ray").mkdir()
    (service.results / "ray" / "tuner.pkl").write_bytes(b"")
    before = everything(tmp_path)
    for name in ("..", ".", "%2e%2e", "..%2foutside", "%2fetc", "plain", "link", "ray", "file", "%00"):
        for method, path in (("DELETE", ""), ("POST", "/notes"), ("POST", "/archive")):
            if name == "ray" and path in ("/notes", "/archive"):
                continue  # these write only notes.json
            answer = service.owner.request(method, f"{ALL}/{name}{path}", json={})
            assert answer.status_code in (404, 405, 422), answer.text
    assert everything(tmp_path) == before


def test_a_service_that_cannot_start_searches_keeps_the_list_in_order_for_its_owner(service):
    folder = ended(service)
    app = create_app(service.results, token=service.token, problem="starting searches needs Ray's dashboard")
    owner, anyone = client_of(app, service.token), client_of(app)
    assert anyone.delete(DEMO).status_code == 401 and owner.post(f"{DEMO}/resume").status_code == 503
    assert "Ray's dashboard" in owner.post(ALL, json={"space": "quadratic"}).json()["error"]
    assert owner.post(f"{DEMO}/notes", json={"tags": ["a"]}).json()["tags"] == ["a"]
    assert owner.delete(DEMO).json() == {"name": "demo", "left": ""} and not folder.exists()


def test_the_best_model_is_downloaded_under_a_name_that_cannot_steer_headers(service):
    folder = ended(service)
    sizes = {"config.json": 2, "model.pt": 700_000, "checkpoint/own file.bin": 3}
    listed_files = service.anyone.get(f"{DEMO}/best").json()["files"]
    assert {each["path"]: each["size_bytes"] for each in listed_files} == sizes
    answer = service.anyone.get(f"{DEMO}/best/model.pt")
    assert answer.status_code == 200 and answer.content == b"m" * 700_000
    assert answer.headers["content-disposition"] == 'attachment; filename="demo-model.pt"'
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == "700000" and answer.headers["x-content-type-options"] == "nosniff"
    own = service.anyone.get(f"{DEMO}/best/checkpoint/own file.bin")
    assert own.content == b"own" and own.headers["content-disposition"].endswith('"demo-checkpoint-own-file.bin"')
    (folder / "best" / 'a"\rX-Evil: 1; ü.html').write_text("<script>")
    answer = service.anyone.get(f"{DEMO}/best/a%22%0dX-Evil%3a%201%3b%20%c3%bc.html")
    assert answer.status_code == 200 and "x-evil" not in answer.headers
    assert answer.headers["content-disposition"] == 'attachment; filename="demo-a-X-Evil-1-.html"'
    assert service.anyone.get(f"{DEMO}/best/a%0d%0aX-Evil%3a%201").status_code == 404
    file = open(folder / "best" / "config.json", "rb")
    with open(folder / "best" / "config.json", "a") as more:  # a file that grows while it is sent
        more.write("x" * 1000)
    assert b"".join(actions.chunks(file, 2)) == b"{}" and file.closed


def test_only_files_of_best_are_sent(service, tmp_path):
    folder, outside = ended(service), tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (folder / "best" / "link").symlink_to(outside / "secret")
    (folder / "best" / "folder").symlink_to(outside)
    os.mkfifo(folder / "best" / "pipe")
    paths = ["../experiment.json", "%2e%2e/experiment.json", "..%2fexperiment.json", "%2fetc/passwd", "/etc/passwd"]
    paths += ["link", "folder/secret", "checkpoint", "", "%2e", "%00", "missing", "pipe", "model.pt/x", "x" * 5000]
    for path in paths:
        answer = service.anyone.get(f"{DEMO}/best/{path}")
        assert answer.status_code in (404, 405) and "secret" not in answer.text and "options" not in answer.text
    shutil.move(folder / "best", tmp_path / "best")
    (folder / "best").symlink_to(tmp_path / "best")
    assert service.anyone.get(f"{DEMO}/best/model.pt").status_code == 404
    assert service.anyone.get(f"{DEMO}/best").json() == {"files": []}


def test_few_files_are_sent_at_once_and_each_end_makes_room(service, monkeypatch):
    ended(service)
    monkeypatch.setattr(actions, "MOST_DOWNLOADS", 1)
    one = service.reopened().anyone
    for _ in range(3):
        assert one.get(f"{DEMO}/best/model.pt").status_code == 200
        assert one.get(f"{DEMO}/best/missing").status_code == 404
    monkeypatch.setattr(actions, "MOST_DOWNLOADS", 0)
    assert service.reopened().anyone.get(f"{DEMO}/best/model.pt").status_code == 503


def test_the_client_keeps_the_list_in_order(service, tmp_path):
    ended(service)
    with serving(service.app) as served:
        client = Client(served.url, service.token)
        assert client.annotate("demo", ["baseline"], "a note")["tags"] == ["baseline"]
        assert client.archive("demo")["archived"] and not client.archive("demo", False)["archived"]
        client.download("demo", "checkpoint/own file.bin", tmp_path / "own.bin")
        assert (tmp_path / "own.bin").read_bytes() == b"own"
        assert client.download("demo", "model.pt", tmp_path / "m").stat().st_size == 700_000
        assert client.delete("demo") == {"name": "demo", "left": ""}
        assert client.experiments() == []
