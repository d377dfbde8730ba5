"""A user's mistake in a script or notebook is one line with its place; `tuner.errors.one_line`."""

import pickle
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from ray import tune

from tuner import RequestError, Space, load, search
from tuner.errors import one_line
from tuner.spec.script import in_trial
from tuner.tuning import api

ROOT = Path(__file__).parents[2]


def train(config):
    """A function for Ray Tune."""


SETUP = """
import numpy as np
from ray import tune
from tuner import Arrays, RequestError, Space, Task, load, load_best, search
params = {"lr": tune.uniform(0, 1)}
def train(config): raise KeyError("gone")
space = Space(params=params, train=train)
"""


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """`shown(code)` runs code as a script in `tmp_path` that catches no error; returns what Python prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)

    def run(code):
        script = tmp_path / "mine.py"
        script.write_text(code)
        names = {"__name__": "mine"}
        exec(SETUP, names)
        try:
            exec(compile(code, str(script), "exec"), names)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)
        return capsys.readouterr().err

    return run


MISTAKES = [
    ("search('cifra')", "RequestError: no space named 'cifra'; did you mean 'cifar'?"),
    ("search(space, scheduler=train)", "scheduler (function): must be one of auto, asha, asha-promotion,"),
    ("search(space, time_budget=30)", "time_budget 30: must be a text such as 90s, 30m"),
    ("search(space, point=0.1)", 'point 0.1: must be a list of settings, such as point=[{"'),
    ("search(space, resume=True)", "resume True: must be the name of an experiment, or"),
    (
        "search(tune.Tuner(train, param_space=params, tune_config=tune.TuneConfig(metric='loss', mode='min', "
        "scheduler=tune.schedulers.ResourceChangingScheduler())))",
        "tuner has no scheduler ResourceChangingScheduler: give another, as search(tuner, scheduler='asha')",
    ),
    ("load(3)", 'the folder is a int: give a path, such as "results/NAME"'),
    ("load('nothing')", "; this folder has no experiments: give another results"),
    ("Space(params={'lr': [1, 2]}, train=train)", "parameter 'lr': list [1, 2]; did you mean tune.choice([1, 2])?"),
    ("Space(params=params, task=train)", "must be a Task, such as Task(data=..., model=..., optimizer=...)"),
    ("Space(params=params, train=train, metric=3)", "metric=3: must be the name of a metric"),
    ("Space(params=params, train=train, points={'lr': 1})", "points={'lr': 1}: must be a list of settings"),
    ("Task(data=3, model=train, optimizer=train)", "Task(data=...) is a int: give the function itself"),
    ("Arrays(np.zeros(3), np.zeros(2))", "3 inputs but 2 targets: give one target per input"),
]


@pytest.mark.parametrize(("call", "text"), MISTAKES)
def test_a_mistake_in_a_script_is_one_line_with_its_place(shown, call, text):
    printed = shown(f"# mine\n{call}\n")
    assert text in printed and printed.count("\n") == 1 and printed.endswith("(mine.py, line 2)\n")


def test_other_errors_keep_their_traceback(shown):
    assert shown("try:\n    load('nothing')\nexcept RequestError:\n    pass\n1 / 0\n").startswith("Traceback (most")
    assert "Traceback" in shown("int('x')\n")  # a ValueError, but none of tuner's


def test_who_catches_the_error_gets_all_of_it(tmp_path):
    with pytest.raises(ValueError, match="nothing to search") as caught:
        Space(params={"lr": 0.1}, train=train)
    assert caught.tb.tb_next and str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_notebook_asks_the_error_what_to_show(monkeypatch):
    with pytest.raises(RequestError) as caught:
        load("nothing")
    monkeypatch.setattr(sys, "last_value", caught.value, raising=False)
    (line,) = getattr(caught.value, one_line.RENDER)()
    assert line.startswith("RequestError: no experiment 'nothing' in ") and "test_one_line.py, line " in line


def test_a_process_runs_one_search_at_a_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space = Space(params={"lr": tune.uniform(0, 1)}, train=train)
    with api._searching, pytest.raises(RequestError, match=r"another search\(\) runs in this process: wait for its"):
        search(space)
    assert not api._searching.locked()
    with in_trial({"lr": 1}, "loss"), pytest.raises(RequestError, match=r"a trial calls search\(\): call it in the"):
        search(space)
    with pytest.raises(RequestError, match="num_samples"):
        search(space, num_samples=0)
    assert not api._searching.locked()


@pytest.mark.slow
def test_a_mistake_in_a_cell_is_one_line_that_names_the_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    failing = "search(space, num_samples=2, wandb='disabled').best.config"
    cells = [SETUP, *(call for call, _ in MISTAKES), failing]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    resources = {"metadata": {"path": str(tmp_path)}}
    options = {"kernel_name": "python3", "allow_errors": True, "resources": resources}
    nbclient.NotebookClient(notebook, timeout=200, **options).execute()
    for number, (cell, text) in enumerate(zip(notebook.cells[1:], [*(t for _, t in MISTAKES), "gone"], strict=True), 2):
        (error,) = [each for each in cell.outputs if each.output_type == "error"]
        (line,) = error.traceback
        assert text in line and "\n" not in line and line.endswith(f"(Cell In[{number}], line 1)"), line
    assert "no best trial: all 2 trials failed, 0000" in line and "KeyError: 'gone' (Cell In[1], line 5)" in line
