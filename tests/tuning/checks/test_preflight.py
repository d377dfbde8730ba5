"""What shows in one batch ends before the first trial: one line with the user's file and line, and nothing is made."""

import contextlib
import gc
import random
import socket
import weakref

import numpy as np
import pytest
import torch
from killing import SPACES
from ray import tune

from tuner import run
from tuner.errors import output
from tuner.space import Space
from tuner.spec import patience
from tuner.spec.experiment import Experiment
from tuner.spec.spaces import find_space
from tuner.training.data import Arrays, Splits, hold_out
from tuner.tuning import session
from tuner.tuning.call import Request
from tuner.tuning.checks import trying
from tuner.tuning.checks.preflight import packed, settings_of

HEAD = """
import threading
import numpy as np
import torch
from ray import tune
from torch import nn
from tuner.space import Space, Task, mean_of_batches
from tuner.training.data import Arrays, Splits

def data(data_dir):
    stream = np.random.default_rng(7)
    targets = stream.integers(0, 3, 101)
    inputs = stream.normal(size=(101, 4)).astype(np.float32)
    return Splits(train=Arrays(inputs, targets), test=Arrays(inputs, targets))

def model(config):
    return nn.Sequential(nn.Linear(4, config["width"]), nn.ReLU(), nn.Linear(config["width"], 3))

def sgd(parameters, config):
    return torch.optim.SGD(parameters, lr=config["lr"], momentum=0.9)

params = {"width": tune.choice([2, 4, 8]), "lr": tune.loguniform(1e-4, 1e-1)}
lock = threading.Lock()
"""
TASK = dict(data="data", model="model", optimizer="sgd")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command with a space of `text` and `task`; Ray is never reached. Gives exit code, stdout and stderr."""
    from tuner.tuning import driver

    class Reached(Exception):
        """The search would start now."""

    def start(*args):
        raise Reached

    monkeypatch.setattr(driver, "ray_here", lambda *args: contextlib.nullcontext())
    monkeypatch.setattr(session, "make_folder", start)
    monkeypatch.chdir(tmp_path)

    def ran(text="", *options, space="", **task):
        functions = ", ".join(f"{name}={value}" for name, value in {**TASK, **task}.items())
        space = space or f"Space(params=params, task=Task({functions}), num_samples=2, max_epochs=2)"
        file = tmp_path / f"space{len(list(tmp_path.glob('*.py')))}.py"
        file.write_text(f"{HEAD}{text}\nspace = {space}\n")
        results = tmp_path / "results"
        words = ["--space", file.name, "--name", file.stem, "--wandb", "disabled", *options]
        try:
            code = run.main(words)
        except Reached:
            code = "searched"
        made = capsys.readouterr()
        if code == 2:
            assert not (results / file.stem).exists(), "the name is taken"
            assert made.err.startswith("tuner: error: ") and made.err.count("\n") == 1, made.err
        return code, made.out, made.err

    return ran


def line_of(text, part):
    """The line in the file of a part of `text`."""
    whole = HEAD + text
    return whole[: whole.rindex(part)].count("\n") + 1


# Mistake -> code, words of the error, start of the line that it names (none if empty), perhaps fields of the Task.
MISTAKES = {
    "misspelt key": (
        "def model(config):\n    return nn.Linear(4, config['widht'])\n",
        ["model(config) raises KeyError: 'widht'", "did you mean 'width'?", "config has width, lr", "lr=0.0001"],
        "return nn.Linear(4, config['widht'])",
    ),
    "wrong shape": (
        "def model(config):\n    return nn.Linear(5, config['width'])\n",
        ["the model raises RuntimeError", "mat1 and mat2 shapes", "shape (32, 4) float32"],
        "def model",
    ),
    "metric of each example": (
        "def hits(scores, labels):\n    return scores.argmax(1) == labels\n",
        ["metrics['hits']", "returns shape (", "return one number for all examples"],
        "def hits",
        dict(metrics="{'hits': hits}"),
    ),
    "targets of floats": (
        "def data(data_dir):\n    return np.zeros((101, 4), np.float32), np.zeros(101, np.float32)\n",
        ["the loss raises RuntimeError: expected ", "shape (32,) float32", "astype('int64')"],
        "def data",
    ),
    "class numbers from 1": (
        "def data(data_dir):\n    return np.zeros((101, 4), np.float32), np.arange(101) % 4\n",
        ["the train targets (", "go from 0 to 3, but the model has 3 outputs", "renumber the targets"],
        "def data",
    ),
    "a single example in the last batch": (
        "def normed(config):\n    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))\n",
        ["Expected more than 1 value per channel", "too few for batch norm: give another batch_size"],
        "def normed",
        dict(model="normed", batch_size="16"),
    ),
    "stages without an operation": (
        "class Two(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)\n\n"
        "    def forward(self, inputs):\n        return self.two(self.one(inputs).relu())\n\n"
        "def cut(model):\n    return [model.one, model.two]\n",
        ["the stages (", "give other outputs than the whole model", "nn.ReLU()"],
        "def cut",
        dict(model="lambda config: Two()", stages="cut"),
    ),
    "lock in a lambda": (
        "def held():\n    mutex = threading.Lock()\n    return lambda scores, labels: mutex and scores.mean()\n",
        ["metrics['m']", "uses 'mutex', of type lock, which cannot be sent to a worker", "inside the function"],
        "return lambda scores",
        dict(metrics="{'m': held()}"),
    ),
    "lock in a train function": (
        "def train(config):\n    with lock:\n        tune.report({'loss': 1})\n",
        ["train (", "uses 'lock', of type lock"],
        "def train",
        dict(space="Space(params=params, train=train)"),
    ),
    "lock in a choice": (
        "def train(config):\n    tune.report({'loss': 1})\n",
        ["parameter 'guard' (line ", "cannot be sent to a worker process (cannot pickle '_thread.lock' object)"],
        "",
        dict(space="Space(params={'x': tune.uniform(0, 1), 'guard': tune.choice([lock, None])}, train=train)"),
    ),
    "state that is no data": (
        "class Net(nn.Linear):\n    def get_extra_state(self):\n        return np.random.default_rng()\n"
        "    def set_extra_state(self, state):\n        pass\n",
        ["a checkpoint cannot be saved and loaded", "tensors, numbers, texts"],
        "",
        dict(model="lambda config: Net(4, 3)"),
    ),
    "too few examples": (
        "def data(data_dir):\n    return np.zeros((2, 4), np.float32), np.zeros(2, int)\n",
        ["the validation part of the data (", "has no examples", "Splits(validation=...)"],
        "def data",
    ),
    "no --data-dir": (
        "def data(data_dir):\n    return np.load(data_dir / 'x.npy')\n",
        ["needs a folder: give --data-dir DIR"],
        "return np.load",
    ),
    "an exit of the data function": (
        "def data(data_dir):\n    raise SystemExit('no data')\n",
        ["its data function raises SystemExit: no data"],
        "raise SystemExit",
    ),
    "a relative path": (
        "def data(data_dir):\n    return open('x.npy')\n",
        ["its data function raises FileNotFoundError", "x.npy", "relative paths start in "],
        "return open",
    ),
    "another model": (
        "def sgd(parameters, config):\n    return torch.optim.SGD(model(config).parameters(), lr=0.1)\n",
        ["trains no parameter of the model", "use its argument `parameters`"],
        "def sgd",
    ),
    "a loss without gradient": (
        "def hits(scores, labels):\n    return (scores.argmax(1) == labels).float().mean()\n",
        ["the loss (", "has no gradient", "no argmax, ==, round, detach"],
        "def hits",
        dict(loss="hits"),
    ),
    "an exit of the process": (
        "import os\ndef model(config):\n    os._exit(3)\n",
        ["model(config) raises SystemExit: os._exit(3)"],
        "os._exit(3)",
    ),
    "a module instead of a function": (
        "",
        ["model(config) raises TypeError", "a Task needs a function, not a module: model=lambda config: Net(...)"],
        "",
        dict(model="nn.Linear(4, 3)"),
    ),
    "a missing package": (
        "def model(config):\n    import timmm\n",
        ["No module named 'timmm'", "install 'timmm', or correct the name"],
        "import timmm",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_before_the_first_trial(command, name):
    text, words, line, *task = MISTAKES[name]
    code, _, message = command(text, **dict(*task))
    assert code == 2, message
    assert all(word in message for word in words), message
    assert not line or ("space0.py, line " in message and f"line {line_of(text, line)})" in message), message
    assert message.count("space0.py") <= 2, "the file's name is printed again and again"


@pytest.mark.parametrize(
    ("text", "task", "message"),
    [
        ("params[''] = 1\n", {}, "a parameter has the empty name ''; give it a name"),
        (
            "params['lr'] = tune.uniform(float('nan'), 1)\n",
            {},
            "write tune.uniform(low, high), or another domain",
        ),
        ("def f(): f()\nf()\n", {}, "a function, or a dictionary in params, contains itself"),
        ("", dict(space="Space(params=params, train=nn.Linear(4, 2))"), "train= is a module: give a function of the"),
        (
            "",
            dict(space="Space(params=params)"),
            "Space has none of them; give exactly one of task=, train= and",
        ),
        ("", dict(metrics="{'loss': print}"), "has 'loss', which every task reports itself; rename the metric"),
        ("", dict(optimizer="torch.optim.SGD"), "lambda parameters, config: SGD(parameters, lr=config['lr'])"),
        ("", dict(loss="nn.CrossEntropyLoss"), "give an object, not the class: CrossEntropyLoss()"),
        ("", dict(data="lambda: ['a', 'b']"), "returns a list of 2: str, str; return Splits("),
        ("", dict(data="lambda: None"), "returns None; return Splits(train="),
        (
            "",
            dict(data="lambda: (np.zeros((9, 4)), np.array(['cat'] * 9))"),
            "text cannot become a tensor; give numbers",
        ),
    ],
)
def test_a_dry_run_refuses_a_mistake_in_a_declaration(command, tmp_path, text, task, message):
    code, _, said = command(text, "--dry-run", **task)
    assert code == 2 and message in said and str(tmp_path) not in said and len(said) <= 315, said
    assert not (tmp_path / "results").exists()


def test_a_trial_may_have_the_memory_that_this_process_lacks(command):
    text = "def large(config):\n    raise RuntimeError('DefaultCPUAllocator: not enough memory')\n"
    code, out, message = command(text, model="large")
    assert code == "searched" and "with this process's memory: the smallest values, width=8" in out, message


def test_the_random_streams_are_put_back_and_nothing_is_printed(command):
    text = "def loud(config):\n    print('loud')\n    torch.rand(1), np.random.rand()\n    return model(config)\n"
    states = []
    for options in ((), ("--no-preflight",)):
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(3)
        code, out, _ = command(text, *options, model="loud")
        assert code == "searched" and "loud" not in out
        states.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))
    assert states[0] == states[1]


def test_a_dry_run_does_the_same_without_the_network(command):
    assert "preflight   passed in" in command("", "--dry-run")[1]
    text, words, _ = MISTAKES["misspelt key"]
    code, _, message = command(text, "--dry-run")
    assert code == 2 and words[0] in message
    before = socket.getaddrinfo, socket.socket.connect
    text = "def fetched(data_dir):\n    import urllib.request\n    urllib.request.urlopen('http://example.org/x')\n"
    code, out, _ = command(text, "--dry-run", data="fetched")
    assert code == 0 and "preflight   not run: the data comes from the network (example.org)" in out
    assert (socket.getaddrinfo, socket.socket.connect) == before
    code, out, _ = command(MISTAKES["no --data-dir"][0], "--dry-run")
    assert code == 0 and "preflight   not run: " in out and "give --data-dir DIR" in out


def test_a_typo_in_a_later_alternative_is_found(command):
    text = """
