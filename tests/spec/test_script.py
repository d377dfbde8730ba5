"""A script that trains by itself: how it gets its parameters, which mistakes are refused, and its searches."""

import argparse
import json
import pickle
import sys
import types

import click  # noqa: F401  before any test: else what waits for its import in one test stays for the next ones
import pytest
import torch
from ray import tune

from tuner import RequestError, load, load_best, run
from tuner.spec.script import Ended, in_trial
from tuner.spec.space import Space
from tuner.spec.spaces import find_space

DECLARED = 'from tuner import script, tune\nscript({"lr": tune.uniform(0, 1), "width": tune.choice([8, 16])})\n'


@pytest.fixture(autouse=True)
def own_process(monkeypatch):
    """Sets back what a script sets in the process of its trial."""
    for name in ("argv", "path", "meta_path"):
        monkeypatch.setattr(sys, name, [*getattr(sys, name)])
    before = dict(sys.modules)
    yield
    sys.modules["__main__"] = before["__main__"]


@pytest.fixture
def seen(monkeypatch):
    """What a script appends to `seen`."""
    module = types.ModuleType("seen_by_the_script")
    module.seen = []
    monkeypatch.setitem(sys.modules, "seen_by_the_script", module)
    return module.seen


@pytest.fixture
def moved(tmp_path, seen):
    """`moved(text, **files)` writes a script and files beside it; gives the script's space."""

    def write(text, name="main.py", **files):
        for file, content in files.items():
            (tmp_path / file.replace("__", ".")).write_text(content)
        (tmp_path / name).write_text(f"from seen_by_the_script import seen\n{text}")
        return find_space(str(tmp_path / name)).space

    return write


def ran(space, config):
    before, path, meta_path = dict(sys.modules), sys.path, [*sys.meta_path]
    try:
        with in_trial(config, "loss"):
            space.train(config)
    finally:  # in a search, the trial's process ends
        for name in [name for name, module in sys.modules.items() if before.get(name) is not module]:
            del sys.modules[name]
        sys.modules["__main__"], sys.path, sys.meta_path = before["__main__"], path, meta_path


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
seen += [lr, Settings.depth, build(1), build(1, lr=0.3), lr_of["lr"], lr_of["other"], half, config["name"]]
lr = half  # what the script computes stays
seen.append(lr)
name = "own"
assert {lr: 0.2}[lr] == 0.2  # a key that is computed names no parameter
from dataclasses import dataclass, field
@dataclass
class Fields:
    lr: float = field(default=0.1, metadata={"help": "rate"})
other, depth = 0.1, 4
seen += [Fields().lr, other, depth]
class torch:
    class jit:
        script = dict  # torch.jit.script declares no parameters
seen.append(torch.jit.script(lr=0.1))
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
    momentum = dict(lr=0.5)  # an option of this name exists, so constants stay
    seen.extend([vars(parser.parse_args()), momentum["lr"]])

if __name__ == "__main__":
    main()
