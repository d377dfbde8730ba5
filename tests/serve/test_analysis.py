"""Analyses of one experiment: what if, one trial, two parameters, importance, the audit; the limits of costly ones."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import psutil
import pytest
from killing import seen
from tiers import further

from tests.serve import test_hostile
from tests.serve.conftest import asking, begin, serving, train
from tests.serve.test_hostile import REPORT, STARTED
from tuner.record.saved_experiment import load_experiment, save_experiment
from tuner.serve import analysis
from tuner.serve.analysis import MOST_WAITING, AnalysisWorker
from tuner.serve.app import create_app

NAME = "asked"
FIFO = {"scheduler": "fifo", "grace_period": 1, "reduction_factor": 2.0, "brackets": 1}
FACTS = {"created": 1000.0, "space": {"params": {}}}


@pytest.fixture
def results(tmp_path):
    """12 trials of 4 epochs whose loss is x + 1 / epoch; the worse half is pruned at epoch 2; one never reports."""
    options = {"space": "tiny", "max_epochs": 4, "num_samples": 13, "scheduler": "asha", "grace_period": 2}
    journal = begin(tmp_path, NAME, {**FACTS, "data": {"source": ""}}, **options, reduction_factor=2)
    folder = tmp_path / NAME
    for number in range(12):
        config, pruned = {"x": number / 10, "y": (number * 5) % 13, "act": "<b>relu</b>"}, number >= 6
        losses = [number / 10 + 1 / epoch for epoch in range(1, 3 if pruned else 5)]
        at = {"epoch": 2, "rung": 2, "bracket": 0, "value": losses[1], "cutoff": 0.9, "action": "stop"}
        worse = {"status": "pruned", "reason": "worse"} if pruned else {}
        train(journal, f"{number:05}", config, losses, *([at | {"reason": "worse"}] if pruned else []), **worse)
    train(journal, "00012", {"x": 1.2, "y": 8, "act": "<b>relu</b>"}, [], error="boom")
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    (folder / "ray" / "00003").mkdir(parents=True)
    (folder / "ray" / "00003" / "stdout").write_text("epoch 1\nepoch 2\n")
    return tmp_path


@pytest.fixture
def ask(results):
    return asking(create_app(results), f"/api/experiments/{NAME}")


def test_rules_that_cannot_be_replayed_are_refused_in_the_forms_words(ask):
    cases = {
        "grace_period=9": "grace period 9: must be 1..4, the epochs per trial; change it",
        "grace_period=0": "grace_period 0: must be greater than or equal to 1",
        "scheduler=pbt": "scheduler pbt: must be 'asha', 'asha-promotion', 'hyperband', 'median' or 'fifo'",
        "brackets=8": "brackets 8: must be 1..3, as many as there are rungs; change it",
        "scheduler=fifo&brackets=2": "must be 1..1, because only asha and asha-promotion have more than one",
        "reduction_factor=1": "reduction_factor 1: must be greater than 1",
        "reduction_factor=1.0001": "reduction factor 1.0001 gives ",
    }
    for query, message in cases.items():
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
    monkeypatch.setattr(analysis, "importance_of", lambda *asked: drawn.append(asked))
    monkeypatch.setattr(analysis, "draw_importance", lambda data: {})
    answers = analysis.Analyser()
    first, again = (answers.answer(str(results / NAME), "importance", {"values": ""}) for _ in range(2))
    assert first == again == (200, b'{"figure": {}}') and len(drawn) == 1


def test_one_trial_has_its_decisions_output_and_command(ask):
    stopped, trained, failed = (ask(f"/trials/{trial}") for trial in ("00008", "00003", "00012"))
    (decision,) = stopped["decisions"]
    assert decision["margin"] == pytest.approx(0.4) and stopped["row"]["rung"] == 2
    assert [log["tail"] for log in trained["logs"]] == ["epoch 1\nepoch 2\n"]
    assert trained["retrain"].endswith("--trial 00003") and "on 2 CPU" in trained["cost"]
    assert failed["row"]["errors"] == ["boom"] and failed["retrain"] == "" and failed["figure"]["data"] == []
    assert "no trial of that id" in ask("/trials/99999", 404)["error"]


@pytest.mark.parametrize(("space", "facts"), [("tiny", {}), ("__main__:space", {"data": {"source": ""}})])
def test_no_command_trains_a_function_or_a_notebooks_task_again(ask, results, space, facts):
    experiment, _ = load_experiment(results / NAME)
    (results / NAME / "best").mkdir()
    (results / NAME / "best" / "config.json").write_text("{}")
    assert ask("/changes")["summary"]["retrain"].endswith("best/config.json")
    assert ask("/audit")["result"] is None and ask("/audit")["command"].startswith(f"python -m tuner.audit {NAME} ")
    save_experiment(replace(experiment, space=space), results / NAME, FACTS | facts)
    assert ask("/trials/00003")["retrain"] == ask("/audit")["command"] == ask("/changes")["summary"]["retrain"] == ""


def test_figures_are_drawn_once_a_record(ask, monkeypatch):
    first = ask("/figures")
    assert set(first) == {"best", "curves", "rung_values", "history", "parallel", "slices", "timeline"}
    monkeypatch.setattr("tuner.serve.reading.results_reader.FIGURES", {})
    assert ask("/figures") == first


class Asked:
    """A request whose client goes away at the event."""

    def __init__(self, gone):
        self._gone = gone

    async def is_disconnected(self):
        return self._gone.is_set()


def asked(worker, folder, choices=FIFO, analysis="what-if"):
    answer = asyncio.run(worker.ask(Asked(threading.Event()), folder, analysis, choices, lambda: False))
    return answer.status_code, json.loads(answer.body)


def children():
    """The processes of analyses that this process has started and that still run."""
    below = seen(psutil.Process().children(), psutil.Process.cmdline)  # a zombie has no words
    return {child.pid for child, words in below if "tuner.serve.analysis" in words}


@pytest.fixture
def small(tmp_path):
    return test_hostile.begin(tmp_path, "small", [STARTED, REPORT])


@pytest.fixture
def endless(tmp_path):
    """60 trials that were cut off after one epoch of a million: a replay of 60 million epochs."""
    events = [{**e, "trial": str(i)} for i in range(60) for e in (STARTED, REPORT)]
    return test_hostile.begin(tmp_path, "endless", events, num_samples=60, max_epochs=1_000_000)


def test_one_process_answers_stays_and_ends_with_the_service(small):
    before, worker = children(), AnalysisWorker()
    assert children() == before  # the first request starts it
    status, answer = asked(worker, small)
    (process,) = children() - before
    assert status == 200 and answer["outcome"]["scheduler"] == "fifo"
    assert asked(worker, small) == (status, answer)
    assert asked(worker, small, {"x": "lr", "y": "b"}, "contour")[0] == 422
    assert asked(worker, small.parent / "none")[0] == 422 and children() - before == {process}
    del worker
    psutil.wait_procs([psutil.Process(process)], timeout=30)
    assert children() <= before


@pytest.mark.parametrize(
    ("most_s", "most_memory", "text"),
    [(60.0, 300 << 20, "300 MiB of memory"), *further([(10.0, 16 << 30, "more than 10 s")], 1)],
)
def test_what_takes_too_much_is_ended_and_the_next_is_answered(small, endless, most_s, most_memory, text):
    before, worker = children(), AnalysisWorker(most_s, most_memory)
    status, answer = asked(worker, endless)
    assert status == 503 and text in answer["error"] and children() <= before
    assert asked(worker, small)[0] == 200


def test_few_wait_and_the_others_are_told_when_to_ask_again(endless):
    worker, gone = AnalysisWorker(most_s=600.0, most_memory=16 << 30), threading.Event()

    async def one():
        answer = await worker.ask(Asked(gone), endless, "what-if", FIFO, lambda: False)
        refused = b"analyses are queued" in answer.body and answer.headers["Retry-After"] == "1"
        if refused:
            gone.set()  # the others would wait for minutes
        return answer.status_code, refused

    async def many():
        return await asyncio.gather(*(one() for _ in range(MOST_WAITING + 1)))

    replies = asyncio.run(many())
    assert sorted(replies) == [(503, False)] * MOST_WAITING + [(503, True)]


def test_a_client_that_asks_for_too_much_takes_nothing_from_others(small, endless):
    app = create_app(small.parent)
    with serving(app) as served:

        def ask(path, timeout_s=60):
            return httpx.get(f"{served.url}api/experiments{path}", timeout=timeout_s, trust_env=False).status_code

        rungs = [f"/small/what-if?scheduler={name}&reduction_factor=1.0000001" for name in ("asha", "hyperband")]
        assert [ask(path) for path in rungs] == [422, 422]
        for _ in range(2):  # each goes away
            with pytest.raises(httpx.ReadTimeout):
                ask("/endless/what-if?scheduler=fifo", 0.5)
        assert ask("") == ask("/small/what-if") == 200
        with ThreadPoolExecutor(1) as threads:
            last = threads.submit(ask, "/endless/what-if?scheduler=fifo")
            time.sleep(0.5)
            app.state.stopping = lambda: True  # the service ends while it is being computed
            assert last.result() == 503