params = {"lr": tune.uniform(0, 1), "by": tune.choice([{"name": "sgd", "momentum": 0.9}, {"name": "adam", "n": 1}])}
def optimizer(parameters, config):
    return torch.optim.SGD(parameters, lr=config["lr"], momentum=config["by"]["momentum"])
"""
    code, _, message = command(text, model="lambda config: nn.Linear(4, 3)", optimizer="optimizer")
    assert code == 2 and "config['by'] has name, n" in message and "by/name=adam" in message


def test_each_alternative_is_tried_once_and_depends_on_the_space_alone():
    sgd, adam = {"name": "sgd", "m": tune.uniform(0, 0.9)}, {"name": "adam", "n": tune.randint(1, 4)}
    params = {
        "width": tune.choice([2, 4, 8]),
        "act": tune.choice(["relu", "gelu"]),
        "lr": tune.loguniform(1e-4, 1e-1),
        "noise": tune.randn(3, 1),
        "steps": tune.qrandn(0.3, 1, 0.5),
        "half": tune.sample_from(lambda spec: spec.config.lr / 2),
        "double": tune.sample_from(lambda config: config["half"] * 4),
        "opt": tune.choice([sgd, adam, None]),
        "deep": {"layers": tune.randint(1, 3), "fixed": 3},
    }
    tried = settings_of(Space(params=params, train=print), 0)
    assert settings_of(Space(params=params, train=print), 1) == tried
    opts = ["opt/m=0.9", "opt/name=adam, opt/n=1", "opt/name=adam, opt/n=3", "opt=None"]
    names = ["the smallest values", "width=8", "act=gelu", "lr=0.1", *opts, "deep/layers=2"]
    assert [name for name, _ in tried] == names
    base = {"width": 2, "act": "relu", "lr": 1e-4, "noise": 3, "half": 5e-5, "opt": {"name": "sgd", "m": 0.0}}
    assert tried[0][1] == {**base, "steps": 0.5, "double": 2e-4, "deep": {"layers": 1, "fixed": 3}}
    assert tried[5][1]["opt"] == {"name": "adam", "n": 1} and tried[6][1]["opt"] == {"name": "adam", "n": 3}
    assert tried[3][1]["lr"] == 1e-1 and tried[3][1]["half"] == 5e-2 and tried[4][1]["opt"]["m"] == 0.9


ODD = """
def odd(data_dir):
    splits, part = data(None), data(None).PART
    part.VALUES[77] = np.nan
    return Splits(**{"train": splits.train, "test": splits.test, "PART": part})
