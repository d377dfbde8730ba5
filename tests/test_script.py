"""A script that trains by itself: each trial runs the whole file, with its own parameters in three ways."""

import argparse
import json
import pickle
import sys

import pytest
import torch

from tuner import RequestError, load, load_best
from tuner.spec.script import Script, in_trial
from tuner.spec.spaces import find_space

CONSTANTS = """
from tuner import script, tune
config = script({"lr": tune.uniform(0, 1), "depth": tune.choice([1, 2]), "name": "x"})
lr = 0.1
class Settings:
    depth: int = -1
def build(width, lr=0.1, *, depth=2 ** 3):
    return lr, depth
half = lr / 2
lr_of = {"lr": 0.1, "other": 0.1}
seen = [lr, Settings.depth, build(1), build(1, lr=0.3), lr_of["lr"], lr_of["other"], half, config["name"]]
lr = half  # what the script computes stays
seen.append(lr)
name = "own"
"""
OPTIONS = """
import argparse
from tuner import script, tune

script({"lr": tune.uniform(0, 1), "batch_size": tune.choice([8]), "data": "/d", "fast": True, "must": 3})

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--must", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=14)
    args = parser.parse_args()
    seen.append(vars(args))
    momentum = dict(lr=0.5)  # an option of this name exists, so constants stay
    seen.append(momentum["lr"])

seen = []
if __name__ == "__main__":
    main()
"""


