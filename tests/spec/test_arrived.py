"""What a trial sees of its parameters at its first report: which have arrived, and which live values are others."""

import argparse
import itertools
import types
from decimal import Decimal
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tuner.spec import arrived
from tuner.spec.arrived import by_path, is_same, look, text_of
from tuner.spec.script import in_trial
from tuner.spec.spaces import find_space

LR = 0.3
DECLARED = 'from tuner import script, tune\nscript({"lr": tune.uniform(0, 1), "width": tune.choice([8, 16])})\n'
DATACLASS = "from dataclasses import dataclass\n@dataclass\nclass Args:\n"
ARGS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--width", type=int, default=4)
"""


@pytest.fixture(autouse=True)
def without_the_tests_own_variables(tmp_path, monkeypatch):
    monkeypatch.setattr(arrived, "is_users", lambda file: isinstance(file, str) and str(tmp_path) in file)


@pytest.fixture
def seen(tmp_path):
    """`seen(text)` runs a script as a trial with lr 0.3 and width 8; gives what its trial sees, by parameter."""

    def write(text, **files):
        for file, content in files.items():
            (tmp_path / file.replace("__", ".")).write_text(content)
        (tmp_path / "main.py").write_text(f"{DECLARED}{text}\nif 0:\n    lr, width = 1, 1")  # else a name is unknown
        space = find_space(str(tmp_path / "main.py")).space
        with in_trial({"lr": LR, "width": 8}, "loss") as trial:
            space.train(trial.config)
            return trial.look()

    return write


@pytest.mark.parametrize(
    "text",
    [
        ARGS + "args = parser.parse_args()",
        ARGS + "def main():\n    return parser.parse_args().width\nmain()",  # the namespace is gone
        ARGS + "args = parser.parse_args()\nargs.warm = args.lr / 10\nargs.lr_max = 1.0",
        "settings = {'lr': 0.1, 'width': 4}",
        "class Trainer:\n    def __init__(self):\n        self.config = {'lr': 0.1, 'width': 4}\ntrainer = Trainer()",
        DATACLASS + "    lr: float = 0.1\n    width: int = 4\nargs = Args()",
        "from collections import namedtuple\nargs = namedtuple('Args', 'lr width')(lr=0.1, width=4)",
        "class Config:\n    lr = 0.1\n    width = '4'",
        "lr = 0.1\nlr_used = lr\nfor lr in (lr * 0.5, lr * 0.1, lr):\n    pass\nwidth = 4",
        "import numpy as np\nlr = 0.1\nlr = np.float32(lr)\nwidth = 4\nwidth = str(width)",
        "import torch\nlr = 0.1\nlr, width = torch.tensor(lr), torch.nn.Linear(4, 1)\nold = {'width': '8.0'}",
        "import torch\nwidth = 4\nopt = torch.optim.SGD([torch.ones(1)], lr=0.1)\n"
        "torch.optim.lr_scheduler.LinearLR(opt)\nassert opt.param_groups[0]['lr'] != 0.3",
    ],
)
def test_a_value_has_arrived_if_any_live_object_of_its_name_has_it(seen, text):
    assert {name: each.arrived for name, each in seen(text).items()} == {"lr": True, "width": True}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (ARGS + "args = parser.parse_args()\nargs.lr = 0.05", "args.lr"),
        (ARGS + "args = parser.parse_args()\nargs = argparse.Namespace(**{**vars(args), 'lr': 0.5 / 10})", "args.lr"),
        (ARGS + "cfg = vars(parser.parse_args())\ncfg.update([('lr', 0.05)])", "cfg['lr']"),
        (
            ARGS + "def settings():\n    return {**vars(parser.parse_args()), **{'lr': 0.05}}\ncfg = settings()",
            "cfg['lr']",
        ),
        ("lr = 0.1\nexec(open('other.py').read())\nassert lr == 0.05", "lr"),
        ("lr = 0.1\ndef main(lr='--lr', **more):\n    return more\nlr = float('0.05')", "lr"),
        (
            DATACLASS + "    lr: float = 0.1\nargs = Args(lr=float('0.05'))",
            "args.lr",
        ),
        ("class config:\n    lr = 0.1\nconfig.lr = float('0.05')", "config.lr"),
        ("import settings\nsettings.lr = float('0.05')", "settings.lr"),
        ("a = {'b': {'--lr': float('0.05')}}\nlr = 'lr of'", "a['b']['--lr']"),
    ],
)
def test_another_value_under_its_name_tells_against_a_parameter(seen, text, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.py").write_text("lr = 0.05")
    found = seen(text, settings__py="lr = 0.1")["lr"]
    assert (found.own, found.arrived, found.live) == ("0.3", False, {"0.05": place})


@pytest.mark.parametrize(
    "text",
    [
        "lr = {}.get('none')",  # a placeholder
        "lr = float('0')",  # a schedule's start
        "lr = print",
        "lr = [float('0.2')]",
        "checkpoint = {'lr': float('0.2'), 'weights': __import__('torch').ones(2)}",
        "class Layer:\n    def __init__(self):\n        self.lr, self.run = float('0.2'), print\nlayer = Layer()",
        "class Odd:\n    __dict__ = property(lambda self: 1 / 0)\nodd, lr = Odd(), float('0.2')",  # what cannot be read
        "lr = __import__('torch').ones(1, requires_grad=True)",
        DATACLASS + "    lr: float = float('0.2')",  # a default
    ],
)
def test_what_is_no_setting_tells_nothing(seen, text):
    found = seen(text)["lr"]
    assert (found.arrived, found.live) == (False, {})


def test_a_look_that_takes_long_is_cut_off_and_tells_nothing(seen, monkeypatch):
    many = "lr = float('0.05')\nmany = {str(n): {'lr': {'a': {}}} for n in range(250)}"
    monkeypatch.setattr(arrived, "LONGEST_S", 10.0)
    assert seen(many)["lr"].live == {"0.05": "lr"}
    monkeypatch.setattr(arrived, "LONGEST_S", 0.0)
    assert seen(many)["lr"] == ("0.3", False, {})


def test_a_look_ends_after_fifteen_milliseconds(monkeypatch):
    held = {"big": [{str(n): {str(m): {} for m in range(200)} for n in range(200)}] * 10}
    times = itertools.count()  # each object takes a millisecond
    monkeypatch.setattr(arrived.time, "thread_time", lambda: next(times) / 1000)
    assert look({"lr": LR}, held) == {"lr": (str(LR), False, {})}
    assert next(times) < 20


def test_objects_of_other_packages_are_read_by_what_they_are(monkeypatch):
    class Config:
        def __init__(self, items):
            self._items = items

    Config.__module__ = "wandb.sdk.wandb_config"
    assert look({"lr": LR}, {"wandb.config": Config({"lr": 0.05})})["lr"].live == {"0.05": "wandb.config.lr"}
    made = types.SimpleNamespace(to_container=lambda config, resolve: {"optimizer": {"lr": 0.05}})
    monkeypatch.setitem(arrived.sys.modules, "omegaconf", types.SimpleNamespace(OmegaConf=made))
    Config.__module__ = "omegaconf.dictconfig"
    assert look({"lr": LR}, {"cfg": Config({})})["lr"].live == {"0.05": "cfg.optimizer['lr']"}


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.5), ("weight_decay", 0.25), ("batch_size", 7)])
def test_libraries_objects_show_that_a_value_has_arrived_and_never_that_it_has_not(name, value):
    def held(**changed):
        given = {"momentum": 0.9, "weight_decay": 0.0, "batch_size": 2} | changed
        loader = DataLoader(range(9), batch_size=given.pop("batch_size"))
        return {"loader": loader, "optimizer": torch.optim.SGD([torch.ones(1)], lr=0.1, **given)}

    assert look({name: value}, held(**{name: value}))[name].arrived
    found = look({name: value}, held())[name]
    assert (found.arrived, found.live) == (False, {})


def test_nested_parameters_are_looked_for_by_their_own_name():
    config = {"optimizer": {"name": "adam", "lr": LR}, "depth": 2}
    found = look(dict(by_path(config)), {"config": {"optimizer": {"name": "adam", "lr": 0.05}, "depth": 2}})
    assert found["optimizer/name"].arrived and found["depth"].arrived and not found["optimizer"].arrived
    assert found["optimizer/lr"].live == {"0.05": "config['optimizer']['lr']"}


class Color(Enum):
    RED = "red"
    BLUE = 2


@pytest.mark.parametrize(
    ("own", "live"),
    [
        (0.01, "0.01"), (0.01, np.float32(0.01)), (0.01, torch.tensor(0.01)), (16, 16.0), ("16", 16), (True, 1),
        (True, "true"), (False, 0), ("a/b", Path("a/b")), ("RED", Color.RED), ("red", Color.RED), (2, Color.BLUE),
        ([1, 2], (1.0, "2")), ((0.9, 0.999), torch.tensor([0.9, 0.999])), (0.1, Decimal("0.1")), (64.3, 64),
        ({"a": 1}, {"a": 1}), (torch.nn.ReLU, torch.nn.ReLU), (torch.nn.ReLU, "ReLU"), (1e-3, "1e-3"),
    ],
)  # fmt: skip
def test_one_value_in_other_forms_is_the_same(own, live):
    assert is_same(own, live)


@pytest.mark.parametrize(("own", "live"), [(0.01, 0.1), ("a", "b"), (True, 0), ([1], [2]), (0.3, 0), ("a", None)])
def test_other_values_are_not_the_same(own, live):
    assert not is_same(own, live)


def test_only_plain_values_have_a_text():
    assert text_of(print) is text_of(None) is text_of({}) is text_of(torch.ones(100)) is text_of([print]) is None
    assert text_of(argparse.Namespace()) is None and text_of(float("nan")) == "nan"


def test_a_config_that_the_code_has_changed_is_seen_and_so_is_the_rate_of_its_optimizer():
    """As in a Task, whose functions all get one config."""
    one, other = (torch.optim.SGD([{"params": [torch.ones(1)]}], lr=lr) for lr in (0.05, LR))
    found = look({"lr": LR}, {"config": {"lr": 0.05}, "optimizer": one})["lr"]
    assert (found.arrived, found.live) == (False, {"0.05": "config['lr']"})
    assert look({"lr": LR}, {"config": {"lr": 0.05}, "optimizer": other})["lr"].arrived
    assert look({"learning_rate": LR}, {"optimizer": one})["learning_rate"].live == {"0.05": "optimizer.learning_rate"}
