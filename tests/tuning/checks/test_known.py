"""The sources of --start-from: past experiments, best/config.json and tables, as settings of the search's space."""

import csv
import json
import math

import pytest
from journals import Journal, read
from killing import cut
from ray import tune

from tuner.errors import RequestError
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
    assert by_name["note"] == "old: 3 settings first; random learns from no trial" and by_name["told"] == []
    assert latest["note"].startswith("latest (old): 3 settings first")


def test_what_does_not_fit_is_said_once_with_its_number_and_reason(tmp_path):
    trials = [(setting(0.01, dropout=0.5), [1.0]), (setting(0.5), [0.5]), (setting(0.9), [0.4])]
    past = from_(journaled(tmp_path / "old", trials))
    assert [cells[0] for cells in past["first"]] == [0.01]
    assert "ignored, as they are no parameters: dropout" in past["note"]
    assert "2 of 3 left out, such as lr=0.5: must be 0.0001..0.1" in past["note"]
    with pytest.raises(RequestError, match="1 of 1 left out, such as lr=0.5: must be"):
        from_(journaled(tmp_path / "none", [(setting(0.5), [0.5])]))
    with pytest.raises(RequestError, match="begun: has no setting;"):  # no trial has reported
        from_(journaled(tmp_path / "begun", [(setting(0.01), [], "interrupted")]))


def test_a_smaller_past_is_completed_by_its_constants_and_leaves_the_rest_open(tmp_path):
    constants = {"width": 16, "depth": 7, "seed": 3}
    past = from_(journaled(tmp_path / "old", [({"lr": 0.01}, [1.0])], constants=constants))
    assert past["first"] == [[0.01, 1, None]]
    assert "drawn at random, as it lacks them: norm/on; ignored, as they are no parameters: depth, seed" in past["note"]
    same = from_(journaled(tmp_path / "same", [(setting(0.01), [1.0])], constants={"depth": 3}))
    assert same["note"] == f"{tmp_path / 'same'}: 1 setting first; random learns from no trial"


def test_what_the_config_computes_is_left_to_the_space(tmp_path):
    space = Space(params={**SPACE.params, "twice": tune.sample_from(lambda spec: 2)}, train=print)
    past = from_(journaled(tmp_path / "old", [(setting(0.01, twice=2), [1.0])]), space=space)
    assert past["first"] == [[0.01, 0, 0]] and "ignored" not in past["note"] and "lacks" not in past["note"]


CHOICES = {
    "text": ["None", "8", "1e-3"],
    "number": [None, 0.001],
    "pair": [(1, 2), ((3, 4), 5)],
    "whole": [{"a": 1, "b": {"c": 2}}, {"a": 3}],
    "list": [[1], [2]],
}
LISTS = Space(params={name: tune.choice(values) for name, values in CHOICES.items()}, train=print)