"""


def test_parameters_replace_the_constants_of_their_names(moved, seen):
    space = moved(CONSTANTS)
    assert space.train.targets(space.params) == {
        "lr": "in place of the constants in lines 5, 8, 11, 12, 20, 26",
        "depth": "in place of the constants in lines 7, 8, 21",
        "name": "in place of the constant in line 15",
    }
    ran(space, {"lr": 0.7, "depth": 5, "name": "x"})
    assert seen == [0.7, 5, (0.7, 5), (0.7, 5), 0.7, 0.1, 0.35, "x", 0.35, 0.7, 0.1, 5, {"lr": 0.7}]


def test_parameters_are_the_defaults_of_the_options_of_their_names(moved, seen, search_here, tmp_path):
    config = {"lr": 0.7, "batch_size": 8, "data": "/d", "fast": True, "must": 3}
    before, parse = sys.argv, argparse.ArgumentParser.parse_known_args
    ran(moved(OPTIONS), config)
    assert seen == [{**config, "epochs": 14}, 0.5]
    assert sys.argv is before and argparse.ArgumentParser.parse_known_args is parse
    moved(OPTIONS + "    tune.report({'loss': 1.0})\n")
    planned = search_here(str(tmp_path / "main.py"), "--dry-run").out
    assert "lr: --lr; batch_size: --batch-size; data: data of its command line; fast: --fast; must: --must\n" in planned


@pytest.mark.parametrize(
    ("text", "config", "expected"),
    [
        (
            'parser.add_argument("--learning-rate", dest="lr", type=float, default=9.0)\n'
            'parser.add_argument("-w", "--width", dest="hidden", type=int, default=1)\n',
            {"lr": 0.5, "width": 8},
            {"lr": 0.5, "hidden": 8},
        ),
        (
            'train = parser.add_subparsers(dest="command", required=True).add_parser("train")\n'
            'train.add_argument("--lr", type=float, default=1.0); train.add_argument("--width", required=True)\n',
            {"lr": 0.5, "width": 8, "command": "train"},
            {"command": "train", "lr": 0.5, "width": "8"},  # an option without a type is a text
        ),
    ],
)
def test_an_option_is_found_by_its_flag_and_its_dest_and_a_subcommand_by_its_dest(moved, seen, text, config, expected):
    parsed = "import argparse\nparser = argparse.ArgumentParser()\n" + text + "seen.append(vars(parser.parse_args()))\n"
    ran(space := moved(DECLARED + parsed), config)
    assert seen == [expected]
    if config.pop("command", None):
        with pytest.raises(ValueError, match="command line: the following arguments are required: command; give such"):
            ran(space, config)


FLAGS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--no-bias", dest="bias", action="store_false")
parser.add_argument("--half", dest="precision", action="store_const", const=16, default=32)
parser.add_argument("--adam", dest="kind", action="store_const", const="adam", default="sgd")
parser.add_argument("--lion", dest="kind", action="store_const", const="lion")
parser.add_argument("--flip", dest="augment", action="append_const", const="flip", default=["crop"])
parser.add_argument("--cache", action=argparse.BooleanOptionalAction, default=True)
group = parser.add_mutually_exclusive_group(required=True)
group.add_argument("--lr", type=float)
group.add_argument("--lr-per-sample", type=float)
for _ in range(2):  # what one call changes, the next one does not find
    args = parser.parse_args()
seen.append(vars(args))
"""
NOT_GIVEN = {"bias": True, "precision": 32, "kind": "sgd", "augment": ["crop"], "cache": True, "lr_per_sample": None}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"no_bias": True, "half": True, "adam": True, "flip": True},
         {"bias": False, "precision": 16, "kind": "adam", "augment": ["crop", "flip"]}),
        ({"no_bias": False, "half": False, "adam": False, "flip": False}, {}),
        ({"adam": False, "lion": True}, {"kind": "lion"}),
        ({"bias": False, "no_bias": False, "precision": 8, "half": 32, "kind": "x"},  # a dest takes precedence
         {"bias": False, "precision": 8, "kind": "x"}),
        ({"half": 16, "cache": False}, {"precision": 16, "cache": False}),
        ({"no_cache": True}, {"cache": False}),
    ],
)  # fmt: skip
def test_a_flag_is_given_if_its_parameter_is_true(moved, seen, config, expected):
    ran(moved(DECLARED + "width = 1\n" + FLAGS), {"lr": 0.5, **config})
    assert seen == [NOT_GIVEN | {"lr": 0.5} | expected]


