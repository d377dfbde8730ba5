"""A results folder is only data: whatever lies in it, nothing is run, ended or removed. The service's own state."""

import dataclasses
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.serve.conftest import TOKEN, started
from tuner.errors import RequestError
from tuner.record.saved_experiment import digest
from tuner.serve.__main__ import parse, starter
from tuner.serve.access.own_spaces import NO_SPACES
from tuner.serve.access.state import BASE, state_folder, token_from_environment
from tuner.serve.client import Client
from tuner.serve.jobs.requests import Resume, experiment_of, resume_arguments
from tuner.spec.experiment import Experiment

ALL = "/api/experiments"


@pytest.fixture
def evil(tmp_path):
    """A space that leaves a file when it is imported."""
    marker, space = tmp_path / "imported", tmp_path / "evil_space.py"
    space.write_text(f"open({str(marker)!r}, 'w').close()\n")
    return space, marker


def test_each_results_folder_has_a_state_of_its_own_however_it_is_called(tmp_path, monkeypatch):
    one, other, link = tmp_path / "a" / "results", tmp_path / "b" / "results", tmp_path / "link"
    one.mkdir(parents=True)
    other.mkdir(parents=True)
    link.symlink_to(one)
    assert state_folder(one) == state_folder(link) != state_folder(other)
    assert state_folder(one).name.startswith("results-") and state_folder(one).parent == tmp_path / "state" / "services"
    assert [path.stat().st_mode & 0o777 for path in (state_folder(one), state_folder(one).parent)] == [0o700, 0o700]
    assert not list(one.iterdir())
    monkeypatch.delenv(BASE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))  # without a choice, it is in the user's state folder
    assert state_folder(tmp_path).is_relative_to(tmp_path / "xdg" / "tuner")


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("how", ["open", "world", "link", "owner", "file"])
def test_a_state_that_others_may_have_written_is_refused(tmp_path, how, depth):
    made = state_folder(tmp_path)
    path = [made, made.parent, made.parent.parent][depth]
    if how in ("open", "world"):
        path.chmod({"open": 0o750, "world": 0o707}[how])
    elif how == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root gives a folder away")
        os.chown(path, 12345, -1)
    else:
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved") if how == "link" else path.write_text("")
    with pytest.raises(RequestError, match=f"{path} .*; (run chmod go-rwx .*, or )?set {BASE} to a folder of your own"):
        state_folder(tmp_path)


def test_a_hostile_folder_runs_and_removes_nothing(tmp_path, evil):
    results, (space, marker) = tmp_path / "new" / "results", evil
    old = results / ".service"
    (old / "queue").mkdir(parents=True)
    entry = {"name": "x", "options": options("x"), "arguments": [f"--space={space}"], "since": 1.0, "phase": "queued"}
    (old / "queue" / "x.json").write_text(json.dumps(entry))
    os.close(os.open(old / "token", os.O_CREAT | os.O_WRONLY, 0o600))
    (old / "token").write_text("t" * 43)
    env = {name: value for name, value in os.environ.items() if name != "TUNER_TOKEN"}
    service = started("-m", "tuner.serve", "--results", str(results), "--port=0", stderr=subprocess.PIPE, env=env)
    with service as (process, url):
        last = [process.stdout.readline() for _ in range(2)][-1]
        assert not Client(url).experiments()
        process.send_signal(signal.SIGINT)
        assert (process.wait(60), process.stderr.read()) == (0, "")
    assert not marker.exists() and (old / "queue" / "x.json").exists()
    kept = Path(last.split()[-1])
    assert kept.is_relative_to(tmp_path / "state") and kept.read_text() != "t" * 43


def options(name, **other):
    return dataclasses.asdict(Experiment(**{"space": "quadratic", "name": name, "results": "/nowhere", **other}))


def test_a_damaged_entry_of_the_queue_is_left_out_and_its_neighbours_stay(service, capsys):
    for name in ("a", "b", "c"):
        assert service.owner.post(ALL, json={"space": "quadratic", "name": name}).status_code == 202
    folder = state_folder(service.results) / "queue"
    (folder / "a.json").write_text("{")
    (folder / "d.json").write_text(json.dumps({"\x1b[2J\u202e": 1}, ensure_ascii=False))
    os.mkfifo(folder / "e.json")  # opened, it would hang
    changed = json.loads((folder / "b.json").read_text())
    (folder / "b.json").write_text(json.dumps({**changed, "options": {**changed["options"], "mode": "sideways"}}))
    again = service.reopened()
    again.searches.step()
    assert [search.name for search in again.searches.all()] == ["c"] and len(service.jobs.submitted) == 1
    output = capsys.readouterr().err
    assert all(f"{name}.json is left out" in output for name in "abde") and "mode sideways" in output
    assert all(map(str.isprintable, output.splitlines()))


def test_a_folder_cannot_choose_the_code_that_its_resume_imports(service, evil):
    service.begin("a").close()
    arguments = resume_arguments("a", "mobilenet:space224", "", Resume(), NO_SPACES)
    assert arguments == ["--resume=a", "--space=mobilenet:space224"]
    names = ["./evil.py", "os", "tests.spaces.tiny", "quadratic:x.py", "quadratic:a/b", "quadratic:", "nothing", ""]
    for space in (str(evil[0]), *names, ["quadratic"], None):
        rewrite(service.results / "a", space=space)
        answer = service.owner.post(f"{ALL}/a/resume")
        message = "the service resumes only searches over" if isinstance(space, str) else "is damaged"
        assert answer.status_code == 422 and message in answer.json()["error"]
        assert not evil[1].exists() and not service.searches.all()


def rewrite(folder, **changed):
    """As a hostile folder has it: whole, with a right checksum, and other options."""
    for name in ("experiment.json", ".experiment.json.copy"):
        document = json.loads((folder / name).read_text())
        document.pop("sha256")
        document["options"] |= changed
        (folder / name).write_text(json.dumps({**document, "sha256": digest(document)}))


def test_a_space_exchanged_after_the_check_is_refused_before_its_import(service, evil):
    service.begin("a").close()
    assert service.owner.post(f"{ALL}/a/resume").status_code == 202
    service.searches.step()
    (arguments,) = service.jobs.submitted.values()
    rewrite(service.results / "a", space=str(evil[0]))
    with pytest.raises(RequestError, match="--space was"):
        experiment_of(arguments)
    assert not evil[1].exists()


def test_a_folder_cannot_choose_the_data_that_its_resume_reads(service):
    service.begin("a").close()
    service.begin("b").close()
    rewrite(service.results / "a", data_dir="/root/secret")
    answer = service.owner.post(f"{ALL}/a/resume")
    assert answer.status_code == 422 and "but tuner.serve uses only its own --data-dir" in answer.json()["error"]
    assert service.owner.post(f"{ALL}/b/resume").status_code == 202
    service.searches.step()
    (arguments,) = service.jobs.submitted.values()
    rewrite(service.results / "b", data_dir="/root/secret")  # after the check
    assert experiment_of(arguments).data_dir == ""


def test_the_data_that_the_services_owner_names_are_read(service, tmp_path):
    service.begin("a", data_dir="/data/of/before").close()
    args = parse(["--results", str(service.results), "--data-dir", "/data/now"])
    searches = starter(args, state_folder(tmp_path))
    try:
        assert searches.resume("a", Resume()).options["data_dir"] == "/data/now"
    finally:
        searches.close()


def test_no_process_inherits_the_services_token(monkeypatch):
    monkeypatch.setenv("TUNER_TOKEN", TOKEN)
    assert token_from_environment() == TOKEN and "TUNER_TOKEN" not in os.environ
