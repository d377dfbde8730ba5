"""Several metrics and constraints in a whole search: its decisions, its resume, and its answer."""

import html
import json
import random
import shutil

import pytest
from by_hand import CONTINUE, STOP, Search
from following import following, heard
from journals import read, ruled
from spaces import tiny
from workerless import CHOICES, KEPT, MANAGER, Worker, Workerless, outcome_of, resumed, run

import tuner
from tuner.core.events import Report
from tuner.errors import RequestError
from tuner.record import checkpoints
from tuner.record.records import TrialRecord
from tuner.record.results import ExperimentRecord, load
from tuner.record.search_stats import SearchStats
from tuner.spec.experiment import Experiment
from tuner.tuning.output.progress import end_line
from tuner.tuning.resume.trust import code_of
from tuner.tuning.searchers import forest
from tuner.tuning.searchers.named import build_searcher
from tuner.views.report import page
from tuner.views.verdict import verdict_of

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
    report = html.unescape((result.folder / "report.html").read_text())
    for said in (
        "; metrics accuracy (max), size (min); constraints weight <= 7;",
        "The knee's accuracy: ",
        "Pareto front, its",
    ):
        assert said in report
    again = tuner.search(resume="front", space=space_of(**TWO), results=str(here), table="off", num_samples=12)
    assert len(load(again.folder).trials) == 12


def test_each_point_of_a_tasks_front_has_a_tested_model_from_any_folder(here, tmp_path_factory, monkeypatch, caplog):
    shutil.copy(tiny.__file__, "own.py")
    options = {"results": "results", "name": "two", "wandb": "disabled", "table": "off", "max_epochs": 3}
    tuner.search("own.py:two", num_samples=3, **options)
    again = {"resume": "two", "space": "own.py:two", "results": "results", "table": "off", "num_samples": 7}
    result = tuner.search(**again)
    best, *others = result.front
    folder = result.folder.absolute()
    assert others and len(list((folder / "best" / "front").iterdir())) == len(others)
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        for number, point in enumerate([best, *others]):
            found = tuner.load_best(folder, point=number)
            assert found.config == point.config and found.metrics["test"] == point.test and point.test
            assert not found.model.training
    for wrong in (len(others) + 1, -1, "1"):
        with pytest.raises(RequestError, match=rf"point {wrong!r}: .* give 0 \(the knee, in best/\) to {len(others)}"):
            tuner.load_best(folder, point=wrong)
    checkpoint = json.loads((folder / "best/front/01/config.json").read_text())["checkpoint"]
    shutil.rmtree(folder / "best" / "front")
    (folder / checkpoint / "state.pt").write_bytes(b"damaged")
    tuner.search(**again)
    assert (
        f"the checkpoint of trial {others[0].trial}, is gone or damaged: best/front/01/ has its setting" in caplog.text
    )


def test_code_among_the_results_is_refused_for_each_point_of_a_front(tmp_path):
    (tmp_path / "evil.py").touch()
    for place in ("one", "one/best", "one/best/front/01"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "config.json").touch()
        with pytest.raises(RequestError, match="lies in the folder of results"):
            code_of(tmp_path / place, ["config.json"], f"{tmp_path}/evil.py", "")


def test_the_best_trial_is_the_first_of_the_front_also_if_another_one_equals_it():
    experiment = Experiment(**TWO, results="/nowhere", name="e")
    trials = [
        TrialRecord(f"{number:05}", {}, "completed", reports=(Report(1, {"accuracy": 1, "size": 2}, None, time),))
        for number, time in enumerate((7.0, 5.0, 6.0))
    ]
    record = ExperimentRecord(experiment, {}, tuple(trials), "finished")
    assert record.best()[0] is record.front()[0][0] is trials[1] and len(record.front()) == 1


def test_the_front_of_many_checkpoints_has_also_the_last_trials_and_none_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "MOST_LOOKS", 6)  # of the 30 checkpoints
    trials = []
    for number in range(10):
        names = [f"ray/{number}/{epoch}" for epoch in (1, 2, 3)]
        metrics = [{"accuracy": number + epoch / 9, "size": 10 - number} for epoch in (1, 2, 3)]
        reports = tuple(Report(epoch, metrics[epoch - 1], names[epoch - 1], epoch) for epoch in (1, 2, 3))
        trials.append(TrialRecord(f"{number:05}", {}, "completed", reports=reports))
        for name in names[: 2 if number == 9 else 3]:  # the best checkpoint of the last trial is gone
            (tmp_path / "e" / name).mkdir(parents=True)
    record = ExperimentRecord(Experiment(**TWO, results=str(tmp_path), name="e"), {}, tuple(trials), "finished")
    assert [(trial.id, report.epoch) for trial, report in record.front()] == [("00009", 2)]