def holey(config):
    net = model(config)
    if SOME:
        nn.init.constant_(net[2].bias, float("nan"))
    return net
class Net(nn.Linear):
    def forward(self, x):
        return super().forward(torch.nan_to_num(x))
class Log(nn.Linear):
    def forward(self, x):
        return super().forward(x) / 0 * 0
class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 101
    def __getitem__(self, index):
        return torch.full((4,), float("nan") if index == 3 else torch.rand(())), index % 3
def nan(scores, labels):
    return nn.functional.cross_entropy(scores, labels) * float('nan')
"""


def odd(part="train", values="inputs", some="True"):
    return ODD.replace("PART", part).replace("VALUES", values).replace("SOME", some)


@pytest.mark.parametrize(
    ("task", "words", "line"),
    [
        (dict(data="odd"), ["the train part of the data (", "the first in example 77 (counted from 0)"], "def odd"),
        (dict(model="holey"), ["model(config) (", "makes '2.bias' with NaN or infinite values"], "def holey"),
        (dict(model="lambda config: Log(4, 3)"), ["gives outputs with NaN or infinite"], ""),
        (dict(data="lambda folder: Items()"), ["the train part of the data", "item 3 of the Items"], ""),
        (dict(loss="nan"), ["the loss (", "is not a finite number on the first batch", "log(0)"], "def nan"),
    ],
)
def test_what_is_not_finite_is_named(command, monkeypatch, task, words, line):
    monkeypatch.setattr(trying, "CHUNK_BYTES", 100)  # six rows
    code, _, message = command(odd(), **task)
    assert code == 2 and all(word in message for word in words), message
    assert not line or f"line {line_of(odd(), line)})" in message, message


def test_nan_in_an_example_that_is_held_out_is_named_as_the_users_own(command):
    row = hold_out(Splits(Arrays(np.zeros(101), np.zeros(101))), fraction=0.2, seed=0).rows["validation"][5]
    code, _, message = command(odd().replace("[77]", f"[{row}]"), "--seed", "0", data="odd", validation_fraction=0.2)
    assert code == 2 and "the validation part of the data (" in message, message
    assert f"example {row} of train (counted from 0), which is held out for validation" in message, message


def test_nan_that_a_model_accepts_is_warned_of(command, caplog):
    assert command(odd(), data="odd", model="lambda config: Net(4, 3)")[0] == "searched"
    assert "the train part of the data (" in caplog.text and "in example 77 (counted from 0)" in caplog.text
    caplog.clear()
    assert command(odd("test"), data="odd")[0] == "searched"
    assert "the test part of the data (" in caplog.text


@pytest.mark.parametrize("name", ["done", "timestamp", "config", "improved", "train_s", "cpu_percent"])
@pytest.mark.parametrize("field", ["metrics", "model_metrics"])
def test_a_metric_with_a_name_of_rays_or_our_own_is_refused(command, field, name):
    code, _, message = command(**{field: f"{{{name!r}: lambda *given: 0.5}}"})
    assert code == 2 and f"Task({field}=...) has {name!r}: " in message and "name" in message.rpartition(";")[2]


SORTED = """
def sorted_data(data_dir):
    whole = data(data_dir)
    order = np.argsort(whole.train.targets)
    return Splits(train=whole.train, validation=Arrays(whole.train.inputs[order], whole.train.targets[order]))

