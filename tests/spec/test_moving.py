"""Scripts as strangers write them: where parameters reach them, and which mistakes end before the first trial."""

import argparse
import sys
import types

import pytest

from tuner import RequestError, run
from tuner.engine.workers.reports import Reporter
from tuner.integrations.optuna import with_trial
from tuner.spec.script import in_trial
from tuner.spec.spaces import find_space

DECLARED = 'from tuner import script, tune\nscript({"lr": tune.uniform(0, 1), "width": tune.choice([8, 16])})\n'


@pytest.fixture
def seen(monkeypatch):
    """What a script appends to `seen`."""
    module = types.ModuleType("seen_by_the_script")
    module.seen = []
    monkeypatch.setitem(sys.modules, "seen_by_the_script", module)
    return module.seen


@pytest.fixture
def moved(tmp_path):
    """`moved(text, **files)` writes a script and files beside it; gives the script's space."""

    def write(text, name="main.py", **files):
        for file, content in files.items():
            (tmp_path / file.replace("__", ".")).write_text(content)
        (tmp_path / name).write_text(f"from seen_by_the_script import seen\n{text}")
        return find_space(str(tmp_path / name)).space

    return write


def ran(space, config):
    with in_trial(config, "loss"):
        space.train(config)


def test_the_options_of_click_are_the_trials(moved, seen):
    text = """
import click
@click.command()
@click.option("--lr", default=0.1)
@click.option("--width/--no-width", default=False)
@click.option("--must", required=True)
def main(**options):
    seen.append(options)
main(standalone_mode=False)
"""
    space = moved(DECLARED + text)
    assert space.train.targets(space.params) == {"lr": "--lr", "width": "--width"}
    ran(space, {"lr": 0.5, "width": True, "must": "x"})
    assert seen == [{"lr": 0.5, "width": True, "must": "x"}]


def test_an_option_is_found_by_its_flag_and_by_its_dest(moved, seen):
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", dest="lr", type=float, default=9.0)
parser.add_argument("-w", "--width", dest="hidden", type=int, default=1)
seen.append(vars(parser.parse_args()))
"""
    ran(moved(DECLARED + text), {"lr": 0.5, "width": 8})
    assert seen == [{"lr": 0.5, "hidden": 8}]


def test_a_constant_names_the_subcommand(moved, seen):
    text = """
import argparse
parser = argparse.ArgumentParser()
sub = parser.add_subparsers(dest="command", required=True)
train = sub.add_parser("train")
train.add_argument("--lr", type=float, default=1.0)
train.add_argument("--width", type=int, required=True)
seen.append(vars(parser.parse_args()))
"""
    space = moved(DECLARED + text)
    ran(space, {"lr": 0.5, "width": 8, "command": "train"})
    assert seen == [{"command": "train", "lr": 0.5, "width": 8}]
    with pytest.raises(ValueError, match="command line: the following arguments are required: command; give such"):
        ran(space, {"lr": 0.5, "width": 8})
    assert argparse.ArgumentParser.error.__module__ == "argparse"


def test_the_constants_of_a_module_beside_the_script_are_the_trials(moved, seen):
    """Unless the script has the name itself; each trial imports the module anew."""
    files = {
        "settings_beside__py": "lr = 0.1\nwidth = 4\n",
        "net_beside__py": "import settings_beside as s\nlr = s.lr\n",
    }
    text = "import net_beside, settings_beside\nwidth = 2\nseen.append((net_beside.lr, settings_beside.width, width))\n"
    space = moved(DECLARED + text, **files)
    assert space.train.targets(space.params)["lr"] == "in place of the constant in line 1 of settings_beside.py"
    ran(space, {"lr": 0.5, "width": 8})
    ran(space, {"lr": 0.25, "width": 16})
    assert seen == [(0.5, 4, 8), (0.25, 4, 16)]
    assert "settings_beside" not in sys.modules and "net_beside" not in sys.modules


def test_the_default_of_a_dataclass_field_is_the_trials(moved, seen):
    text = """
from dataclasses import dataclass, field
@dataclass
class Settings:
    lr: float = field(default=0.1, metadata={"help": "rate"})
    width: int = 4
