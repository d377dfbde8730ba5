"""The route that compares experiments: what it reads, refuses, keeps and says."""

import json

import pytest
from journals import append

from tests.serve.conftest import asking, serving
from tests.views.test_compare import write_search
from tuner.record.reading import NotYet
from tuner.record.saved_experiment import digest
from tuner.serve import comparison
from tuner.serve.app import create_app
from tuner.serve.client import Client
from tuner.serve.reading import results_reader as budget
from tuner.views.compare import MOST_COMPARED


@pytest.fixture
def results(tmp_path):
    """Searches a and b of the loss, c of its maximum, broken with a damaged journal."""
    for seed, name in enumerate("ab"):
        write_search(tmp_path, name, seed, max_epochs=8 + seed)
    write_search(tmp_path, "c", mode="max")
    write_search(tmp_path, "broken")
    (tmp_path / "broken" / "journal.jsonl").write_text("{torn\n{}\n")
    return tmp_path


@pytest.fixture
def ask(results):
    return asking(create_app(results), "/api/compare?")


def names(figure):
    return [trace["meta"] for trace in figure["data"]]


def test_two_experiments_have_figures_costs_and_differences(ask, results):
    found = ask("name=a&name=b")
    assert set(found["figures"]) == {"epochs", "seconds", "trials", "values"}
    assert all(names(figure) == ["a", "b"] for figure in found["figures"].values())
    events = [json.loads(line) for line in (results / "a" / "journal.jsonl").read_text().splitlines()]
    row = found["experiments"][0]
    assert (row["trials"], row["failed"]) == (30, 0)
    assert row["took_s"] == pytest.approx(events[-1]["time"] - events[0]["time"] - 3600, abs=0.1)
    differ = {row["name"]: row["values"] for row in found["options"] if row["differs"]}
    assert differ == {"max_epochs": ["8", "9"], "seed": ["0", "1"]}
    assert found["parameters"] and not any(row["differs"] for row in found["parameters"])


def test_a_missing_or_damaged_experiment_is_a_row_that_says_so(ask):
    found = ask("name=gone&name=a&name=broken&name=b&name=..%2Fa")
    states = {row["name"]: row["state"] for row in found["experiments"]}
    assert states == {"gone": "missing", "a": "finished", "broken": "damaged", "b": "finished", "../a": "missing"}
    assert all(row["error"] for row in found["experiments"] if row["state"] in ("missing", "damaged"))
    assert names(found["figures"]["epochs"]) == found["columns"] == ["a", "b"]
    assert ask("name=gone")["figures"] == {}


def test_other_metrics_and_modes_have_figures_of_their_own(ask):
    found = ask("name=a&name=c&name=b")
    groups = [{"metric": "loss", "mode": "min", "names": ["a", "b"]}, {"metric": "loss", "mode": "max", "names": ["c"]}]
    assert found["groups"] == groups and found["group"] == 0
    assert names(found["figures"]["values"]) == ["a", "b"]
    assert names(ask("name=a&name=c&name=b&group=1")["figures"]["values"]) == ["c"]
    assert ask("name=a&group=7")["group"] == 0
    assert [row["group"] for row in found["experiments"]] == [0, 1, 0]


def test_distributions_compare_the_value_that_is_chosen(ask):
    found = ask("name=a&name=b")
    assert found["values"] == [choice for choice in found["value_choices"] if choice.isdecimal()][-1]
    best = ask("name=a&name=b&values=best")
    assert best["values"] == "best" and best["figures"]["values"] != found["figures"]["values"]
    assert ask("name=a&values=999")["values"] == ask("name=a")["values"]


def test_what_is_no_comparison_is_refused(ask):
    many = "&".join(f"name=n{i}" for i in range(MOST_COMPARED + 1))
    assert all(ask(query, 422)["error"] for query in ("", many, f"name={'n' * 201}", "name=a&values=worst"))


def test_an_experiment_is_read_again_only_when_it_changes(ask, results, monkeypatch):
    first, made = ask("name=a&name=b"), []
    real = comparison.compared_of
    monkeypatch.setattr(comparison, "compared_of", lambda record: made.append(record) or real(record))
    assert ask("name=a&name=b") == first and not made
    report = {"time": 9e9 + 1, "trial": "00000", "event": "report", "epoch": 9, "metrics": {"loss": -99.0}}
    append(results / "a" / "journal.jsonl", {"time": 9e9, "event": "experiment_resumed"}, report)
    changed = ask("name=a&name=b")
    assert len(made) == 1 and changed["experiments"][0]["best"] == -99 and changed["experiments"][0]["trial"] == "00000"


def test_more_experiments_than_fit_into_memory_are_compared(ask, monkeypatch):
    whole = ask("name=a&name=b&name=c")
    monkeypatch.setattr(budget, "MAX_RECORD_BYTES", 2 * budget.LEAST_WEIGHT)
    assert ask("name=a&name=b&name=c") == whole


def test_what_takes_long_to_read_follows_in_later_requests(ask, monkeypatch):
    monkeypatch.setattr(comparison, "COMPARE_S", -1.0)
    assert {row["state"] for row in ask("name=a&name=b")["experiments"]} == {"reading"}
    monkeypatch.setattr(comparison, "COMPARE_S", 60.0)
    assert {row["state"] for row in ask("name=a&name=b")["experiments"]} == {"finished"}
    monkeypatch.setattr(comparison, "COMPARE_S", -1.0)
    found = ask("name=a&name=c&name=b&name=a")  # a and b are kept, and c is read next
    states = [(row["name"], row["state"]) for row in found["experiments"]]
    assert states == [("a", "finished"), ("c", "reading"), ("b", "finished")]


def test_hostile_options_and_ranges_are_cut(ask, results):
    facts = json.loads((results / "a" / "experiment.json").read_text())
    (results / "a" / ".experiment.json.copy").unlink()
    del facts["sha256"]
    wide = {f"p{i}": {"kind": "choice", "values": ["<b>" * 1000] * 1000} for i in range(3)}
    facts["space"]["params"] = {**wide, "x": 3, "n" * 5000: {"kind": {"a": []}, "branches": [1, {"lower": None}]}}
    facts["versions"] = "none"
    (results / "a" / "experiment.json").write_text(json.dumps({**facts, "sha256": digest(facts)}))
    found = ask("name=a&name=b")
    assert found["experiments"][0]["error"] == ""
    texts = [text for row in found["parameters"] for text in (row["name"], *row["values"])]
    assert max(map(len, texts)) <= 300


def test_a_search_that_waits_to_be_started_is_a_row(service):
    name = service.owner.post("/api/experiments", json={"space": "quadratic", "num_samples": 2}).json()["name"]
    (row,) = service.anyone.get(f"/api/compare?name={name}").json()["experiments"]
    assert row["error"] == "" and row["trials"] == 0 and row["best"] is None


def test_the_client_waits_until_all_are_read(results, monkeypatch):
    real, states = comparison.Comparisons.of, []

    def slow(self, name, until):
        states.append(name)
        if len(states) < 4:
            raise NotYet("being read")
        return real(self, name, until)

    monkeypatch.setattr(comparison.Comparisons, "of", slow)
    with serving(create_app(results)) as served:
        found = Client(served.url).compare("a", "b")
    assert [row["state"] for row in found["experiments"]] == ["finished"] * 2 and len(states) == 6