def test_the_front_of_many_trials_whose_checkpoints_are_gone_is_found_after_a_few_looks(monkeypatch):
    reports = [Report(1, {"accuracy": -number, "size": number}, f"c{number}", number) for number in range(100)]
    trials = tuple(TrialRecord(f"{report.epoch:05}{report.checkpoint}", {}, reports=(report,)) for report in reports)
    stats, made = SearchStats(Experiment(**TWO), trials, False, False), []
    monkeypatch.setattr(stats, "_pareto", lambda answers: made.append(1) or SearchStats._pareto(stats, answers))
    assert stats.front(set()) == [] and len(made) < 30
    assert [report for _, report in stats.front({"c98", "c97"})] == [reports[97]]


@pytest.mark.parametrize(
    ("action", "text"), [("continue", "0 of 2 trials: none had too bad a rank."), ("stop", "1 of 2 ")]
)
def test_the_verdict_knows_that_ranks_were_compared_and_that_they_have_no_cutoffs(action, text):
    trials = []
    for number, one in enumerate(("continue", action)):
        reports = tuple(Report(epoch, {"accuracy": 0.5 - number, "size": 2}, None, epoch) for epoch in (1, 2))
        decision = ruled(1, 1, 0, None, None, number, one, "rank")
        status = "pruned" if one == "stop" else "completed"
        trials.append(TrialRecord(f"{number:05}", {}, status, "rank", reports[: 1 + (one != "stop")], (decision,)))
    experiment = Experiment(**TWO, results="/nowhere", name="e", max_epochs=2, grace_period=2)
    verdict = verdict_of(ExperimentRecord(experiment, {}, tuple(trials), "finished"))
    assert verdict.about("pruned").startswith(text)
    assert not verdict.about("close calls") and not verdict.about("warning")


def test_an_unmet_constraint_keeps_a_trial_from_the_history():
    experiment = Experiment(constraint=("size <= 10",), results="/nowhere", name="e")
    sizes = [(0.5, {"size": 9}), (0.4, {"size": 9}), (0.1, {}), (0.2, {"size": 12})]
    trials = [
        TrialRecord(
            f"{n:05}",
            {},
            "completed",
            reports=(Report(1, {"loss": loss}, None, n), Report(2, {"loss": loss} | size, None, n)),
        )
        for n, (loss, size) in enumerate(sizes)
    ]
    record = ExperimentRecord(experiment, {}, tuple(trials), "finished")
    assert [step.value for step in record.stats.improvements] == [0.5, 0.4] and record.best()[0].id == "00001"


def test_the_terminal_says_which_constraint_a_trial_broke():
    tracker = following(Experiment(constraint=SMALL["constraint"]))
    heard(tracker, {"event": "report", "trial": "00000", "epoch": 1, "metrics": {"loss": 0.5, "size": 12}})
    reason = "breaks a constraint at epoch 1: size is 12, not <= 10"
    heard(tracker, {"event": "trial_ended", "trial": "00000", "status": "pruned", "reason": reason})
    assert end_line("00000", tracker, "loss") == "trial 00000 pruned after epoch 1: size is 12, not <= 10"


def test_a_search_takes_one_constraint_as_a_text(here, capsys):
    tuner.search(tiny.space, constraint="loss <= 1", dry_run=True, wandb="disabled")
    assert "constraints loss <= 1\n" in capsys.readouterr().out


def test_a_report_without_one_of_the_metrics_is_refused_by_its_name(tmp_path):
    search = Search(tmp_path / "j", max_epochs=4, scheduler="asha", **TWO)
    search.report("00000", 1, accuracy=0.1, sise=2)
    assert str(search.stopper.error).startswith("--metric size: trial 00000 reports no 'size' at epoch 1; it reports a")
    short = Search(tmp_path / "k", max_epochs=4, scheduler="asha", metric=("e", "size"), mode=("max", "min"))
    short.report("00000", 1, e=0.1)
    assert str(short.stopper.error).startswith("--metric size: ")


def test_without_a_trial_that_keeps_the_constraints_the_answer_is_marked(here, capsys):
    options = {"results": str(here), "name": "none", "wandb": "disabled", "num_samples": 4}
    space = space_of(metric="accuracy", mode="max", constraints={"weight": "<= -1"})
    result = tuner.search(space, table="off", **options)
    least = min(load(result.folder).trials, key=lambda trial: trial.last("weight"))
    assert result.best.trial == least.id and result.best.broken.startswith("weight is ")
    assert "NOTE: no trial keeps all constraints; this one breaks them least: weight is" in capsys.readouterr().out
    assert "broken" in json.loads((result.folder / "best/metrics.json").read_text())