def written(tmp_path, text, name="main.py"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def ran(path, config):
    """The globals of the script's trial."""
    from unittest import mock

    import tuner.spec.script as module

    kept = {}
    with (
        in_trial(config, "loss"),
        mock.patch.object(module, "exec", lambda c, d: (exec(c, d), kept.update(d)), create=True),
    ):
        Script(str(path), path.read_text())(config)
    return kept


def test_the_constants_of_a_parameters_name_are_the_trials(tmp_path):
    kept = ran(written(tmp_path, CONSTANTS), {"lr": 0.7, "depth": 5, "name": "x"})
    assert kept["seen"] == [0.7, 5, (0.7, 5), (0.7, 5), 0.7, 0.1, 0.35, "x", 0.35]


def test_the_plan_says_where_each_parameter_reaches_the_script(tmp_path, search_here):
    space = find_space(str(written(tmp_path, CONSTANTS))).space
    assert space.train.targets(space.params) == {
        "lr": "in place of the constants in lines 4, 7, 10, 11",
        "depth": "in place of the constants in lines 6, 7",
        "name": "in place of the constant in line 14",
    }
    reporting = OPTIONS + "    tune.report({'loss': 1.0})\n"
    planned = search_here(str(written(tmp_path, reporting, "options.py")), "--dry-run")
    assert (
        "lr: --lr; batch_size: --batch-size; data: data of its command line; fast: --fast; must: --must\n"
        in planned.out
    )


def test_the_options_of_a_parameters_name_are_the_trials(tmp_path):
    config = {"lr": 0.7, "batch_size": 8, "data": "/d", "fast": True, "must": 3}
    path = written(tmp_path, OPTIONS)
    before, parse = sys.argv, argparse.ArgumentParser.parse_known_args
    args, constant = ran(path, config)["seen"]
    assert args == {"lr": 0.7, "batch_size": 8, "data": "/d", "fast": True, "must": 3, "epochs": 14}
    assert constant == 0.5
    assert sys.argv is before and argparse.ArgumentParser.parse_known_args is parse


def test_the_space_ends_the_import_and_can_be_sent(tmp_path):
    path = written(tmp_path, OPTIONS.replace("def main", "raise OSError('trains')\n\ndef main"))
    space = find_space(str(path)).space
    assert space.searched.keys() == {"lr", "batch_size"} and space.constants["must"] == 3
    assert pickle.loads(pickle.dumps(space.train)) == space.train


def test_a_script_runs_as_python_runs_it(tmp_path):
    """As `__main__`, with the modules beside it; its classes can be pickled; an error has its own file and line."""
    written(tmp_path, "VALUE = 4", "beside_the_script.py")
    text = """
from tuner import script, tune
script({"lr": tune.uniform(0, 1)})
import pickle
from beside_the_script import VALUE
class Own:
    lr = 1.0
copied = pickle.loads(pickle.dumps(Own()))
"""
    path = written(tmp_path, text)
    main, paths = sys.modules["__main__"], list(sys.path)
    kept = ran(path, {"lr": 0.5})
    assert kept["VALUE"] == 4 and kept["copied"].lr == 0.5 and kept["__name__"] == "__main__"
    assert sys.modules["__main__"] is main and sys.path == paths
    with pytest.raises(ZeroDivisionError) as raised, in_trial({"lr": 0.5}, "loss"):
        Script(str(path), text + "1 / 0\n")({"lr": 0.5})
    assert (raised.traceback[-1].path, raised.traceback[-1].lineno) == (path, 8)


def test_a_parameter_that_would_reach_nothing_is_refused(tmp_path):
    text = 'from tuner import script, tune\nscript({"learning_rat": tune.uniform(0, 1)})\nlearning_rate = 0.1\n'
    path = written(tmp_path, text)
    with pytest.raises(RequestError) as refused:
        find_space(str(path))
    assert str(refused.value) == (
        f"--space {path}: parameter 'learning_rat' (line 2) would reach nothing in {path.name}; did you mean "
        f"'learning_rate'?; name an option of the script, or a variable to which it gives a constant, or use what "
        f"script() returns ({path}, line 2)"
    )
    with pytest.raises(RequestError, match="would reach nothing"):  # a comment, or a value that is computed
        find_space(str(written(tmp_path, f"{text}# learning_rat\nlearning_rat = 2 * learning_rate\n", "other.py")))
    written(tmp_path, "parser.add_argument('--learning-rat')", "options.py")
    assert find_space(str(written(tmp_path, text + "#\n"))).space.searched  # a file beside it has the option
    text = text.replace('learning_rat"', 'width"')
    assert find_space(str(written(tmp_path, text.replace("\nscript", "\nc = script"), "returned.py"))).space.searched
    for line in ("lr, width = 0.1, 8", "settings.width = 8"):
        space = find_space(str(written(tmp_path, f"{text}{line}\n", "assigned.py"))).space
        assert space.train.targets(space.params) == {"width": "in place of the constant in line 4"}


def test_a_function_without_a_config_gets_it_by_its_parser(tmp_path, search_here):
    text = """
import argparse
from tuner import Space, tune

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=9.0)
    tune.report({"loss": parser.parse_args().lr})

def deaf():
    tune.report({"loss": 1})

space = Space(params={"lr": tune.uniform(0, 1)}, train=main)
other = Space(params={"lr": tune.uniform(0, 1)}, train=deaf)
"""
    path = written(tmp_path, text)
    done = search_here(str(path), "--num-samples", "2")
    assert done.code == 0, done.err
    assert [trial.reports[0].metrics["loss"] for trial in done.record.trials] == [
        trial.config["lr"] for trial in done.record.trials
    ]
    done = search_here(f"{path}:other", "--num-samples", "2", name="deaf")
    assert (done.code, done.err) == (1, "") and "the parameters did not reach it" in done.out


def test_a_script_is_searched_and_resumed(tmp_path, search_here):
    text = CONSTANTS + "\nfor epoch in range(3):\n    tune.report({'loss': seen[0] / (epoch + 1)})\n"
    done = search_here(str(written(tmp_path, text)), "--num-samples", "2", "--scheduler", "fifo")
    assert done.code == 0, done.err
    for trial in done.record.trials:
        assert [report.metrics["loss"] for report in trial.reports] == [trial.config["lr"] / n for n in (1, 2, 3)]
    assert json.loads((done.folder / "best" / "config.json").read_text())["config"]["name"] == "x"


WRITING = """
from tuner import script, tune
script({"lr": tune.uniform(0, 1)}, metric="loss", mode="min", max_epochs=2)
import os
import torch
lr = 0.1
os.makedirs("checkpoints", exist_ok=True)
if not os.path.exists("data/images"):
    os.makedirs("data")
    open("data/images", "w").write("downloaded")
    open("downloads.txt", "w").close()
for epoch in range(2):
    torch.save({"lr": lr}, "model.pt")
    torch.save({"lr": lr, "epoch": epoch}, "checkpoints/model.pt")
    tune.report({"loss": abs(lr - 0.3)})
"""


def test_the_files_of_the_winner_are_kept(tmp_path, search_here, monkeypatch):
    """Those of other trials and of the user are not overwritten, and a download is made once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for name in ("model.pt", "checkpoints/model.pt"):
        (tmp_path / name).write_text("the user's")
    ran = search_here(
        str(written(tmp_path, WRITING)), "--num-samples", "4", "--scheduler", "fifo", "--max-concurrent-trials", "1"
    )
    best, lr = ran.folder / "best", {id: trial.config["lr"] for id, trial in ran.trials.items()}
    winner = json.loads((best / "config.json").read_text())["config"]["lr"]
    assert winner == min(lr.values(), key=lambda each: abs(each - 0.3))
    assert torch.load(best / "files" / "model.pt") == {"lr": winner}
    assert torch.load(best / "files" / "checkpoints" / "model.pt") == {"lr": winner, "epoch": 1}
    for trial, own in lr.items():
        assert torch.load(ran.folder / "ray" / trial / "files" / "model.pt") == {"lr": own}
    assert (tmp_path / "model.pt").read_text() == (tmp_path / "checkpoints" / "model.pt").read_text() == "the user's"
    assert (tmp_path / "data" / "images").exists() and len(list(ran.folder.glob("ray/*/files/downloads.txt"))) == 1
    assert load(ran.folder).best.files == load_best(ran.folder).files == best / "files"
    assert "`files/` has what the trial wrote" in (best / "README.md").read_text()