def auc(scores, labels):
    assert len(labels.unique()) == 3, "one class is missing"
    return 0.5
"""


def test_a_metric_is_tried_on_targets_of_the_whole_part(command, monkeypatch):
    """The first examples have one class alone."""
    assert command(SORTED, data="sorted_data", metrics="{'auc': auc}")[0] == "searched"
    monkeypatch.setattr(trying, "MAX_OUTPUT_BYTES", 100)
    code, _, message = command(SORTED, data="sorted_data", metrics="{'auc': auc}")
    assert code == 2 and "outputs of all 101 examples are too large to keep; give metrics with `update`" in message
    assert command(SORTED, data="sorted_data", metrics="{'auc': mean_of_batches(lambda s, t: 0.5)}")[0] == "searched"


def test_an_alternative_that_diverges_at_once_is_warned_of(command, caplog):
    assert command(odd(some="config['width'] == 8"), model="holey")[0] == "searched"
    assert "with width=8, model(config) (" in caplog.text and "pruned after its first epoch" in caplog.text


def test_an_interrupt_says_that_nothing_was_made(command, monkeypatch):
    monkeypatch.setattr("tuner.engine.local.signals.end_family", lambda: None)  # would kill the Ray of the other tests
    code, _, message = command("def wrong(config):\n    raise KeyboardInterrupt\n", model="wrong")
    assert (code, message) == (130, "\ninterrupted before the first trial; no folder was made\n")


def test_what_takes_long_is_said_with_the_line(command, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_S", 0.05)
    text = "import time\ndef slow(config):\n    time.sleep(0.4)\n    return model(config)\n"
    code, _, message = command(text, model="slow")
    assert code == "searched"
    start = "still trying the space on one batch (the smallest values; 1 of 3) after 0 s ("
    lines = [line for line in message.splitlines() if line.startswith(start)]
    assert lines and f"line {line_of(text, 'time.sleep')}); Ctrl-C ends it; --no-preflight skips" in lines[0]


def test_the_users_code_prints_no_more_than_a_limit(command, monkeypatch):
    """The import, the data function and the functions that the check calls, which print nothing at all."""
    monkeypatch.setattr(output, "MAX_SPACE_PRINTED", 1000)
    text = "print('i' * 5000)\ndef loud(data_dir):\n    print('d' * 5000)\n    return data(data_dir)\n"
    text += "def loud_model(config):\n    print('m' * 5000)\n    return model(config)\n"
    code, out, _ = command(text, data="loud", model="loud_model")
    assert code == "searched" and (out.count("i" * 1000), out.count("d" * 1000), "mm" in out) == (1, 1, False)
    assert out.count("[what follows was not kept: the output of the space's functions is cut after 1,000 bytes]") == 2


NUMBERS = "def numbers(data_dir):\n    return np.zeros((101, 4), np.float32), np.zeros(101, np.float32)\n"
DISTANCES = """
def distances(data_dir):
    splits = data(data_dir)
    return Splits(train=Arrays(splits.train.inputs, splits.train.inputs.sum(axis=1)))