TYPED = """
import argparse
class Doubled(argparse.Action):
    def __call__(self, parser, namespace, value, option=None):
        setattr(namespace, self.dest, 2 * value)
parser = argparse.ArgumentParser()
parser.add_argument("--text", default="2")
parser.add_argument("--whole", type=int)
parser.add_argument("--number", type=float, default=1)
parser.add_argument("--known", type=int, choices=[8, 16])
parser.add_argument("--halved", type=lambda text: float(text) / 2)
parser.add_argument("--cut", type=lambda text: text[1:])
parser.add_argument("--doubled", type=int, action=Doubled)
parser.add_argument("--several", type=int, nargs="+", default=[0])
parser.add_argument("--pair", type=float, nargs=2)
parser.add_argument("--added", type=int, action="append", default=[1])
parser.add_argument("--longer", nargs="*", action="extend")
parser.add_argument("--maybe", type=int, nargs="?", const=3, default=4)
parser.add_argument("--told", type=bool)
parser.add_argument("--pairs", type=int, nargs=2, action="append", default=argparse.SUPPRESS)
parser.add_argument("--low", type=float)
parser.add_argument("--switch", type=int)
parser.add_argument("--longest", type=int, nargs="+", choices=[8, 16])
"""


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"text": 4}, "--text 4"),
        ({"text": "4"}, "--text 4"),
        ({"text": 0.1}, "--text 0.1"),
        ({"text": True}, "--text True"),
        ({"whole": 4}, "--whole 4"),
        ({"whole": 32.0}, "--whole 32"),  # of tune.quniform
        ({"number": 4}, "--number 4"),
        ({"number": 1e-5}, "--number 1e-05"),
        ({"number": 0.1 + 0.2}, "--number 0.30000000000000004"),
        ({"known": 16}, "--known 16"),
        ({"halved": 3}, "--halved 3"),
        ({"cut": "xyz"}, "--cut xyz"),
        ({"doubled": 4}, "--doubled 4"),
        ({"several": [1, 2]}, "--several 1 2"),
        ({"several": 5}, "--several 5"),
        ({"pair": (1, 2.5)}, "--pair 1 2.5"),
        ({"added": [5, 6]}, "--added 5 --added 6"),
        ({"longer": ["a", "b"]}, "--longer a b"),
        ({"maybe": 7}, "--maybe 7"),
        ({"told": True}, "--told True"),
        ({"pairs": [5, 6]}, "--pairs 5 6"),
        ({"low": -0.5}, "--low=-0.5"),
        ({"switch": True}, "--switch 1"),
        ({"longest": [8, 16]}, "--longest 8 16"),
    ],
)  # fmt: skip
def test_an_option_makes_of_a_parameter_what_it_makes_of_typed_words(moved, seen, config, words):
    ran(moved(DECLARED + "lr = 1\nwidth = 1\n" + TYPED + "seen.append(vars(parser.parse_args()))\n"), config)
    typed = {}
    exec(TYPED, typed)
    assert seen == [vars(typed["parser"].parse_args(words.split()))]


def test_what_an_option_does_not_take_is_named_and_what_nobody_can_type_is_passed_as_it_is(moved, seen):
    space = moved(DECLARED + "lr = 1\nwidth = 1\n" + TYPED + "seen.append(vars(parser.parse_args()))\n")
    for config, why in (
        ({"whole": 0.5}, "--whole: invalid int value: '0.5'"),
        ({"known": 9}, "--known: invalid choice"),
    ):
        with pytest.raises(ValueError, match=f"command line: argument {why}.*; search values that the option takes"):
            ran(space, config)
    ran(space, {"text": {"a": 1}, "whole": None, "told": False, "halved": [1, 2]})
    assert {name: seen[0][name] for name in ("text", "whole", "told", "halved")} == {
        "text": {"a": 1}, "whole": None, "told": False, "halved": [1, 2],
    }  # fmt: skip


@pytest.mark.parametrize("file", ["options_beside.py", "options_beside/__init__.py"])
def test_a_constant_stays_once_an_option_of_an_imported_module_has_the_value(moved, seen, tmp_path, file):
    (tmp_path / "options_beside").mkdir()
    options = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\n"
    text = "width = 1\nimport options_beside\nargs = options_beside.parser.parse_args()\n"
    text += "seen += [args.lr, dict(lr=0.01)['lr']]\n"
    (tmp_path / file).write_text(options)
    space = moved(DECLARED + text)
    ran(space, {"lr": 0.5, "width": 8})
    assert seen == [0.5, 0.01]


def test_a_constant_is_replaced_if_nobody_parses_the_option_that_a_module_has(moved, seen):
    module = "import argparse\ndef main():\n    parser = argparse.ArgumentParser()\n"
    module += "    parser.add_argument('--lr', type=float)\n    parser.parse_args()\n"
    text = "import tool_beside\nwidth = 1\nlr = 0.1\nseen.append(lr)\n"
    ran(moved(DECLARED + text, tool_beside__py=module), {"lr": 0.5, "width": 8})
    assert seen == [0.5]


