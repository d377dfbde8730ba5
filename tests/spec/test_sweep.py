"""A W&B `sweep.yaml` is a space: its commands, parameters, searcher and rungs are those that W&B would use."""

import math
import sys

import numpy as np
import pytest
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from tuner import RequestError
from tuner.spec import domains, parameters, sweep
from tuner.spec.spaces import find_space

HEAD = """
program: train.py
method: {method}
metric: {{name: loss, goal: maximize}}
parameters:
  lr: {{distribution: log_uniform_values, min: 0.001, max: 0.1}}
  width: {{values: [8, 16, 32]}}
"""
TRAIN = """
import argparse, json, os, sys, wandb
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--width", type=int)
options = parser.parse_args()
with wandb.init(project="p") as run:
    assert dict(run.config) == vars(options), (dict(run.config), options)
    for epoch in range(3):
        run.log({"width": options.width}, step=epoch)
        run.log({"loss": options.lr * (epoch + 1)}, step=epoch)
"""


def loaded(tmp_path, text, name="sweep.yaml"):
    (tmp_path / name).write_text(text)
    return find_space(str(tmp_path / name))


def test_a_sweep_is_searched_as_it_stands_and_resumed(search, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("project")  # not in the folder of results
    (tmp_path / "train.py").write_text(TRAIN)
    text = HEAD.format(method="random").replace("train.py", str(tmp_path / "train.py")) + "run_cap: 2\nproject: p\n"
    command = f'command: [{sys.executable}, "${{program}}", "${{args}}"]\n'
    path = tmp_path / "sweep.yaml"
    path.write_text(text + command)
    ran = search(str(path))
    assert ran.code == 0, ran.out + ran.err
    assert (
        "NOTE: not used of the sweep: project" in ran.out and "NOTE: no early_terminate: no trial is pruned" in ran.out
    )
    for trial in ran.record.trials:
        config = trial.config
        assert [each.metrics["loss"] for each in trial.reports] == [config["lr"] * n for n in (1, 2, 3)]
        assert [each.metrics["width"] for each in trial.reports] == [config["width"]] * 3
    assert len(ran.record.trials) == 2
    path.write_text(text.replace("0.1}", "0.2}") + command)
    changed = search(None, "--resume", ran.folder.name, "--num-samples", "3")
    assert changed.code == 2 and "has changed since the search: its code is not run" in changed.err
    changed = search(str(path), "--resume", ran.folder.name, "--num-samples", "3")
    assert changed.code == 2 and "the space has changed: lr was" in changed.err
    path.write_text(text + command)
    more = search(None, "--resume", ran.folder.name, "--num-samples", "3")
    assert more.code == 0 and len(more.record.trials) == 3, more.out + more.err


CONFIG = {"lr": 0.1, "amp": True, "bias": False, "none": None, "text": "a b", "sizes": [1, "x"], "optim": {"lr": 2}}


@pytest.mark.parametrize(
    "macro",
    ["args", "args_no_equals", "args_no_hyphens", "args_no_boolean_flags", "args_json"]
    + ["args_append_hydra", "args_override_hydra"],
)
def test_a_macro_stands_for_the_words_of_wandbs_agent(macro):
    theirs = create_sweep_command_args({"args": {name: {"value": value} for name, value in CONFIG.items()}})
    command = sweep.SweepCommand(("python", f"${{{macro}}}", "{lr}", "x=${args}"))
    assert command.filled(CONFIG) == ["python", *theirs[macro], "{lr}", "x=${args}"]


def test_the_other_macros_and_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("KEY", "secret")
    given = [
        "${env}",
        "A=1",
        "${interpreter}",
        "-u",
        "${program}",
        "--key=${envvar:KEY}${envvar:NO_SUCH}",
        "${args_json_file}",
    ]
    text = f"command: {given}"
    space = loaded(tmp_path, HEAD.format(method="random") + text).space
    words = ["/usr/bin/env", "A=1", "python", "-u", "train.py"]
    assert space.train.filled({"lr": 1}, {"config": "own.json"}) == [*words, "--key=secretNO_SUCH", "own.json"]
    assert "secret" not in str(space.train.filled({"lr": 1})) and "secret" not in repr(space.train)
    assert "command: NO_SUCH is not set, so its name takes its place" in space.notes
    plain = loaded(tmp_path, HEAD.format(method="random")).space
    assert plain.train.filled({"lr": 1}) == ["python", "train.py", "--lr=1"]  # env would start the same python


DISTRIBUTIONS = {
    "values": {"values": ["x", "y", 3]},
    "probabilities": {"values": ["x", "y", "z"], "probabilities": [0.7, 0.1, 0.2]},
    "lists": {"values": [[1, 2], [3]], "probabilities": [0.9, 0.1]},
    "int": {"min": 1, "max": 3},
    "uniform": {"min": 0.5, "max": 3},
    "named": {"distribution": "uniform", "min": 1, "max": 3},
    "log": {"distribution": "log_uniform", "min": -3, "max": 0},
    "log_values": {"distribution": "log_uniform_values", "min": 1e-4, "max": 0.1},
    "inv_log": {"distribution": "inv_log_uniform", "min": 1, "max": 3},
    "inv_log_values": {"distribution": "inv_log_uniform_values", "min": 1e-4, "max": 0.1},
    "q_ones": {"distribution": "q_uniform", "min": 1, "max": 9},
    "q_whole": {"distribution": "q_uniform", "q": 4, "min": 3, "max": 21},
    "q_floats": {"distribution": "q_uniform", "q": 0.25, "min": 0.1, "max": 2},
    "q_log": {"distribution": "q_log_uniform", "q": 2, "min": 1, "max": 4},
    "q_log_values": {"distribution": "q_log_uniform_values", "q": 8, "min": 32, "max": 256},
    "q_log_ones": {"distribution": "q_log_uniform_values", "min": 2, "max": 16},
    "normal": {"distribution": "normal", "mu": 1, "sigma": 2},
    "q_normal": {"distribution": "q_normal", "mu": 1, "sigma": 2, "q": 0.5},
}
# The values of a range with a step; of the others, the least and the greatest, and the share of values in their middle.
DRAWN = {
    "values": {"x", "y", 3},
    "int": {1, 2, 3},
    "q_ones": set(range(1, 10)),
    "q_whole": {4, 8, 12, 16, 20},
    "q_floats": {0.25 * n for n in range(9)},
    "q_log": set(range(2, 56, 2)),
    "q_log_values": set(range(32, 257, 8)),
    "q_log_ones": set(range(2, 17)),
}
ENDS = {
    "uniform": (0.5, 3, 1.75),
    "named": (1, 3, 2),
    "log": (math.exp(-3), 1, math.exp(-1.5)),
    "log_values": (1e-4, 0.1, math.sqrt(1e-5)),
    "inv_log": (math.exp(-3), math.exp(-1), math.exp(-2)),
    "inv_log_values": (1e-4, 0.1, math.sqrt(1e-5)),
}


def drawn(name, number=3000):
    (domain,) = parameters.encode(sweep.params_of({name: DISTRIBUTIONS[name]})).values()
    return domain.sample(size=number, random_state=np.random.default_rng(0))


@pytest.mark.parametrize("name", DRAWN)
def test_a_listed_parameter_has_the_values_of_wandb(name):
    values = drawn(name)
    assert set(values) == DRAWN[name] and (name == "q_floats") == any(isinstance(each, float) for each in values)


@pytest.mark.parametrize("name", ENDS)
def test_a_range_has_the_ends_and_the_middle_of_wandb(name):
    low, high, middle = ENDS[name]
    values = np.array(drawn(name))
    assert low <= values.min() < low + 0.1 * (middle - low) and high - 0.1 * (high - middle) < values.max() <= high
    assert 0.46 < np.mean(values < middle) < 0.54


def test_values_have_their_probabilities_also_lists_and_a_resume_knows_them():
    for name in ("probabilities", "lists"):
        probabilities, values = DISTRIBUTIONS[name]["probabilities"], drawn(name)
        shares = {value: values.count(value) / len(values) for value in values}
        assert sorted(shares.values()) == pytest.approx(sorted(probabilities), abs=0.03)
    described = domains.describe(sweep.params_of(DISTRIBUTIONS)["probabilities"])
    assert described["probabilities"] == pytest.approx([0.7, 0.1, 0.2])


def test_the_normal_distributions():
    values = np.array(drawn("normal"))
    assert abs(values.mean() - 1) < 0.15 and abs(values.std() - 2) < 0.15
    assert all(value % 0.5 == 0 for value in drawn("q_normal"))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_wandbs_own_sampler_draws_the_same(name):
    theirs = pytest.importorskip("sweeps.params").HyperParameter(name, DISTRIBUTIONS[name])
    np.random.seed(0)
    expected = [theirs.sample() for _ in range(3000)]
    if name in ENDS or "normal" in name:
        quantiles = np.linspace(0.05, 0.95, 7)
        assert np.allclose(*(np.quantile(each, quantiles) for each in (drawn(name), expected)), rtol=0.15, atol=0.3)
    elif name in DRAWN:
        assert set(expected) - {0 if "log" in name else None} == DRAWN[name]
    else:
        assert {str(each) for each in expected} == {str(each) for each in DISTRIBUTIONS[name]["values"]}


def test_a_grid_tries_each_value(tmp_path):
    text = "program: a.py\nmethod: grid\nmetric: {name: loss}\nparameters:\n"
    text += "  a: {min: 1, max: 30}\n  b: {distribution: q_uniform, q: 2, min: 0, max: 6}\n  c: {value: 3}\n"
    space = loaded(tmp_path, text, "grid.yml")
    assert space.options.searcher == "grid" and space.options.num_samples == 90 and space.options.scheduler == "fifo"
    assert domains.values_of(space.space.params["a"])[-1] == 30 and domains.values_of(space.space.params["b"]) == [
        0,
        2,
        4,
    ]


def test_hyperband_is_asha_with_the_same_rungs(tmp_path):
    text = HEAD.format(method="bayes") + "early_terminate: {type: hyperband, %s}\n"
    options = loaded(tmp_path, text % "min_iter: 4, eta: 2").options
    assert (options.searcher, options.scheduler, options.grace_period, options.reduction_factor) == (
        "forest",
        "asha",
        4,
        2,
    )
    loaded_space = loaded(tmp_path, text % "max_iter: 27, s: 2, strict: false")
    assert (loaded_space.options.grace_period, loaded_space.options.reduction_factor) == (3, 3)
    assert "early_terminate: W&B compares at epochs 3, 9;" in " ".join(loaded_space.space.notes)
    assert "strict: false" in " ".join(loaded_space.space.notes) and loaded_space.space.mode == "max"


def test_nested_parameters_and_lists(tmp_path):
    text = HEAD.format(method="random") + "  optim: {parameters: {lr: {value: 2}, beta: {min: 0.0, max: 1.0}}}\n"
    params = loaded(tmp_path, text + "  sizes: {value: [1, 2]}\n").space.params
    assert params["optim"]["lr"] == 2 and domains.kind(params["optim"]["beta"]) == "uniform"
    assert domains.values_of(params["sizes"]) == [[1, 2]]


@pytest.mark.parametrize(
    ("changed", "into", "words"),
    [
        ("parameters", "paramters", "the sweep has the unknown key 'paramters'; did you mean 'parameters'"),
        ("method: random", "method: randm", "method 'randm': must be grid, random, bayes; did you mean 'random'"),
        ("method: random", "method: custom", "method 'custom': must be grid, random, bayes"),
        ("program: train.py", "", "the sweep has no program"),
        ("min: 0.001", "min: 1e-3", "min='1e-3': must be a number; YAML reads 1e-5 as a text, write 1.0e-5"),
        ("min: 0.001", "min: 1", "min=1: must be below max=0.1"),
        ("min: 0.001", "min: -1", "min=-1: must be above 0 for log_uniform_values"),
        ("log_uniform_values", "log_unifrom_values", "unknown distribution 'log_unifrom_values'; did you mean"),
        ("log_uniform_values, min: 0.001, max: 0.1", "log_uniform, min: 1, max: 1000", "write log_uniform_values if"),
        ("log_uniform_values, min: 0.001, max: 0.1", "beta, a: 1, b: 2", "the distribution beta has no counterpart"),
        ("log_uniform_values, min: 0.001, max: 0.1", "uniform, min: 1", "needs value, values, or min and max"),
        ("min: 0.001", "min: 0.001, q: 1", "parameter 'lr' has the unknown key 'q'"),
        ("[8, 16, 32]", "[8, 16], probabilities: [0.5, 0.4]", "a number for each value, and sum to 1"),
        ("goal: maximize", "goal: max", "metric goal 'max': must be minimize or maximize"),
        ("name: loss", "nmae: loss", "metric has the unknown key 'nmae'; did you mean 'name'"),
        ("program: train.py", "program: [", "is no YAML"),
        ("program: train.py", "program: a\ncommand: ['${agrs}']", "${agrs} is no macro; did you mean 'args'"),
        ("program: train.py", "program: a\ncommand: python", "must be a list of words"),
        ("program: train.py", "program: a\nearly_terminate: {type: hyperband, min_iter: 0}", "must be a whole number"),
        ("program: train.py", "program: a\nearly_terminate: {type: hyperband, min_iter: 1, eta: 1}", "must be above 1"),
        ("program: train.py", "program: a\nearly_terminate: {type: median}", "type 'median': must be hyperband"),
        ("program: train.py", "program: a\nrun_cap: many", "num_samples"),
        ("lr: {", "lr: 3\n  x: {", "parameter 'lr' must be a mapping"),
        ("method: random", "method: [random]", "must be grid, random, bayes"),
        ("log_uniform_values, min: 0.001", "int_uniform, min: 0.001", "must be whole numbers for int_uniform"),
        ("log_uniform_values, min: 0.001, max: 0.1", "[uniform], min: 1, max: 2", "unknown distribution"),
        ("max: 0.1", "max: 1" + "0" * 400, "too large"),
    ],
)
def test_a_wrong_sweep_is_refused_in_one_line(tmp_path, changed, into, words):
    text = HEAD.format(method="random")
    assert changed in text
    with pytest.raises(RequestError) as raised:
        loaded(tmp_path, text.replace(changed, into))
    assert words in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("domain", ["min: 1, max: 1" + "0" * 9, "distribution: q_uniform, min: 0, max: 1, q: 1.0e-9"])
def test_a_grid_without_end_is_refused(tmp_path, domain):
    text = f"program: a.py\nmethod: grid\nmetric: {{name: loss}}\nparameters:\n  a: {{{domain}}}\n"
    with pytest.raises(RequestError, match="a list of 1 to 100,000 values"):
        loaded(tmp_path, text)


def test_a_file_that_unfolds_without_end_is_refused(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    for text in ("\n".join(lines), "&a [*a]", "x: " + "[" * 5000, "#" * (1 << 21)):
        with pytest.raises(RequestError, match="more than|no YAML|must be a mapping"):
            loaded(tmp_path, text)