"""
FROZEN = "def frozen(config):\n    made = model(config)\n    made[0].requires_grad_(False)\n    return made\n"
MEANT = {
    "frozen weights: 10 of 19 (requires_grad=False); no trial trains them": dict(model="frozen"),  # with width 2
    "batch_size 1000 is above the 81 training examples (20 of 101 are for validation)": dict(batch_size="1000"),
    "Using a target size (torch.Size([32])) that is different to the input size": dict(
        data="numbers", model="lambda config: nn.Linear(4, 1)", loss="nn.functional.mse_loss"
    ),
    "seems to compare each output with all targets: outputs of shape (32, 1), targets of shape (32,)": dict(
        data="distances", model="lambda config: nn.Linear(4, 1)", loss="lambda o, t: ((o - t) ** 2).mean()"
    ),
}


@pytest.mark.parametrize("words", MEANT)
def test_what_may_be_meant_is_warned_of(command, caplog, words):
    assert command(NUMBERS + DISTANCES + FROZEN, **MEANT[words])[0] == "searched" and words in caplog.text


def test_the_batch_size_of_the_params_is_compared_with_the_data_not_the_datas_own(command, caplog):
    text = """
def sized(data_dir):
    return Splits(train=data(data_dir).train, constants={"batch_size": 1000})
"""
    space = "Space(params={**params, 'batch_size': 8}, task=Task(data=sized, model=model, optimizer=sgd), max_epochs=2)"
    assert command(text, space=space)[0] == "searched" and "training examples" not in caplog.text


def test_a_loss_that_reshapes_its_outputs_is_not_warned_of(command, caplog):
    loss = "lambda o, t: ((o.squeeze(1) - t - 1) ** 2).mean()"
    assert command(DISTANCES, data="distances", model="lambda config: nn.Linear(4, 1)", loss=loss)[0] == "searched"
    assert "compare each output" not in caplog.text


def test_the_command_holds_no_second_copy_of_the_arrays_that_its_trials_share():
    loaded = find_space(f"{SPACES}/tiny.py")
    inputs, targets = np.ones((100, 4), np.float32), np.arange(100) % 2
    splits = Splits(train=Arrays(inputs, targets), validation=Arrays(inputs, targets))
    request = Request(Experiment(), loaded, {}, [], None, "", splits=splits)
    own, request = weakref.ref(inputs), packed(request)
    assert (request.splits.train.inputs == inputs).all() and request.splits.train.inputs is not inputs
    del inputs, splits
    gc.collect()
    assert own() is None
