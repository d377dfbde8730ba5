"""One response with what changed: rows of one state of the journal, and the figures that were asked for."""

import json

import pytest
from fastapi.testclient import TestClient
from test_app import HERE, begin, end, get, start

from tuner.record.journal import Journal
from tuner.serve import answers
from tuner.serve.app import create_app

RUNG = {"rung": 1, "bracket": 0, "cutoff": 2.5}


@pytest.fixture
def client(tmp_path):
    """Three trials of one report; the second is pruned, with a smaller margin than the first."""
    journal = begin(tmp_path)
    for trial, value in {"0": 1.0, "1": 3.0, "2": 2.0}.items():
        start(journal, trial, lr=0.1 * (1 + int(trial)))
        journal.write("report", trial, epoch=1, metrics={"loss": value})
    journal.write("decision", "0", epoch=1, value=1.0, action="continue", reason="better", recorded=1, **RUNG)
    end(journal, "1", 1, 3.0, "pruned", "worse", recorded=2, **RUNG)
    journal.close()
    return TestClient(create_app(tmp_path), base_url=HERE, raise_server_exceptions=False)


def test_all_rows_are_those_of_the_other_routes(client):
    changes = get(client, "/demo/changes")
    trials, rungs = get(client, "/demo/trials"), get(client, "/demo/rungs")
    assert (changes["since"], changes["left_out"], changes["figures"]) == (0, 0, {})
    assert changes["summary"] == get(client, "/demo") and changes["parameters"] == ["lr"]
    assert (changes["trials"], changes["num_trials"]) == (trials["trials"], 3)
    assert (changes["rungs"], changes["decisions"]) == (rungs["rungs"], rungs["decisions"])
    assert [row["trial"] for row in changes["decisions"]] == ["1", "0"] and changes["num_decisions"] == 2
    few = get(client, "/demo/changes?limit=1")
    assert [row["trial"] for row in few["trials"]] == ["0"] and few["num_trials"] == 3


def test_a_report_brings_the_row_of_its_trial_alone(client, tmp_path):
    lines = get(client, "/demo/changes")["summary"]["lines"]
    assert get(client, f"/demo/changes?since={lines}")["trials"] == []
    journal = Journal(tmp_path / "demo" / "journal.jsonl")
    journal.write("report", "0", epoch=2, metrics={"loss": 0.5})
    journal.close()
    changes = get(client, f"/demo/changes?since={lines}")
    assert [(row["trial"], row["last"]) for row in changes["trials"]] == [("0", 0.5)]
    assert [row["trial"] for row in changes["decisions"]] == ["0"]
    assert (changes["since"], changes["num_trials"], changes["num_decisions"]) == (lines, 3, 2)
    assert changes["summary"]["lines"] == lines + 1


def test_a_line_beyond_the_end_brings_all(client):
    changes = get(client, "/demo/changes?since=10000")
    assert changes["since"] == 0 and len(changes["trials"]) == 3


def test_the_figures_that_were_asked_for_are_sent(client):
    drawn = get(client, "/demo/figures")
    assert get(client, "/demo/changes?figures=curves&figures=usage")["figures"] == {"curves": drawn["curves"]}
    assert client.get("/api/experiments/demo/changes?figures=none").status_code == 422


def test_rows_and_figures_together_stay_below_the_largest_answer(client, monkeypatch):
    size = len(client.get("/api/experiments/demo/changes").content)
    monkeypatch.setattr(answers, "MOST_BYTES", 4000)
    monkeypatch.setattr("tuner.serve.changes.MOST_BYTES", size + 1000)
    figures = get(client, "/demo/changes?figures=curves&figures=history")["figures"]
    texts = json.dumps([figure["layout"] for figure in figures.values()])
    assert "left out" in texts and not all(figure["data"] for figure in figures.values())
