"""The sources of --start-from: past experiments, best/config.json and tables, as settings of the search's space."""

import csv
import json
import math

import pytest
from killing import cut
from ray import tune

from tuner.errors import RequestError
from tuner.record.journal import Journal
from tuner.record.reading import read
from tuner.record.saved_experiment import save_experiment
from tuner.space import Space
from tuner.spec.constraints import aim_of
from tuner.spec.experiment import Experiment
from tuner.tuning.checks import known
from tuner.tuning.checks.known import past_of
from tuner.tuning.searchers.past import Standing

SPACE = Space(
    params={
        "lr": tune.loguniform(1e-4, 1e-1),
        "width": tune.choice([8, 16]),
        "depth": 3,
        "norm": {"on": tune.choice([0, 1])},
    },
    train=print,
)


def journaled(folder, trials, metric="loss", mode="min", constants=(), **options):
    """Writes an experiment's folder; a trial is its config, its values (or metrics), and perhaps its status."""
    folder.mkdir(parents=True)
    experiment = Experiment(name=folder.name, results=str(folder.parent), metric=metric, mode=mode, **options)
    save_experiment(experiment, folder, {"space": {"params": {}, "constants": dict(constants)}})
    journal = Journal(folder / "journal.jsonl")
    journal.write("experiment_started", name=folder.name, num_samples=len(trials), max_epochs=9)
    for number, (config, values, *status) in enumerate(trials):
        journal.write("trial_started", f"{number:05d}", config=config, resources={}, node="")
        for epoch, value in enumerate(values, 1):
            journal.write(
                "report", f"{number:05d}", epoch=epoch, metrics=value if isinstance(value, dict) else {metric: value}
            )
        journal.write("trial_ended", f"{number:05d}", status=(*status, "completed")[0], reason="")
    journal.write("experiment_finished", state="finished", reason="")
    journal.close()
    return folder


def setting(lr, width=8, on=0, **more):
    return {"lr": lr, "width": width, "norm": {"on": on}, **more}


def from_(*sources, space=SPACE, **options):
    (past,) = past_of(Experiment(start_from=tuple(map(str, sources)), **options), space)["sources"]
    return past


def test_the_best_few_of_an_experiment_run_first_and_all_of_its_trials_are_told(tmp_path):
    trials = [
        (setting(0.05), [3.0]),
        (setting(0.02, 16), [2.0, 0.5, 0.7]),
        (setting(0.01), [1.0]),
        (setting(0.01), [0.9]),  # the same setting again
        (setting(0.03), [0.1, math.nan]),  # diverged
        (setting(0.04), [], "failed"),
        (setting(0.001, on=1), [2.0]),
    ]
    past = from_(journaled(tmp_path / "old", trials), searcher="forest")
    assert past["first"] == [[0.02, 1, 0], [0.01, 0, 0], [0.001, 0, 1]]
    assert [(cells[0], epochs) for *cells, epochs in past["told"]] == [
        (0.02, 3), (0.01, 1), (0.01, 1), (0.001, 1), (0.05, 1), (0.03, 2), (0.04, 1)
    ]  # fmt: skip
    assert past["note"] == f"{tmp_path / 'old'}: 3 settings first; forest learns from 7 trials"
    by_name = past_of(Experiment(start_from=("old",), results=str(tmp_path)), SPACE)["sources"][0]
    latest = past_of(Experiment(start_from=("latest",), results=str(tmp_path)), SPACE)["sources"][0]
    assert by_name["first"] == latest["first"] == past["first"]
    assert by_name["note"] == "old: 3 settings first"  # random learns nothing


def test_what_does_not_fit_is_said_once_with_its_number_and_reason(tmp_path):
    trials = [(setting(0.01, dropout=0.5), [1.0]), (setting(0.5), [0.5]), (setting(0.9), [0.4])]
    past = from_(journaled(tmp_path / "old", trials))
    assert [cells[0] for cells in past["first"]] == [0.01]
    assert "ignored, as they are no parameters: dropout" in past["note"]
    assert "2 of 3 left out, such as lr=0.5: must be 0.0001..0.1" in past["note"]
    with pytest.raises(RequestError, match="1 of 1 left out, such as lr=0.5: must be"):
        from_(journaled(tmp_path / "none", [(setting(0.5), [0.5])]))


def test_a_smaller_past_is_completed_by_its_constants_and_leaves_the_rest_open(tmp_path):
    past = from_(journaled(tmp_path / "old", [({"lr": 0.01}, [1.0])], constants={"width": 16, "depth": 7}))
    assert past["first"] == [[0.01, 1, None]]


def test_a_past_with_this_metric_is_ranked_by_it_and_one_without_by_its_own(tmp_path):
    trials = [(setting(0.01), [0.5]), (setting(0.02), [0.9])]
    folder = journaled(tmp_path / "old", trials, metric="accuracy", mode="max")
    assert [cells[0] for cells in from_(folder)["first"]] == [0.02, 0.01]
    assert [cells[0] for cells in from_(folder, metric="accuracy", mode="min")["first"]] == [0.01, 0.02]


