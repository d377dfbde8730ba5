"""What fails at a search's end costs no more than itself: the answer, its files and the exit code stay."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_answer import searched  # noqa: F401  (a fixture)

from tuner.record import results
from tuner.record.records import TrialRecord
from tuner.spec.resources import Resources
from tuner.tuning.answer import result
from tuner.tuning.answer.result import out_of_memory, save_answer
from tuner.views.figures import catalogue


def with_task(searched, **changes):  # noqa: F811
    space = replace(searched.space.space, task=replace(searched.space.space.task, **changes))
    searched.space = replace(searched.space, space=space)


def answer_of(searched, splits=None):  # noqa: F811
    experiment = results.load(searched.folder).experiment
    parts = dict(loaded_space=searched.space, splits=splits or searched.splits, shared=None)
    request = SimpleNamespace(experiment=experiment, **parts)
    return save_answer(request, Resources(cpus=1, gpus=0, concurrent=1))


def one_class_less(outputs, targets):
    raise ZeroDivisionError("no example of class 7")


def narrower(config):
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


class NoLoad(torch.optim.SGD):
    def load_state_dict(self, state_dict):
        raise AttributeError("no load_state_dict")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"metrics": {"a": one_class_less}}, "ZeroDivisionError: no example of class 7 (tests/tuning/answer/"),
        ({"model": narrower}, "RuntimeError: Error(s) in loading state_dict for Sequential: size mismatch"),
    ],
)
def test_an_error_on_the_test_set_costs_the_test_metrics_alone(searched, caplog, change, why):  # noqa: F811
    with_task(searched, **change)
    record, best = answer_of(searched)
    assert best.trial == "00000" and best.test is None
    assert torch.load(searched.best / "model.pt", weights_only=True)
    assert searched.read("metrics.json")["test"] is None and (searched.folder / "report.html").exists()
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith(f"NOTE: trial 00000 has no test metrics: {why}") and "\n" not in line
    searched.space = replace(searched.space, space=replace(searched.space.space, task=searched.training.task))
    assert answer_of(searched)[1].test == searched.training.evaluate(searched.splits.test)  # once it is corrected


def test_the_test_needs_no_optimizer_that_can_be_loaded(searched):  # noqa: F811
    with_task(searched, optimizer=lambda parameters, config: NoLoad(parameters, lr=config["lr"]))
    assert answer_of(searched)[1].test == searched.training.evaluate(searched.splits.test)


def test_a_figure_that_cannot_be_drawn_is_left_out(searched, caplog, monkeypatch):  # noqa: F811
    def broken(record):
        raise TypeError("no\nnumber")

    monkeypatch.setitem(catalogue.FIGURES, "timeline", broken)
    _, best = answer_of(searched)
    page = (searched.folder / "report.html").read_text()
    assert best and 'id="timeline"' not in page and 'id="curves"' in page
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith("NOTE: the figure 'timeline' is not drawn: TypeError: no number (")


@pytest.mark.parametrize("part", ["conclude", "write_report"])
def test_an_unexpected_error_in_one_part_leaves_the_others(searched, caplog, monkeypatch, part):  # noqa: F811
    def broken(*arguments):
        raise KeyError("x")

    monkeypatch.setattr(result, part, broken)
    _, best = answer_of(searched)
    assert best.trial == "00000"
    assert (searched.folder / "report.html").exists() == (part == "conclude")
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith("NOTE: ") and "KeyError: 'x' (" in line


def test_it_is_said_if_all_trials_ran_out_of_memory():
    lost = "its worker was killed, probably by the kernel, because memory ran out; use smaller batches"
    short = [
        TrialRecord("00000", {}, status="failed", failure="oom"),
        TrialRecord("00001", {}, status="failed", failure="worker_lost", reason=lost),
    ]
    (line,) = out_of_memory(short)
    assert line.startswith("NOTE: all 2 trials ran out of memory: ") and "--max-concurrent-trials" in line
    assert out_of_memory(short[:1])[0].startswith("NOTE: the only trial ran out of memory")
    assert not out_of_memory([*short, TrialRecord("00002", {}, status="failed", failure="user", reason="ValueError")])
    assert not out_of_memory([*short, TrialRecord("00002", {}, status="completed")])
    assert not out_of_memory([])