@pytest.mark.parametrize(
    ("declared", "given", "expected"),
    [
        ("", ["--lr", "0.1", "--width", "2"], {"lr": 0.5, "width": 8}),
        ("parser.add_argument('rest', nargs='*')", ["--lr", "0.1", "--", "a"], {"lr": 0.5, "width": 8, "rest": ["a"]}),
        ("parser.add_argument('rest', nargs='...')", ["a", "--b"], {"lr": 0.5, "width": 8, "rest": ["a", "--b"]}),
        ("parser.add_subparsers(dest='command').add_parser('fit')", ["fit"], {"lr": 0.5, "width": 8, "command": "fit"}),
    ],
)
def test_a_parameter_comes_after_the_words_that_the_script_itself_gives(moved, seen, declared, given, expected):
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float)\n"
    text += f"parser.add_argument('--width', type=int)\n{declared}\nseen.append(vars(parser.parse_args({given})))\n"
    ran(moved(DECLARED + text), {"lr": 0.5, "width": 8})
    assert seen == [expected]


def test_a_flag_takes_no_other_value(moved):
    with pytest.raises(ValueError, match="command line: half=8: the option takes no value; search True and False"):
        ran(moved(DECLARED + "width = 1\n" + FLAGS), {"lr": 0.5, "half": 8})


def test_parameters_take_the_place_of_what_a_given_namespace_has(moved, seen):
    text = """
import argparse
class Defaults:
    lr, width = 9.0, 1
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--width", type=int, choices=[8, 16], default=None)
seen += [vars(parser.parse_args(namespace=argparse.Namespace(lr=9.0, width=1, other=2)))]
args = parser.parse_args(namespace=Defaults())
seen += [args.lr, args.width]
"""
    ran(moved(DECLARED.replace("[8, 16]", "[None, 8]") + text), {"lr": "0.5", "width": None})
    assert seen == [{"lr": 0.5, "width": None, "other": 2}, 0.5, None]


CLICK = """
import click
@click.group()
def cli():
    pass
@cli.command(context_settings={"default_map": {"other": 7}})
@click.option("--lr", "rate", type=float, default=0.1)
@click.option("--width/--narrow", " /-n", default=True)
@click.option("--upper", "case", flag_value="upper", default="lower")
@click.option("--other", default=1)
@click.option("--norm", default="batch")
def train(**options):
    seen.append(options)
cli(standalone_mode=False)
"""


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"lr": 0.5, "width": False, "upper": True, "norm": None},
         {"rate": 0.5, "width": False, "case": "upper", "norm": None}),
        ({"rate": 0.5, "narrow": True, "case": "x"}, {"rate": 0.5, "width": False, "case": "x"}),
        ({"lr": 0.5, "upper": False}, {"rate": 0.5, "case": "lower"}),
    ],
)  # fmt: skip
def test_an_option_of_click_is_found_by_its_flags_and_its_name_and_a_subcommand_by_command(
    moved, seen, config, expected
):
    space = moved(DECLARED.replace("script({", 'script({"command": "train", ') + CLICK)
    ran(space, config | {"command": "train"})
    assert seen == [{"width": True, "other": 7, "norm": "batch"} | expected]
    with pytest.raises(ValueError, match="it has the subcommands train, and none is given; name one in params"):
        ran(space, config)


def test_a_mistake_in_clicks_command_line_is_named(moved):
    text = (
        "import click\n@click.command()\n@click.option('--lr', type=int, default=1)\ndef main(lr):\n    pass\nmain()\n"
    )
    with pytest.raises(
        ValueError, match="command line: Invalid value for '--lr': 'x' is not a valid integer; give such"
    ):
        ran(moved(DECLARED + "width = 1\n" + text), {"lr": "x"})


def test_parameters_are_the_defaults_of_clicks_options(moved, seen):
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


def test_parameters_replace_the_constants_of_modules_beside_the_script(moved, seen):
    """Unless the script has the name itself; each trial imports the module anew."""
    files = {
        "settings_beside__py": "lr = 0.1\nwidth = 4\n",
        "net_beside__py": "import settings_beside as s\nlr = s.lr\n",
    }
    text = "import net_beside, settings_beside\nwidth = 2\nseen.append((net_beside.lr, settings_beside.width, width))\n"
    space, paths = moved(DECLARED + text, **files), list(sys.path)
    assert space.train.targets(space.params)["lr"] == "in place of the constant in line 1 of settings_beside.py"
    ran(space, {"lr": 0.5, "width": 8})
    ran(space, {"lr": 0.25, "width": 16})
    assert seen == [(0.5, 4, 8), (0.25, 4, 16)]
    assert "settings_beside" not in sys.modules and "net_beside" not in sys.modules and sys.path == paths


