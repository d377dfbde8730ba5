"""A file that Python runs is searched: its encoding, and its place in a package."""

import codecs
import sys

import pytest
from test_script import moved, ran, seen  # noqa: F401  (fixtures)

from tuner import RequestError
from tuner.spec.script_text import names_of, source_of
from tuner.spec.spaces import find_space, list_spaces, parsed
from tuner.tuning.checks.preflight import _check_reporting

DECLARED = 'from tuner import script, tune\nscript({"lr": tune.uniform(0, 1)})\n'
BODY = "from seen_by_the_script import seen\nlr, name = 0.1, 'größe'\nseen.append((lr, name))\n# tune.report\n"
ENCODED = {
    "bom": codecs.BOM_UTF8 + f"{DECLARED}{BODY}".encode(),
    "pep_263": f"# -*- coding: latin-1 -*-\n{DECLARED}{BODY}".encode("latin-1"),
    "lines_of_windows": f"{DECLARED}{BODY}".replace("\n", "\r\n").encode(),
}


@pytest.mark.parametrize("content", ENCODED.values(), ids=ENCODED)
def test_a_script_is_read_in_the_encoding_in_which_python_reads_it(tmp_path, seen, content):  # noqa: F811
    path = tmp_path / "encoded.py"
    path.write_bytes(content)
    space = find_space(str(path)).space
    ran(space, {"lr": 0.5})
    assert seen == [(0.5, "größe")] and parsed(path)


def test_a_function_in_such_a_file_is_checked_too(tmp_path):
    text = "from tuner import Space, tune\ndef train(config):\n    return 1.0\n"
    path = tmp_path / "function.py"
    path.write_bytes(codecs.BOM_UTF8 + f'{text}space = Space(params={{"x": tune.uniform(0, 1)}}, train=train)'.encode())
    _check_reporting(find_space(str(path)).space.train)
    assert source_of(path).startswith("from tuner")


def test_bytes_that_are_no_text_do_not_end_a_search(tmp_path):
    (tmp_path / "beside.py").write_bytes(b"name = '\xff'\n")
    assert source_of(tmp_path / "beside.py") == "name = '\ufffd'\n"


@pytest.fixture
def package(tmp_path, seen, monkeypatch):  # noqa: F811
    """`package(text)` writes `own_package/inner/train.py`, run in its root, and modules beside it."""
    folder = tmp_path / "own_package" / "inner"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent):
        (place / "__init__.py").touch()
    (folder / "settings.py").write_text("width = 4\n")
    (folder.parent / "common.py").write_text("def double(x): return 2 * x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text, name="train"):
        (folder / f"{name}.py").write_text(f"from seen_by_the_script import seen\n{text}")
        return f"own_package.inner.{name}"

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_package"]:
        del sys.modules[name]


IN_PACKAGE = """
from tuner import script, tune
script({"lr": tune.uniform(0, 1), "width": tune.choice([8])})
from .settings import width
from ..common import double
from own_package.inner import settings
lr = 0.1
seen.append((lr, width, settings.width, double(2), __name__, __package__, __spec__.name))
"""


def test_a_module_of_a_package_is_searched_as_python_m_runs_it(package, seen, tmp_path):  # noqa: F811
    found = find_space(package(IN_PACKAGE))
    assert not seen and found.path == tmp_path / "own_package/inner/train.py"  # nothing has trained
    words = found.space.train.targets(found.space.params)
    assert words["width"] == "in place of the constant in line 1 of settings.py"
    before = [*sys.path]
    for lr in (0.5, 0.25):
        ran(found.space, {"lr": lr, "width": 8})
    assert seen == [(lr, 8, 8, 4, "__main__", "own_package.inner", "own_package.inner.train") for lr in (0.5, 0.25)]
    assert sys.path == before and "own_package.inner.settings" not in sys.modules


def test_a_script_by_its_path_may_import_its_package_by_name(package, seen, tmp_path):  # noqa: F811
    package(DECLARED + "from own_package.inner.settings import width\nlr = 0.1\nseen.append((lr, width))\n", "by_path")
    space = find_space(str(tmp_path / "own_package/inner/by_path.py")).space
    ran(space, {"lr": 0.5})
    assert seen == [(0.5, 4)]


def test_a_relative_import_of_a_path_names_the_module_to_give(package, tmp_path):
    package(IN_PACKAGE)
    path = tmp_path / "own_package/inner/train.py"
    with pytest.raises(RequestError, match=r"line 5, imports from its own .*: give --space own_package.inner.train, "):
        find_space(str(path))
    package(f"{DECLARED}try:\n    from .settings import width\nexcept ImportError:\n    width = 1\nlr = 1\n", "either")
    assert find_space(str(path.with_name("either.py")))


def test_the_names_of_a_file_end_where_its_packages_end(tmp_path):
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "inner" / "__init__.py").touch()
    assert names_of(tmp_path / "outer" / "inner" / "train.py") == ["train", "inner.train"]
    assert list_spaces()
