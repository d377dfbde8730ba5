"""Spaces are found by name, file and module; a wrong one is told with its file and line."""

from pathlib import Path

import pytest
from ray import tune

from tuner.errors import RequestError
from tuner.space import Space, Task
from tuner.spec.spaces import find_space, list_spaces

TINY = Path(__file__).parent / "spaces" / "tiny.py"
HEAD = "from ray import tune\nfrom tuner.space import Space\n\n\ndef train(config):\n    pass\n\n\n"


def train(config):
    pass


def file_with(tmp_path, text, name="mine.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def refusal(asked):
    with pytest.raises(RequestError) as refused:
        find_space(str(asked))
    return str(refused.value)


def test_a_space_is_found_by_name():
    loaded_space = find_space("quadratic")
    assert loaded_space.name == "quadratic" and loaded_space.module == "search_spaces.quadratic"
    assert set(loaded_space.space.params) == {"x", "speed", "noise"}


def test_a_space_is_found_by_its_file_and_keeps_its_digest():
    import hashlib

    loaded_space = find_space(str(TINY))
    assert loaded_space.path == TINY and loaded_space.module.startswith("tuner_space_tiny_")
    assert loaded_space.sha256 == hashlib.sha256(TINY.read_bytes()).hexdigest()


def test_a_space_is_found_by_module_and_attribute(tmp_path, monkeypatch):
    package = tmp_path / "my_own_package"
    package.mkdir()
    (package / "__init__.py").touch()
    text = HEAD + "space = Space(params={'x': tune.uniform(0, 1)}, train=train)\n"
    (package / "some.py").write_text(text + "other = Space(params={'y': tune.uniform(0, 1)}, train=train)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(find_space("my_own_package.some").space.params) == {"x"}
    assert set(find_space("my_own_package.some:other").space.params) == {"y"}
    assert "has no third = Space(...)" in refusal("my_own_package.some:third")
    assert "No module named 'my_own_package.none'" in refusal("my_own_package.none")


def test_two_files_of_one_name_are_two_spaces(tmp_path):
    for folder, bound in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        file_with(
            tmp_path / folder,
            HEAD + f"space = Space(params={{'x': tune.uniform(0, {bound})}}, train=train)\n",
        )
    first, second = (find_space(str(tmp_path / folder / "mine.py")) for folder in "ab")
    assert (first.space.params["x"].upper, second.space.params["x"].upper) == (1, 2)


def test_a_changed_file_is_read_anew(tmp_path):
    path = file_with(tmp_path, HEAD + "space = Space(params={'x': tune.uniform(0, 1)}, train=train)\n")
    assert find_space(str(path)).space.params["x"].upper == 1
    path.write_text(path.read_text().replace("uniform(0, 1)", "uniform(0, 7)"))
    assert find_space(str(path)).space.params["x"].upper == 7


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        (HEAD + "x = 1 / 0\n", "ZeroDivisionError: division by zero", 9),
        (HEAD + "tune.nothing\n", "has no attribute 'nothing'", 9),
        (
            HEAD + "space = Space(params={'a': {'b': {3}}}, train=train)\n",
            "parameter 'a/b': set [3]; did you mean tune.choice([3])?",
            9,
        ),
        (HEAD + "def inner():\n    raise OSError('gone')\n\n\ninner()\n", "OSError: gone", 10),
    ],
)
def test_a_file_that_does_not_import_is_told_with_its_file_and_line(tmp_path, text, message, line):
    path = file_with(tmp_path, text)
    refused = refusal(path)
    assert message in refused and f"{path}, line {line}" in refused
    assert "\n" not in refused and "Traceback" not in refused


def test_a_file_without_a_space_is_told(tmp_path):
    path = file_with(tmp_path, '"""Nothing here."""\n')
    assert f"{path}: has no space = Space(...) at module level; add it" in refusal(path)
    for line in ("from tuner import script, tune", "script({...})", "tune.report({...})"):  # a script needs them
        assert line in refusal(path)
    path.write_text("space = 3\n")
    assert "has no space = Space(...)" in refusal(path)


def test_a_file_that_failed_once_is_found_once_it_is_mended(tmp_path):
    path = file_with(tmp_path, HEAD + "space = Space(params={'x': 1}, train=train)\n")
    refusal(path)
    refusal(path)
    path.write_text(HEAD + "space = Space(params={'x': tune.choice([1])}, train=train)\n")
    assert set(find_space(str(path)).space.params) == {"x"}


def test_listing_goes_on_over_a_file_that_does_not_parse(tmp_path, monkeypatch):
    file_with(tmp_path, "x = (\n", "broken.py")
    file_with(tmp_path, '"""First line.\n\nSecond."""\nraise SystemExit\n', "good.py")
    file_with(tmp_path, "", "_hidden.py")
    monkeypatch.setattr("tuner.spec.spaces._folder", lambda: tmp_path)
    listed = list_spaces()
    assert listed["good"] == "First line." and "does not parse" in listed["broken"] and "_hidden" not in listed


def test_what_a_task_reports_is_known_and_what_a_function_reports_is_not():
    task = Task(data=train, model=train, optimizer=train, metrics={"accuracy": train})
    assert Space(params={"x": tune.choice([1])}, task=task).reported() == {"loss", "train_loss", "accuracy"}
    assert Space(params={"x": tune.choice([1])}, train=train).reported() is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = Space(params={'x': tune.uniform(0, 1)}, train=print)\n", "but a; give --space PATH:a"),
        ("space = {'x': 1}\n", "space is a dict; write Space(params=..., task=...)"),
        ("from .helpers import x\n", "import without the leading dot"),
        ("import sys\nsys.exit()\n", "put what runs under if __name__"),
        ("import nonsense_package\n", "install 'nonsense_package' for "),
        ("space = Space(params={'x': tune.uniform(0, 1)}, train=1)\n", "the function itself, not the result of a call"),
        (
            "class Own(tune.Trainable):\n    pass\nspace = Space(params={'x': tune.uniform(0, 1)}, train=Own)\n",
            "the class has no step(self)",
        ),
    ],
)
def test_a_wrong_file_says_what_to_write(tmp_path, text, message):
    path = file_with(tmp_path, "from ray import tune\nfrom tuner.space import Space\n" + text)
    assert message.replace("PATH", str(path)) in refusal(path)


def test_what_is_no_file_of_a_space_says_what_to_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work.ipynb").write_text("{}")
    (tmp_path / "my_space.py").write_text("")
    assert "is a folder; give the .py file" in refusal(".")
    assert "is a notebook; call tuner.search(space) in it" in refusal("work.ipynb")
    assert "did you mean 'my_space.py'?" in refusal("my_spce.py")