def test_a_script_runs_as_python_runs_it(moved, seen, tmp_path):
    """As `__main__`; its import ends at `script`; its classes can be pickled; an error has its own file and line."""
    text = """
import pickle
class Own:
    lr, width = 1.0, 1
seen += [pickle.loads(pickle.dumps(Own())).lr, __name__, __file__]
1 / 0
"""
    space, main = moved(DECLARED + text), sys.modules["__main__"]
    assert pickle.loads(pickle.dumps(space.train)) == space.train and seen == []
    with pytest.raises(ZeroDivisionError) as raised:
        ran(space, {"lr": 0.5, "width": 8})
    assert seen == [0.5, "__main__", str(tmp_path / "main.py")] and sys.modules["__main__"] is main
    assert (raised.traceback[-1].path, raised.traceback[-1].lineno) == (tmp_path / "main.py", 8)


def test_a_parameter_that_would_reach_nothing_is_refused(moved, tmp_path):
    text = 'from tuner import script, tune\nscript({"learning_rat": tune.uniform(0, 1)})\nlearning_rate = 0.1\n'
    with pytest.raises(RequestError) as refused:
        moved(text)
    path = tmp_path / "main.py"
    assert str(refused.value) == (
        f"--space {path}: parameter 'learning_rat' (line 3) would reach nothing in main.py; did you mean "
        f"'learning_rate'?; give it the name of an option or of a constant of the script, or use what "
        f"script() returns ({path}, line 3)"
    )
    with pytest.raises(RequestError, match="would reach nothing"):  # a comment, or a value that is computed
        moved(f"{text}# learning_rat\nlearning_rat = 2 * learning_rate\n")
    assert moved(text.replace("\nscript", "\nc = script")).searched
    space = moved(f"{text}settings.learning_rat = 8\n")
    assert space.train.targets(space.params) == {"learning_rat": "in place of the constant in line 5"}
    assert moved(text, options__py="parser.add_argument('--learning-rat')").searched  # a file beside it has the option


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('p.add_argument("--lr", type=int)\n', r"'lr' is tune.uniform, but --lr \(.*main.py, line 4\) takes whole"),
        ('p.add_argument("--width", choices=[8, 32])\n', r"'width' has the value 16, but --width \(.*4\) takes 8, 32"),
        ("lr = width = 1\ntune.report(loss=lr, n=1)\n", r'5\): report takes .* tune.report\({"loss": lr, "n": 1}\)'),
    ],
)
def test_a_mistake_in_the_script_ends_before_the_first_trial(moved, text, words):
    with pytest.raises(RequestError, match=words):
        moved(f"{DECLARED}{text}lr, width = 1, 2\n")


def test_a_script_that_reports_nothing_fails_with_what_to_write(search_here, tmp_path):
    # The word decides nothing: this one is in a comment, beside that of a Trainer.
    (tmp_path / "main.py").write_text(f"{DECLARED}lr, width = 1, 2  # tune.report(...), Trainer(...)\n")
    done = search_here(str(tmp_path / "main.py"), "--num-samples", "1")
    assert done.code == 1
    assert 'the script ended without a report: write tune.report({"loss": value}) where an epoch' in done.out + done.err


def test_a_function_that_reports_in_a_wrong_way_is_refused(search_here, tmp_path):
    text = "from tuner import Space, tune\ndef train(config):\n    tune.report(loss=1)\n"
    (tmp_path / "own.py").write_text(f'{text}space = Space(params={{"x": tune.uniform(0, 1)}}, train=train)\n')
    done = search_here(str(tmp_path / "own.py"), "--dry-run")
    assert done.code == 2 and 'own.py, line 3): report takes a dictionary; write tune.report({"loss": 1})' in done.err


