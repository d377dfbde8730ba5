"""The report of an experiment's present state as a download: its content, its headers, its limits."""

import pytest

from tests.serve.conftest import begin, client_of, ended, train
from tests.serve.test_analysis import children
from tuner.errors import RequestError
from tuner.record.results import load
from tuner.serve import analysis
from tuner.serve.access.guard import HEADERS
from tuner.serve.app import create_app
from tuner.views.report import page

ALL = "/api/experiments"


def report(service, name, status=200):
    answer = service.anyone.get(f"{ALL}/{name}/report")
    assert answer.status_code == status, answer.text
    return answer


def test_the_report_of_any_state_is_a_file_that_the_child_process_writes(service):
    folder, before = ended(service), children()
    answer = report(service, "demo")
    assert len(children() - before) == 1
    assert answer.content == page(load(folder)).encode() and not (folder / "report.html").exists()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="demo.html"'
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    journal = service.begin("runs-1.2")
    train(journal, "00000", {"x": 1.0}, [1.0, 0.5])
    assert "; running; 1 completed" in report(service, "runs-1.2").text
    train(journal, "00001", {"x": 2.0}, [1.0, 0.5])
    answer = report(service, "runs-1.2")
    assert "; running; 2 completed" in answer.text and 'filename="runs-1.2.html"' in str(answer.headers)
    refused = service.begin("refused")
    refused.write("experiment_finished", state="failed", reason="--metric los: no report has it", refused=True)
    assert "--metric los: no report has it" in report(service, "refused").text
    service.start(name="waits")
    answer = report(service, "waits")
    assert "<h1>waits</h1>" in answer.text and "no trials" in answer.text
    assert answer.headers["content-disposition"] == 'attachment; filename="waits.html"'


def test_no_name_and_no_damaged_folder_makes_a_download(service):
    (service.results / 'a"; x="').mkdir()
    (service.results / 'a"; x="' / "experiment.json").write_text("{}")
    begin(service.results, "damaged").close()
    for name in ("experiment.json", ".experiment.json.copy"):
        (service.results / "damaged" / name).write_text("{")
    (service.results / "link").symlink_to(ended(service))
    names = {"a%22%3b%20x=%22": 404, "a%0d%0aX-Evil:%201": 404, "..%2fresults": 404, "%2fetc": 404, "link": 404}
    for name, status in {**names, "nothing": 404, "damaged": 422}.items():
        answer = report(service, name, status)
        assert list(answer.json()) == ["error"] and answer.headers["content-type"] == "application/json"
        assert "content-disposition" not in answer.headers and "x-evil" not in answer.headers


def test_a_report_that_is_too_long_names_the_command_that_writes_it(service, monkeypatch):
    folder = ended(service)
    monkeypatch.setattr(analysis, "MOST_BYTES", len(page(load(folder)).encode()))
    assert analysis.report(load(folder))
    monkeypatch.setattr(analysis, "MOST_BYTES", analysis.MOST_BYTES - 1)
    with pytest.raises(RequestError, match="^the report of demo has .* write the file with .*-m tuner.report demo "):
        analysis.report(load(folder))
    assert analysis.Analyser().answer(str(folder), "report", {})[0] == 422


def test_beyond_loopback_a_report_needs_the_token(service):
    ended(service)
    app = create_app(service.results, host="0.0.0.0", token=service.token)
    assert client_of(app).get(f"{ALL}/demo/report").status_code == 401
    answer = client_of(app, service.token).get(f"{ALL}/demo/report")  # sent compressed
    assert answer.content == page(load(service.results / "demo")).encode()
    assert answer.headers["content-encoding"] == "gzip"
