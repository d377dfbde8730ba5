"""The API's answers to questions: what if, one trial, two parameters, importance, the audit."""

from dataclasses import replace

import plotly.graph_objects as go
import pytest
from fastapi.testclient import TestClient

from tests.serve.conftest import begin
from tuner.record.saved_experiment import load_experiment, save_experiment
from tuner.serve.analysis import analyses
from tuner.serve.app import create_app

NAME = "asked"
FACTS = {"created": 1000.0, "space": {"params": {}}}


@pytest.fixture
def results(tmp_path):
    """12 trials of 4 epochs whose loss is x + 1 / epoch; the worse half is pruned at epoch 2; one never reports."""
    options = {"space": "tiny", "max_epochs": 4, "num_samples": 13, "scheduler": "asha", "grace_period": 2}
    journal = begin(tmp_path, NAME, **options, reduction_factor=2)
    folder = tmp_path / NAME
    save_experiment(load_experiment(folder)[0], folder, {**FACTS, "data": {"source": ""}})
    for number in range(13):
        trial = f"{number:05}"
        config = {"x": number / 10, "y": (number * 5) % 13, "act": "<b>relu</b>"}
        journal.write("trial_started", trial, config=config, resources={"CPU": 2}, node="n")
        if number == 12:
            journal.write("trial_failed", trial, error="boom", kind="user", will_retry=False)
            journal.write("trial_ended", trial, status="failed", reason="boom")
            continue
        pruned = number >= 6
        for epoch in range(1, 3 if pruned else 5):
            journal.write("report", trial, epoch=epoch, metrics={"loss": number / 10 + 1 / epoch, "train_s": 0.5})
        if pruned:
            at = {"epoch": 2, "rung": 2, "bracket": 0, "value": number / 10 + 0.5, "cutoff": 0.9, "recorded": number}
            journal.write("decision", trial, action="stop", reason="worse", **at)
        status = "pruned" if pruned else "completed"
        journal.write("trial_ended", trial, status=status, reason="worse" if pruned else "trained its 4 epochs")
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    (folder / "ray" / "00003").mkdir(parents=True)
    (folder / "ray" / "00003" / "stdout").write_text("epoch 1\nepoch 2\n")
    return tmp_path


@pytest.fixture
def ask(results):
    client = TestClient(create_app(results), base_url="http://127.0.0.1:8800", raise_server_exceptions=False)

    def get(path, status=200):
        answer = client.get(f"/api/experiments/{NAME}{path}")
        assert answer.status_code == status, answer.text
        return answer.json()

    return get


def test_what_if_nothing_had_been_stopped_says_what_is_not_known(ask):
    answer = ask("/what-if?scheduler=fifo")
    outcome = answer["outcome"]
    assert outcome["stopped"] == {"least": 0, "most": 0} and outcome["stopped_recorded"] == 6
    go.Figure(answer["figure"])


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("grace_period=9", "grace period 9: must be 1..4, the epochs per trial; change it"),
        ("grace_period=0", "grace_period 0: must be greater than or equal to 1"),
        ("grace_period=1.5", "grace_period 1.5: must be a valid integer"),
        ("scheduler=pbt", "scheduler pbt: must be 'asha', 'asha-promotion', 'median', 'hyperband' or 'fifo'"),
        ("brackets=8", "brackets 8: must be 1..3, as many as there are rungs; change it"),
        (
            "scheduler=fifo&brackets=2",
            "brackets 2: must be 1..1, because only asha and asha-promotion have more than one",
        ),
        ("reduction_factor=1", "reduction_factor 1: must be greater than 1"),
        ("reduction_factor=1.0001", "reduction factor 1.0001 gives "),
    ],
)
def test_rules_that_cannot_be_replayed_are_refused_in_the_forms_words(ask, query, message):
    error = ask(f"/what-if?{query}", 422)["error"]
    assert message in error and "--" not in error


def test_a_contour_of_two_parameters_has_every_trial_as_a_dot(ask):
    surface, dots = ask("/contour?x=x&y=y")["figure"]["data"]
    assert len(dots["x"]) == 12 and dots["marker"]["color"][0] == 0.5
    assert len(surface["z"]) == len(surface["y"]) == 40
    assert len(ask("/contour?x=x&y=y&values=4")["figure"]["data"][1]["x"]) == 6  # the others were pruned at epoch 2
    assert "no parameter 'act'" in ask("/contour?x=act&y=y", 422)["error"]
    assert "at least 20 trials" in ask("/importance", 422)["error"]


def test_importance_is_worked_out_once_a_record(results, monkeypatch):
    drawn = []
    monkeypatch.setattr(analyses, "importance_of", lambda *asked: drawn.append(asked))
    monkeypatch.setattr(analyses, "draw_importance", lambda data: {})
    answers = analyses.Analyser()
    first, again = (answers.answer(str(results / NAME), "importance", {}) for _ in range(2))
    assert first == again == (200, b'{"figure": {}}') and len(drawn) == 1


def test_one_trial_has_its_decisions_output_and_command(ask):
    stopped, trained, failed = (ask(f"/trials/{trial}") for trial in ("00008", "00003", "00012"))
    (decision,) = stopped["decisions"]
    assert decision["margin"] == pytest.approx(0.4) and stopped["row"]["rung"] == 2
    assert [log["tail"] for log in trained["logs"]] == ["epoch 1\nepoch 2\n"]
    assert trained["retrain"].endswith("--trial 00003") and "on 2 CPU" in trained["cost"]
    assert failed["row"]["errors"] == ["boom"] and failed["retrain"] == "" and failed["figure"]["data"] == []


@pytest.mark.parametrize(("space", "facts"), [("tiny", {}), ("__main__:space", {"data": {"source": ""}})])
def test_no_command_trains_a_function_or_a_notebooks_task_again(ask, results, space, facts):
    experiment, _ = load_experiment(results / NAME)
    (results / NAME / "best").mkdir()
    (results / NAME / "best" / "config.json").write_text("{}")
    assert ask("/changes")["summary"]["retrain"].endswith("best/config.json")
    save_experiment(replace(experiment, space=space), results / NAME, FACTS | facts)
    assert ask("/trials/00003")["retrain"] == ask("/audit")["command"] == ask("/changes")["summary"]["retrain"] == ""


def test_an_audit_is_none_until_there_was_one_and_its_command_is_said(ask):
    assert "no trial of that id" in ask("/trials/99999", 404)["error"]
    assert ask("/audit")["result"] is None and ask("/audit")["command"].startswith(f"python -m tuner.audit {NAME} ")


def test_figures_are_drawn_once_a_record(ask, monkeypatch):
    first = ask("/figures")
    assert set(first) == {"curves", "rung_values", "history", "parallel", "slices", "timeline"}
    monkeypatch.setattr("tuner.serve.reading.results_reader.FIGURES", {})
    assert ask("/figures") == first