def test_an_option_of_the_script_on_our_command_line_is_explained(tmp_path, capsys):
    (tmp_path / "main.py").write_text('parser.add_argument("--epochs", type=int)\n')
    assert run.main(["--space", str(tmp_path / "main.py"), "--epochs", "3"]) == 2
    message = (
        '--epochs is an option of main.py, not of this command: give it as a constant, script({"epochs": ..., ...})'
    )
    assert message in capsys.readouterr().err


STUDY = """
from tuner import script, tune
script({"x": tune.uniform(0, 1)})
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


def test_a_study_is_a_search(search_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.py").write_text(STUDY)
    done = search_here(str(tmp_path / "study.py"))
    assert done.code == 0 and not (tmp_path / "never.db").exists(), done.err
    assert {trial.status for trial in done.record.trials} == {"completed"} and len(done.record.trials) == 7
    assert all(trial.reports[0].metrics["value"] == trial.config["x"] for trial in done.record.trials)
    assert done.record.experiment.mode == "max"


def test_what_is_asked_is_told_once(moved, seen):
    text = """
from tuner import script, tune
script({"x": tune.uniform(0, 1)})
from tuner.integrations import optuna
study = optuna.create_study()
for _ in range(3):
    trial = study.ask()
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr("seen", [x, trial.system_attrs, trial.study.direction.name])
    seen.append(trial.user_attrs)
    study.tell(trial, x)
"""
    with pytest.raises(Ended) as ended:
        ran(moved(text), {"x": 0.5})
    assert ended.value.value == 0.5 and seen == [{"seen": [0.5, {}, "MINIMIZE"]}]


MINIMIZED = STUDY.replace('direction="maximize", ', "")


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("", "min"), ("direction=None", "min"), ('directions=["maximize"]', "max"), ("direction=WAY", "max"),
        ("directions=[WAY]", "max"), ("directions=WAYS", "max"), ("direction=settings.WAY_THERE", "max"),
        ("direction=optuna.study.StudyDirection.MAXIMIZE", "max"),
        *((given, "") for given in ("direction=args.way", "direction=BOTH", "**OPTIONS", 'directions=BOTH.split()')),
    ],
)  # fmt: skip
def test_the_direction_of_a_study_is_known_or_asked_for(moved, given, mode):
    constants = 'WAY = "maximize"\nWAYS = [WAY]\nBOTH = "minimize"\nBOTH = "maximize"\nimport settings\n'
    text = MINIMIZED.replace("create_study(", f"create_study({given}{', ' * bool(given)}") + constants
    files = {"settings__py": 'WAY_THERE: str = "maximize"\n'}
    if mode:
        assert moved(text, **files).mode == mode
        return
    with pytest.raises(RequestError, match=r'known only when the script runs \(.*line 10: .*say it .*mode="max"\)'):
        moved(text, **files)
    assert moved(text.replace("script({", 'script(mode="max", params={'), **files).mode == "max"


def test_a_study_that_is_loaded_or_has_two_directions_is_asked_for(moved):
    loaded = STUDY.replace('create_study(direction="maximize"', "load_study(").replace("(, ", "(")
    with pytest.raises(RequestError, match="known only when the script runs"):
        moved(loaded)
    assert moved(loaded.replace("script({", 'script(mode="max", params={')).metric == "value"
    with pytest.raises(RequestError, match=r"studies of both directions \(.*lines 10, 14\); search one"):
        moved(STUDY.replace("if __name__", "optuna.create_study()\nif __name__"))


def test_a_study_whose_direction_is_not_the_searchs_is_told(moved):
    space = moved(STUDY)
    with (
        in_trial({"x": 0.5}, "value", "min"),
        pytest.raises(ValueError, match="direction is maximize, but .* mode min"),
    ):
        space.train({"x": 0.5})


def test_what_an_objective_reports_is_for_the_pruner_and_what_it_returns_is_its_value(moved):
    assert moved(STUDY).prune_by == ""
    for reports in ("trial.report(1.0, 0)", "t.report(step=1, value=2)", "XGBoostPruningCallback(trial, 'auc')"):
        space = moved(STUDY.replace("    trial.set_user_attr", f"    {reports}\n    trial.set_user_attr"))
        assert (space.metric, space.mode, space.prune_by, space.prune_mode) == (
            "value",
            "max",
            "intermediate_value",
            "max",
        )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('direction="maximize"', 'directions=["minimize", "maximize"]', r"2 objectives \(.*line 10\), but a search"),
        ("from tuner.integrations import", "import os,", r"study: replace import .*line 5\) by from tuner"),
        ("    raise", "    study.optimize(other)\n    raise", r"several obj.*lines 12, 13.*with_trial\(other\)"),
    ],
)
def test_a_study_that_is_no_search_is_refused(moved, old, new, words):
    with pytest.raises(RequestError, match=words):
        moved(STUDY.replace(old, new))


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
    (tmp_path / "main.py").write_text(text)
    done = search_here(str(tmp_path / "main.py"), "--num-samples", "2")
    assert done.code == 0, done.err
    assert len(done.record.trials) == 2
    assert all(trial.reports[0].metrics["loss"] == trial.config["lr"] for trial in done.record.trials)
    done = search_here(f"{tmp_path}/main.py:other", "--num-samples", "2", name="deaf")
    assert (done.code, done.err) == (1, "") and "the parameters did not reach it" in done.out


def test_a_thread_of_a_script_may_report_after_its_last_line(tmp_path, search):
    thread = "import threading, time\ndef late():\n    time.sleep(0.3)\n    tune.report({'loss': lr})\n"
    (tmp_path / "main.py").write_text(f"{DECLARED}lr, width = 1, 2\n{thread}threading.Thread(target=late).start()\n")
    ran = search(str(tmp_path / "main.py"), "--num-samples", "1")
    assert [(trial.status, len(trial.reports)) for trial in ran.record.trials] == [("completed", 1)], ran.out


WRITING = """
from tuner import script, tune
script({"lr": tune.uniform(0, 1), "name": "x"}, metric="loss", mode="min")
import torch
lr, name = 0.1, "own"
for epoch in range(12):
    tune.report({"loss": abs(lr - 0.3)})
