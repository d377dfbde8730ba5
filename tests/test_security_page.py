"""docs/security.md and docs/gpus.md promise nothing that no test holds: each test that they name exists."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize(("name", "least"), [("security", 26), ("gpus", 16)])
def test_every_test_that_the_page_names_exists(name, least):
    page = (TESTS.parent / "docs" / f"{name}.md").read_text()
    file, checked = "", 0
    for place, test in re.findall(r"`((?!tests/)\w[\w/]*(?:\.py|/))?(?:::(test_\w+))?`", page):
        if place:  # `gpus.md` leaves out the folder of its own tests
            file = f"gpu/{place}" if (TESTS / "gpu" / place).exists() else place
        if not (place or test):
            continue
        assert (TESTS / file).exists(), file
        if test:
            tree = ast.parse((TESTS / file).read_text())
            assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{test}"
        checked += 1
    assert checked >= least
