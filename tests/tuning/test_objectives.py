"""Several metrics and constraints in a whole search: its decisions, its resume, and its answer."""

import json
import random

import pytest
from by_hand import CONTINUE, STOP, Search
from spaces import tiny
from workerless import CHOICES, KEPT, MANAGER, Worker, Workerless, outcome_of, resumed, run

import tuner
from tuner.record.reading import read
from tuner.record.results import load
from tuner.spec.experiment import Experiment
from tuner.tuning.searchers import forest
from tuner.tuning.searchers.named import build_searcher
from tuner.views.report import page

TWO = {"metric": ("accuracy", "size"), "mode": ("max", "min")}
SMALL = {"constraint": ("size <= 10 at start",)}


def test_a_report_that_breaks_a_constraint_at_the_start_ends_its_trial_and_no_rung_counts_it(tmp_path):
    search = Search(tmp_path / "j", max_epochs=4, scheduler="asha", **SMALL)
    assert search.report("00000", 1, loss=0.1, size=12) == STOP
    assert search.report("00001", 1, loss=0.9, size=10) == CONTINUE  # at the first rung, nobody was recorded
    assert search.report("00001", 2, loss=0.8) == CONTINUE
    reason = "breaks a constraint at epoch 1: size is 12, not <= 10"
    assert search.ends() == {"00000": ("pruned", reason)} and search.decisions()[0]["reason"] == reason
    assert search.decisions()[1]["recorded"] == 0


def test_a_constraint_of_the_end_lets_a_trial_train(tmp_path):
    search = Search(tmp_path / "j", max_epochs=2, scheduler="fifo", constraint=("size <= 10",))
    assert search.report("00000", 1, loss=0.1, size=12) == CONTINUE


def test_each_report_must_have_all_metrics_and_finite_ones(tmp_path):
    search = Search(tmp_path / "j", max_epochs=4, scheduler="asha", **TWO)
    assert search.report("00000", 1, accuracy=0.1, size=float("nan")) == STOP
    assert search.ends()["00000"] == ("pruned", "size is nan at epoch 1: the training diverged")
    assert search.report("00001", 1, accuracy=0.1) == STOP
    assert search.ends()["00001"][1].startswith("the trial reports no 'size' at epoch 1; it reports accuracy")


class Sized(Workerless):
    class worker(Worker):
        def train(self):
            report = super().train()
            loss = self.report["loss"]
            return report | {"accuracy": 1 / (1 + loss), "size": 20 * (self.setting["lr"] * 1e4 % 1)}


@pytest.mark.parametrize(
    ("searcher", "scheduler", "choices"),
    [
        ("forest", "asha-promotion", TWO | SMALL),
        ("optuna", "asha", TWO | {"constraint": ("size <= 10",)}),
        ("nsga2", "fifo", TWO),
        ("random", "asha", TWO),
        ("forest", "asha", {"constraint": ("size <= 10",)}),
    ],
)
def test_a_search_that_is_cut_again_and_again_ends_as_if_it_had_not(
    one_ray, tmp_path, monkeypatch, searcher, scheduler, choices
):
    monkeypatch.setattr(MANAGER, Sized)
    monkeypatch.setattr(*KEPT)
    monkeypatch.setattr(forest, "NUM_RANDOM", 3)  # of nine settings
    choices = {"searcher": searcher, "scheduler": scheduler, **choices}
    run(tmp_path / "whole", **CHOICES, **choices)
    folder, stream, at = tmp_path / "whole", random.Random(f"{searcher} {scheduler}"), 0
    expected, record = outcome_of(folder), load(folder)
    assert record.best() and page(record)
    while (at := at + stream.randint(5, 25)) < len(read(folder / "journal.jsonl")):
        folder = resumed(folder, at, **choices)
        assert outcome_of(folder) == expected, f"cut after {at} events"


@pytest.mark.parametrize("searcher", ["forest", "optuna", "nsga2"])
@pytest.mark.parametrize("metrics", [("loss",), ("loss", "other")])
def test_searchers_learn_what_breaks_a_constraint(searcher, metrics):
    options = {"metric": metrics, "mode": ("min",) * len(metrics), "constraint": ("size <= 1",)}
    e = Experiment(searcher=searcher, scheduler="fifo", num_samples=60, max_epochs=1, **options)
    built, sizes = build_searcher(e, tiny.space), []
    for number in range(60):
        setting = built.suggest(trial := f"{number:05d}")
        size = 2 * (setting["lr"] > 10**-2.5)
        sizes.append(size)
        result = {"training_iteration": 1, "loss": -setting["lr"], "other": setting["lr"] ** 0.5, "size": size}
        built.report(trial, result)
        built.complete(trial, result)
    # The best value lies at the limit, so a model that draws around it breaks the constraint, too.
    assert sum(map(bool, sizes[30:])) <= (10 if searcher == "forest" else 15), sizes


def train(config):
    for epoch in range(1, 4):
        x, y = config["x"], config["y"]
        tuner_report = {"accuracy": x + epoch / 10, "size": 10 * x + y, "weight": 10 * y}
        from ray import tune

        tune.report(tuner_report)


def space_of(**options):
    from ray import tune

    params = {"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)}
    return tuner.Space(params=params, train=train, max_epochs=3, num_samples=8, **options)


def test_the_answer_is_a_front_whose_knee_is_the_best(here):
    options = {"results": str(here), "name": "front", "wandb": "disabled", "seed": 1, "scheduler": "fifo"}
    result = tuner.search(space_of(**TWO, constraints={"weight": "<= 7"}), table="off", **options)
    best, *others = result.front
    assert best.trial == result.best.trial and others and not best.broken
    assert all(point.metrics["weight"] <= 7 for point in result.front)
    points = [(-point.metrics["accuracy"], point.metrics["size"]) for point in result.front]
    assert not any(a != b and a[0] <= b[0] and a[1] <= b[1] for a in points for b in points)
    feasible = [t for t in load(result.folder).trials if t.last("weight") <= 7]
    assert all(any(p[0] <= -t.last("accuracy") and p[1] <= t.last("size") for p in points) for t in feasible)
    for number, point in enumerate(result.front):
        folder = result.folder / "best" / (f"front/{number:02d}" if number else "")
        config = json.loads((folder / "config.json").read_text())
        assert (config["trial"], config["metric"]) == (point.trial, list(TWO["metric"]))
        assert json.loads((folder / "metrics.json").read_text())["validation"]["size"] == point.metrics["size"]
    assert "none is worse than another trial in all" in repr(result)
    assert "Pareto front, its knee first" in (result.folder / "report.html").read_text()
    again = tuner.search(resume="front", space=space_of(**TWO), results=str(here), table="off", num_samples=12)
    assert len(load(again.folder).trials) == 12


def test_without_a_trial_that_keeps_the_constraints_the_answer_is_marked(here, capsys):
    options = {"results": str(here), "name": "none", "wandb": "disabled", "num_samples": 4}
    space = space_of(metric="accuracy", mode="max", constraints={"weight": "<= -1"})
    result = tuner.search(space, table="off", **options)
    least = min(load(result.folder).trials, key=lambda trial: trial.last("weight"))
    assert result.best.trial == least.id and result.best.broken.startswith("weight is ")
    assert "NOTE: no trial keeps all constraints; this one breaks them least: weight is" in capsys.readouterr().out
    assert "broken" in json.loads((result.folder / "best/metrics.json").read_text())