def test_a_past_whose_rungs_compared_another_metric_is_ranked_as_its_own_forest_did(tmp_path):
    def losses(*values):
        return [{"loss": value} for value in values]

    trials = [
        (setting(0.01), losses(0.3), "pruned"),
        (setting(0.02), losses(0.9, 0.8), "pruned"),
        (setting(0.03), [*losses(0.5, 0.4), {"accuracy": 0.6}]),
        (setting(0.04), losses(0.9, 0.7), "pruned"),
        (setting(0.05), [{"loss": 0.9, "accuracy": 0.7}, *losses(0.8)]),
        (setting(0.06), losses(0.1, math.nan), "pruned"),
    ]
    goals = {"metric": "accuracy", "mode": "max"}
    folder = journaled(tmp_path / "old", trials, **goals, prune_by="loss")
    past = from_(folder, searcher="forest", **goals)
    assert [cells[0] for cells in past["told"]] == [0.05, 0.03, 0.04, 0.02, 0.01, 0.06]
    assert [cells[0] for cells in past["first"]] == [0.05, 0.03, 0.04]


def test_of_many_trials_the_best_half_is_kept_and_others_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(known, "MOST_KNOWN", 10)
    trials = [(setting(0.01), [float(number)]) for number in range(100)]
    assert len(from_(journaled(tmp_path / "old", trials))["told"]) == 10
    ranked = [([number], known.Known({}, Standing(0, 0, float(number)))) for number in range(100)]
    kept = [cells[0] for cells, _ in known._fewer(ranked)]
    assert kept[:5] == [0, 1, 2, 3, 4] and kept[5:] == [5, 24, 43, 62, 81]


def test_a_best_config_runs_first_without_what_this_space_fixes(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"format": 4, "trial": "00002", "config": setting(0.01, 16, 1, depth=9)}))
    past = from_(file)
    assert (past["first"], past["told"]) == ([[0.01, 1, 1]], [])


def table(path, head, *rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def test_a_table_without_values_runs_in_its_order(tmp_path):
    past = from_(table(tmp_path / "t.csv", ["lr", "norm/on"], ["0.01", "1"], ["1e-3", ""], ["0.01", "1"]))
    assert (past["first"], past["told"]) == ([[0.01, None, 1], [0.001, None, None]], [])


@pytest.mark.parametrize(
    ("prefix", "column"), [("params_", "value"), ("config/", "loss"), ("config.", "loss"), ("", "best_loss")]
)
def test_tables_of_ray_wandb_optuna_and_our_own_are_ranked(tmp_path, prefix, column):
    rows = [["0.01", "8", "2.5"], ["0.02", "16", "nan"], ["0.03", "16", "0.5"], ["0.05", "8", ""]]
    past = from_(table(tmp_path / "t.csv", [f"{prefix}lr", f"{prefix}width", column], *rows), searcher="forest")
    assert [cells[0] for cells in past["first"]] == [0.03, 0.01]
    assert [cells[0] for cells in past["told"]] == [0.03, 0.01, 0.02]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("gone", None, "no experiment"),
        ("gone.csv", None, "No such file"),
        ("a.json", "[1, 2", "cannot be read"),
        ("a.json", "[1, 2]", "cannot be read"),
        ("a.csv", "when,where\n1,2\n", "no setting of this space"),
        ("a.csv", b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_a_source_that_cannot_be_used_is_refused(tmp_path, name, content, why):
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(RequestError, match=why) as refused:
        from_(tmp_path / name)
    assert "\n" not in str(refused.value)


def test_a_search_starts_from_another_and_resumes_without_it(search_here, tmp_path):
    usual = "--max-epochs", "2", "--scheduler", "fifo", "--searcher", "forest", "--max-concurrent-trials", "1"
    old = search_here("tiny.py", "--num-samples", "4", *usual, name="old")
    new = search_here("tiny.py", "--num-samples", "5", *usual, "--start-from", "old", name="new")
    assert (old.code, new.code) == (0, 0), new.err
    assert "known       old: 3 settings first; forest learns from 4 trials" in new.out
    best = sorted(old.record.trials, key=lambda trial: trial.best(aim_of("loss", "min", ())).metrics["loss"])[:3]
    assert [trial.config for trial in new.record.trials[:3]] == [trial.config for trial in best]
    whole = [trial.config for trial in new.record.trials]
    starts = [
        number for number, event in enumerate(read(new.folder / "journal.jsonl")) if event["event"] == "trial_started"
    ]
    cut(new.folder, tmp_path / "cut", starts[3] + 1)
    for file in sorted((tmp_path / "old").rglob("*"), reverse=True):  # it need not be there any more
        file.unlink() if file.is_file() or file.is_symlink() else file.rmdir()
    resumed = search_here("", "--resume", "cut", name="cut")
    assert resumed.code == 0, resumed.err
    assert [trial.config for trial in resumed.record.trials] == whole
    other = search_here("", "--resume", "cut", "--start-from", "new", name="cut")
    assert other.code == 2 and "--start-from was" in other.err
