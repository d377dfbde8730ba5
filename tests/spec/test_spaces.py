"""Spaces are found by name, file and module; a wrong one is refused in one line with its file and line."""

import gc
import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ray import tune

from tuner.errors import RequestError
from tuner.space import Space, Task
from tuner.spec.spaces import find_space, list_spaces

TINY = Path(__file__).parents[1] / "spaces" / "tiny.py"
HEAD = "from ray import tune\nfrom tuner.space import Space\ntrain = print\n"
ONE = "space = Space(params={'x': tune.uniform(0, 1)}, train=train%s)\n"


def train(config):
    pass


@pytest.fixture
def file_with(tmp_path, monkeypatch):
    """`file_with(text)` writes a file in the working folder; gives its name."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="mine.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text((HEAD if "tune." in text else "") + text)
        return name

    return write


def refusal(name):
    with pytest.raises(RequestError) as refused:
        find_space(name)
    text = str(refused.value)
    assert "\n" not in text and "Traceback" not in text
    return text


def test_a_space_is_found_by_name_and_by_its_file_with_its_digest():
    loaded_space = find_space("quadratic")
    assert loaded_space.name == "quadratic" and loaded_space.module == "search_spaces.quadratic"
    assert set(loaded_space.space.params) == {"x", "speed", "noise"}
    loaded_space = find_space(str(TINY))
    assert loaded_space.path == TINY and loaded_space.module.startswith("tuner_space_tiny_")
    assert loaded_space.sha256 == hashlib.sha256(TINY.read_bytes()).hexdigest()


def test_a_space_is_found_by_module_and_attribute(file_with, tmp_path, monkeypatch):
    file_with("", "my_own_package/__init__.py")
    file_with(ONE % "" + "other = Space(params={'y': tune.uniform(0, 1)}, train=train)\n", "my_own_package/some.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(find_space("my_own_package.some").space.params) == {"x"}
    assert set(find_space("my_own_package.some:other").space.params) == {"y"}
    assert "has no third = Space(...)" in refusal("my_own_package.some:third")
    assert "No module named 'my_own_package.none'" in refusal("my_own_package.none")


def test_two_files_of_one_name_are_two_spaces_and_a_changed_file_is_read_anew(file_with):
    file_with(ONE % "", "a/mine.py")
    file_with((ONE % "").replace("(0, 1)", "(0, 2)"), "b/mine.py")
    assert [find_space(f"{folder}/mine.py").space.params["x"].upper for folder in "ab"] == [1, 2]
    assert "ZeroDivisionError" in refusal(file_with("1 / 0", "a/mine.py"))
    file_with((ONE % "").replace("(0, 1)", "(0, 7)"), "a/mine.py")
    assert find_space("a/mine.py").space.params["x"].upper == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (\n", "mine.py: does not parse: '(' was never closed (mine.py, line 1)"),
        ("x = 1\0\n", "does not parse: source code string cannot contain null bytes"),
        ("tune.nothing\n", "has no attribute 'nothing' (mine.py, line 4)"),
        ("def inner():\n    raise OSError('gone')\n\ninner()\n", "OSError: gone (mine.py, line 2)"),
        ("import nonsense_package\n", "(mine.py, line 1); install 'nonsense_package' for "),
        ("from .helpers import x\n", "import without the leading dot"),
        ("import sys\nsys.exit()\n", "must not exit: put what parses a command line, and what runs, under if __name__"),
        ("raise SystemExit(3)\n", "mine.py"),
        ("'Nothing.'\n", "mine.py: has no space = Space(...) at module level; add it. A script that trains by"),
        ("space = {'x': 1}\n", "space is a dict; write Space(params=..., task=...)"),
        ("# script(\n", "call script(...) there, above everything else"),
        ((ONE % "").replace("space =", "a ="), "but a; give --space mine.py:a"),
        (ONE % ", metrics={}", "Space has no argument 'metrics'; did you mean 'metric'? (mine.py, line 4)"),
        ("import tuner\ntuner.Task(optimiser=1)", "Task has no argument 'optimiser'; did you mean 'optimizer'"),
        (ONE % ", mode='minimum'", "mode minimum: must be one of min, max; did you mean 'min'? (mine.py, line 4)"),
        (ONE % ", num_samples='ten'", "num_samples ten: must be a whole number (mine.py, line 4)"),
        ((ONE % "").replace("train=train", "train=1"), "the function itself, not the result of a call"),
        ((ONE % "").replace("train=train", "train=lambda a, b: 3"), "must be a function of one argument"),
        ("class Own(tune.Trainable):\n    pass\ntrain = Own\n" + ONE % "", "the class has no step(self)"),
        (
            "Space(\n    params={'lr': [0.1, 1], 'x': tune.uniform(0, 1)}, train=train)",
            "parameter 'lr' (line 5): list [0.1, 1]; did you mean tune.choice([0.1, 1])? (mine.py, line 4)",
        ),
        ("space = Space(params={'a': {'b': {3}}}, train=tune.report)", "parameter 'a/b': set [3]; did you mean tune."),
        (ONE.replace("uniform(0, 1)", "choice([])") % "", "'x' (line 4): tune.choice([]) has no values; give at least"),
        (ONE.replace("uniform(0, 1)", "randint(4, 4)") % "", "range 4..4 is reversed or empty"),
        (
            "a = tune.loguniform(1e-4, 1)\na.lower = 0.0\nSpace(params={'a': a}, train=train)",
            "log range 0.0..1 must lie",
        ),
        ((ONE % "").replace("(0, 1)", "(1, 0)"), "range 1..0 is reversed or empty"),
        ((ONE % "").replace("'x'", "1"), "parameter 1: a name is a string without '/'"),
        ((ONE % "").replace("'x'", "'a/b'"), "parameter 'a/b' (line 4): a name is a string"),
        ("space = Space(params=[tune.uniform(0, 1)], train=train)", "params is a list: must be a dict"),
        ("space = Space(params={}, train=tune.report)", "there is nothing to search"),
    ],
)
def test_a_wrong_file_is_refused_with_what_to_write(file_with, text, message):
    assert message in refusal(file_with(text))


def test_listing_goes_on_over_a_file_that_does_not_parse(file_with, tmp_path, monkeypatch):
    file_with("x = (\n", "broken.py")
    file_with('"""First line.\n\nSecond."""\nraise SystemExit\n', "good.py")
    file_with("", "_hidden.py")
    monkeypatch.setattr("tuner.spec.spaces._folder", lambda: tmp_path)
    listed = list_spaces()
    assert listed["good"] == "First line." and "does not parse" in listed["broken"] and "_hidden" not in listed


def test_what_a_task_reports_is_known_and_what_a_function_reports_is_not():
    task = Task(data=train, model=train, optimizer=train, metrics={"accuracy": train})
    assert Space(params={"x": tune.choice([1])}, task=task).reported() == {"loss", "train_loss", "accuracy"}
    assert Space(params={"x": tune.choice([1])}, train=train).reported() is None


def test_what_is_no_file_of_a_space_says_what_to_give(file_with):
    file_with("{}", "work.ipynb")
    file_with("", "my_space.py")
    assert "is a folder; give the .py file" in refusal(".")
    assert "is a notebook; call tuner.search(space) in it" in refusal("work.ipynb")
    assert "no such file in " in refusal("my_spce.py") and "did you mean 'my_space.py'?" in refusal("my_spce.py")


def test_two_threads_may_list_the_spaces_at_once():
    gc.callbacks.append(pause := lambda *_: time.sleep(0))  # lets the other threads run during a collection
    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        with ThreadPoolExecutor(4) as threads:
            listed = list(threads.map(lambda _: list_spaces(), range(40)))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(pause)
    assert all(each == listed[0] for each in listed)