@pytest.mark.parametrize("cells", [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
def test_every_value_of_a_choice_comes_back_from_an_experiment_and_from_a_best_config(tmp_path, cells):
    config = {name: values[cell] for (name, values), cell in zip(CHOICES.items(), cells, strict=True)}
    (tmp_path / "config.json").write_text(json.dumps({"config": config}))
    for source in (journaled(tmp_path / "old", [(config, [1.0])]), tmp_path / "config.json"):
        past = from_(source, space=LISTS)
        assert past["first"] == [cells] and "ignored" not in past["note"]


def test_a_row_spells_texts_numbers_and_none_of_a_choice(tmp_path):
    rows = [["None", "None", "(1, 2)"], ["8", "1e-3", "[[3, 4], 5]"], ["1e-3", "", ""]]
    past = from_(table(tmp_path / "t.csv", ["text", "number", "pair"], *rows), space=LISTS)
    assert [cells[:3] for cells in past["first"]] == [[0, 0, 0], [1, 1, 1], [2, None, None]]


def test_settings_that_break_a_constraint_do_not_run_first_and_rank_last(tmp_path):
    trials = [(setting(lr), [{"loss": loss, "mb": mb}]) for lr, loss, mb in ((0.01, 1, 5), (0.02, 2, 50), (0.03, 3, 5))]
    rows = [["0.01", "1", "5"], ["0.02", "2", "50"], ["0.03", "3", "5"]]
    for source in (journaled(tmp_path / "old", trials), table(tmp_path / "t.csv", ["lr", "loss", "last_mb"], *rows)):
        past = from_(source, searcher="forest", constraint=("mb <= 10",))
        assert [cells[0] for cells in past["first"]] == [0.01, 0.03]
        assert [cells[0] for cells in past["told"]] == [0.01, 0.03, 0.02]


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
        (setting(0.07), [*losses(0.6), {"accuracy": math.nan}]),
    ]
    goals = {"metric": "accuracy", "mode": "max"}
    folder = journaled(tmp_path / "old", trials, **goals, prune_by="loss")
    past = from_(folder, searcher="forest", **goals)
    assert [cells[0] for cells in past["told"]] == [0.05, 0.03, 0.04, 0.02, 0.01, 0.07, 0.06]
    assert [cells[0] for cells in past["first"]] == [0.05, 0.03, 0.04]


def test_of_many_trials_the_best_half_is_kept_and_others_evenly(tmp_path, monkeypatch):
    monkeypatch.setattr(known, "MOST_KNOWN", 10)
    trials = [(setting(0.01), [float(number)]) for number in range(100)]
    assert len(from_(journaled(tmp_path / "old", trials), searcher="forest")["told"]) == 10
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
    assert past["note"].endswith("1 of 4 left out, such as one without the metric")


def test_a_parameter_with_the_name_of_one_of_our_columns_is_read_from_the_column_that_it_has(tmp_path):
    space = Space(params={"epochs": tune.choice([111, 222])}, train=print)
    rows = [["3", "222", "0.5"], ["2", "111", "0.4"], ["1", "", "0.3"]]
    given = table(tmp_path / "t.csv", ["epochs", "config/epochs", "best_loss"], *rows)
    past = from_(given, space=space, searcher="forest")
    assert past["first"] == [[0], [1]] and past["told"] == [[0, 2], [1, 3]]


@pytest.mark.parametrize(
    ("column", "failed"), [("status", "failed"), ("status", "ERROR"), ("State", "crashed"), ("state", "FAIL")]
)
def test_a_failed_row_does_not_run_first_though_its_value_was_the_best(tmp_path, column, failed):
    rows = [["0.01", "0.1", failed], ["0.02", "0.9", "completed"], ["0.03", "", failed], ["0.05", "0.5", "pruned"]]
    past = from_(table(tmp_path / "t.csv", ["lr", "best_loss", column], *rows), searcher="forest")
    assert [cells[0] for cells in past["first"]] == [0.05, 0.02]
    assert [cells[0] for cells in past["told"]] == [0.05, 0.02, 0.01, 0.03]
    without = [[lr, status] for lr, _, status in rows]
    assert [cells[0] for cells in from_(table(tmp_path / "u.csv", ["lr", column], *without))["first"]] == [0.02, 0.05]


def test_a_row_whose_training_diverged_does_not_run_first(tmp_path):
    rows = [["0.01", "0.1", "nan"], ["0.02", "0.9", "0.95"]]
    past = from_(table(tmp_path / "t.csv", ["lr", "best_loss", "last_loss"], *rows))
    assert [cells[0] for cells in past["first"]] == [0.02]


def test_a_parameter_named_as_the_metric_does_not_rank_a_table(tmp_path):
    space = Space(params={"loss": tune.choice(["l1", "mse"])}, train=print)
    past = from_(table(tmp_path / "t.csv", ["loss"], ["mse"], ["l1"]), space=space)
    assert (past["first"], past["note"]) == ([[1], [0]], f"{tmp_path / 't.csv'}: 2 settings first")


@pytest.mark.parametrize(
    "text", [" lr , width, loss\n0.01 , 8 ,1\n", "lr;width;loss\n0.01;8;1", "lr\twidth\r\n0.01\t8\r\n"]
)
def test_a_table_may_have_spaces_and_other_separators(tmp_path, text):
    (tmp_path / "T.CSV").write_text(text)
    (tmp_path / "link.csv").symlink_to("T.CSV")
    assert from_(tmp_path / "T.CSV")["first"] == from_(tmp_path / "link.csv")["first"] == [[0.01, 0, None]]


def test_numbers_that_no_trial_can_have_are_left_out(tmp_path):
    space = Space(params={"n": tune.randint(1, 9), "z": tune.randn()}, train=print)
    rows = [["inf", "0", "1", "1"], ["1", "-inf", "1", "1"], ["1", "9" * 400, "1", "1"], ["2", "0", "1", "5000000"]]
    past = from_(table(tmp_path / "t.csv", ["n", "z", "loss", "epochs"], *rows), space=space, searcher="forest")
    assert past["first"] == [[2, 0.0]] and past["told"] == [[2, 0.0, 1_000_000]]
    assert past["note"].endswith("3 of 4 left out, such as n=inf: must be finite")


def test_more_settings_than_trials_are_said_and_more_than_the_journal_keeps_are_refused(tmp_path, monkeypatch):
    file = table(tmp_path / "t.csv", ["lr"], ["0.01"], ["0.02"], ["0.03"])
    with monkeypatch.context() as patch, pytest.raises(RequestError, match="1 source with more than 100 bytes"):
        patch.setattr(known, "MOST_BYTES", 200)
        from_(file)
    assert from_(file, num_samples=2)["note"].endswith("--num-samples 2 runs the first 2")
    assert from_(file, num_samples=3)["note"].endswith(": width, norm/on")


def test_a_name_means_the_experiment_and_not_a_folder_of_this_name_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    journaled(tmp_path / "results" / "old", [(setting(0.01), [1.0])])
    assert from_("old")["first"] == from_("results/old")["first"] == [[0.01, 0, 0]]


def test_an_experiment_comes_from_an_object_store_without_its_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    uri = f"file://{tmp_path}/store"
    with pytest.raises(RequestError, match="no experiment 'latest' in"):
        from_("latest", results=uri)
    journaled(tmp_path / "store" / "old", [(setting(0.01), [1.0])])
    assert from_("latest", results=uri)["first"] == from_("old", results=uri)["first"] == [[0.01, 0, 0]]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("gone", None, "no experiment"),
        ("gone.csv", None, "No such file"),
        ("a.json", "[1, 2", "cannot be read"),
        ("a.json", "[1, 2]", "cannot be read .it holds no JSON object of parameters"),
        ("a.csv", "when,where\n1,2\n", "no setting of this space, whose parameters are lr, width, norm/on;"),
        ("a.csv", "", "a.csv: has no setting;"),
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