torch.save({"lr": lr, "epoch": epoch}, "model.pt")
"""


def test_hyperband_asks_for_the_length_of_a_script(tmp_path, capsys):
    (tmp_path / "main.py").write_text(WRITING)
    options = [
        "--space",
        str(tmp_path / "main.py"),
        "--scheduler",
        "hyperband",
        "--results",
        str(tmp_path),
        "--dry-run",
    ]
    note = "NOTE: hyperband compares trials up to epoch 1000; give --max-epochs its number of reports"
    for more, asked in (([], True), (["--max-epochs", "12"], False)):
        assert run.main([*options, *more]) == 0 and (note in capsys.readouterr().out) == asked


def test_a_script_is_searched_and_the_files_of_the_winner_are_kept(tmp_path, search_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.pt").write_text("the user's")
    (tmp_path / "main.py").write_text(WRITING)
    options = ("--num-samples", "4", "--scheduler", "fifo", "--max-concurrent-trials", "1")
    ran = search_here(str(tmp_path / "main.py"), *options)
    best, lr = ran.folder / "best", {id: trial.config["lr"] for id, trial in ran.trials.items()}
    for trial in ran.record.trials:
        assert [report.metrics["loss"] for report in trial.reports] == [abs(trial.config["lr"] - 0.3)] * 12
    config = json.loads((best / "config.json").read_text())["config"]
    winner = min(lr.values(), key=lambda each: abs(each - 0.3))
    assert config == {"lr": winner, "name": "x"}
    assert torch.load(best / "files" / "model.pt") == {"lr": winner, "epoch": 11}
    for trial, own in lr.items():
        assert torch.load(ran.folder / "ray" / trial / "files" / "model.pt") == {"lr": own, "epoch": 11}
    assert (tmp_path / "model.pt").read_text() == "the user's"
    assert load(ran.folder).best.files == load_best(ran.folder).files == best / "files"
    assert "print(best.files)  # what the trial wrote" in (best / "README.md").read_text()


LENGTH = """
from tuner import script, tune
script({"lr": tune.uniform(0, 1), "epochs": 3}, metric="loss", length="epochs", seeded=True)
import json, tempfile
lr, epochs, seed, begin = 0.1, 90, 0, 0
if checkpoint := tune.get_checkpoint():
    begin = json.load(open(checkpoint.path + "/epoch.json"))