seen.append(Settings())
"""
    ran(moved(DECLARED + text), {"lr": 0.5, "width": 8})
    assert (seen[0].lr, seen[0].width) == (0.5, 8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('p.add_argument("--lr", type=int)\n', r"'lr' is tune.uniform, but --lr \(.*main.py, line 4\) takes whole"),
        ('p.add_argument("--width", choices=[8, 32])\n', r"'width' has the value 16, but --width \(.*4\) takes 8, 32"),
        (
            "lr = width = 1\ntune.report(loss=lr, n=1)\n",
            r'line 5\): report takes .* tune.report\({"loss": lr, "n": 1}\)',
        ),
    ],
)
def test_a_mistake_in_the_script_ends_before_the_first_trial(moved, seen, text, words):
    with pytest.raises(RequestError, match=words):
        moved(f"{DECLARED}{text}lr, width = 1, 2\n")


def test_a_script_that_never_reports_is_refused(search_here, tmp_path):
    (tmp_path / "main.py").write_text(f"{DECLARED}lr, width = 1, 2\n")
    done = search_here(str(tmp_path / "main.py"), "--dry-run")
    assert done.code == 2 and 'main.py never reports a metric: write tune.report({"loss": value})' in done.err
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "log.py").write_text("tune.report({})")
    assert search_here(str(tmp_path / "main.py"), "--dry-run").code == 0


def test_a_function_that_reports_in_a_wrong_way_is_refused(search_here, tmp_path):
    text = "from tuner import Space, tune\ndef train(config):\n    tune.report(loss=1)\n"
    (tmp_path / "own.py").write_text(f'{text}space = Space(params={{"x": tune.uniform(0, 1)}}, train=train)\n')
    done = search_here(str(tmp_path / "own.py"), "--dry-run")
    assert done.code == 2 and 'own.py, line 3): report takes a dictionary; write tune.report({"loss": 1})' in done.err


def test_an_option_of_the_script_on_our_command_line_is_explained(tmp_path, capsys):
    (tmp_path / "main.py").write_text('parser.add_argument("--epochs", type=int)\n')
    assert run.main(["--space", str(tmp_path / "main.py"), "--epochs", "3"]) == 2
    assert (
        '--epochs is an option of main.py, not of this command: give it as a constant, script({"epochs": ..., ...})'
        in (capsys.readouterr().err)
    )
    assert run.main(["--space", str(tmp_path / "main.py"), "--epoch", "3"]) == 2
    assert "--epoch: is no option" in capsys.readouterr().err


STUDY = """
from tuner.integrations import optuna
def objective(trial):
    trial.set_user_attr("where", trial.number)
    return trial.suggest_float("x", 0, 1)
def main():
    study = optuna.create_study(direction="maximize", storage="sqlite:///never.db", study_name="own")
    study.enqueue_trial({"x": 0.9})
    study.optimize(objective, n_trials=7, callbacks=[print])
    raise AssertionError("the results of many trials follow")
if __name__ == "__main__":
    main()
"""
X = 'from tuner import script, tune\nscript({"x": tune.uniform(0, 1)})\n'


def test_a_study_is_a_search(search_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(X + STUDY)
    done = search_here(str(tmp_path / "study.py"))
    assert done.code == 0 and not (tmp_path / "never.db").exists(), done.err
    assert {trial.status for trial in done.record.trials} == {"completed"} and len(done.record.trials) == 7
    assert [trial.reports[0].metrics["value"] for trial in done.record.trials] == [
        trial.config["x"] for trial in done.record.trials
    ]


def test_what_is_asked_is_told_once(moved, seen):
    text = """
from tuner.integrations import optuna
study = optuna.create_study()
for _ in range(3):
    trial = study.ask()
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr("seen", [x, trial.system_attrs, trial.study.direction.name])
    seen.append(trial.user_attrs)
    study.tell(trial, x)
"""
    from tuner.spec.script import Ended

    with pytest.raises(Ended) as ended:
        ran(moved(X + text), {"x": 0.5})
    assert ended.value.value == 0.5 and seen == [{"seen": [0.5, {}, "MINIMIZE"]}]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'direction="maximize"',
            'directions=["minimize", "maximize"]',
            r"2 objectives \(.*line 10\), but a search",
        ),
        (
            "from tuner.integrations import optuna",
            "import optuna",
            r"study: replace the import of optuna \(.*line 5\) by from",
        ),
        (
            "    raise",
            "    study.optimize(other)\n    raise",
            r"several obj.*lines 12, 13.*with_trial\(other\)",
        ),
    ],
)
def test_a_study_that_is_no_search_is_refused(moved, seen, old, new, words):
    with pytest.raises(RequestError, match=words):
        moved(X + STUDY.replace(old, new))


def two_values(trial):
    def inner():
        return 1, 2

    return trial.suggest_float("x", 0, 1), inner()


def test_an_objective_of_several_values_is_refused_before_the_first_trial():
    with pytest.raises(RequestError, match=r"several values \(.*test_moving.py, line \d+\).*objective\(trial\)\[0\]"):
        with_trial(two_values)
    assert callable(with_trial(lambda trial: two_values(trial)[0]))


RETURNS = """
import os
from tuner import Space, tune
def train(config):
    assert os.environ["WANDB_MODE"] == "disabled"  # --wandb disabled holds for what a function logs by itself
    return config["x"]
space = Space(params={"x": tune.choice([3, 2, 1, 4])}, train=train)
"""


def test_a_returned_value_completes_its_trial(search_here, tmp_path):
    """ASHA would prune half of the trials at their only report; a resume judges them in the same way."""
    (tmp_path / "returns.py").write_text(RETURNS)
    space, options = str(tmp_path / "returns.py"), ("--searcher", "grid")
    done = search_here(space, *options)
    assert [trial.status for trial in done.record.trials] == ["completed"] * 4, done.err
    assert all(event.get("final") for event in done.events if event["event"] == "report")
    again = search_here("", "--resume", "test")
    assert [trial.status for trial in again.record.trials] == ["completed"] * 4, again.err


def test_a_report_of_another_process_is_refused(monkeypatch):
    reporter = Reporter(lambda metrics: None, "loss")
    monkeypatch.setattr("os.getpid", lambda: -1)  # as in a process that the trial forks
    with pytest.raises(RuntimeError, match="another process than the trial's; send the metric to the trial's own"):
        reporter({"loss": 1})