for epoch in range(begin + 1, epochs + 1):
    with tempfile.TemporaryDirectory() as folder:
        json.dump(epoch, open(folder + "/epoch.json", "w"))
        tune.report({"loss": lr + 1 / epoch, "seed": seed}, checkpoint=tune.Checkpoint.from_directory(folder))
open("model", "w").write(f"{begin} to {epoch}")
"""


def test_a_trial_that_ends_early_teaches_no_length_if_it_is_declared(tmp_path, search_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.py").write_text(LENGTH.replace("begin + 1, epochs + 1", "1, 2"))
    ran = search_here(str(tmp_path / "main.py"), "--num-samples", "2", "--scheduler", "asha")
    assert [trial.last_epoch for trial in ran.record.trials] == [1, 1]
    assert not [event for event in ran.events if event["event"] == "length_learned"]


def test_the_length_of_a_script_is_declared_once(tmp_path, search_here, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.py").write_text(LENGTH)
    ran = search_here(str(tmp_path / "main.py"), "--num-samples", "4")
    assert ran.code == 0 and "asha: compares trials after epochs 1, 2 and continues" in ran.out, ran.out + ran.err
    assert "epochs: in place of the constant in line 5; seed: in place of the constant in line 5" in ran.out
    ends = {(trial.status, trial.last_epoch, trial.reason) for trial in ran.record.trials if trial.status != "pruned"}
    assert ends == {("completed", 3, "trained its 3 epochs")}
    assert not [event for event in ran.events if event["event"] == "length_learned"]
    assert len({trial.reports[0].metrics["seed"] for trial in ran.record.trials}) == 4
    assert (ran.folder / "best" / "files" / "model").read_text() == "0 to 3"
    before = load(ran.folder).best
    assert before.config["epochs"] == 3
    ran = search_here(str(tmp_path / "main.py"), "--resume", "test", "--max-epochs", "5")
    assert ran.code == 0 and (ran.folder / "best" / "files" / "model").read_text() == "3 to 5", ran.out + ran.err
    assert {trial.last_epoch for trial in ran.record.trials if trial.status == "completed"} == {5}
    assert load(ran.folder).best.config["epochs"] == 5


def test_a_script_that_reports_beyond_its_length_is_stopped_and_the_reason_says_so(tmp_path, search_here):
    (tmp_path / "main.py").write_text(LENGTH.replace("epochs + 1)", "epochs + 9)"))
    ran = search_here(str(tmp_path / "main.py"), "--num-samples", "1")
    (trial,) = ran.record.trials
    assert (trial.status, trial.last_epoch, trial.reason) == (
        "completed",
        4,
        "trained its 3 epochs, and would report more",
    )


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (
            '{"lr": tune.uniform(0, 1)}, length="epoch"',
            "parameter 'epoch' would reach nothing in main.py; did you mean",
        ),
        ('{"lr": tune.uniform(0, 1)}, seeded=True', "parameter 'seed' would reach nothing"),
        ('{"lr": tune.uniform(0, 1), "epochs": 3}, length="epochs", max_epochs=4', "params has epochs=3"),
        ('{"lr": tune.uniform(0, 1), "epochs": tune.choice([1])}, length="epochs"', "the same in all trials"),
        ('{"lr": tune.uniform(0, 1)}, length=3', "length=3: must be the name of an option"),
    ],
)
def test_a_length_or_seed_that_would_reach_nothing_is_refused(moved, declared, why):
    with pytest.raises(RequestError, match=why):
        moved(f"from tuner import script, tune\nscript({declared})\nlr, epochs = 0.1, 9\n")


def test_the_number_of_epochs_of_a_declared_length(moved):
    text = (
        'from tuner import script, tune\nscript({"lr": tune.uniform(0, 1)}, length="epochs"MORE)\nlr, epochs = 0.1, 9\n'
    )
    assert moved(text.replace("MORE", "")).max_epochs == 10
    assert moved(text.replace("MORE", ", max_epochs=7")).max_epochs == 7
    for wrong in ({"task": None, "command": "train {lr}"},):
        with pytest.raises(ValueError, match="length='epochs' is for train=.*{max_epochs}"):
            Space(params={"lr": tune.uniform(0, 1)}, length="epochs", **wrong)
