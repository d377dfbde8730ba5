"""docs/security.md promises nothing that no test holds: each file and each test that it names exists."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_every_test_that_the_page_names_exists():
    page = (TESTS.parent / "docs" / "security.md").read_text()
    file, checked = "", 0
    for place, name in re.findall(r"`((?!tests/)\w[\w/]*(?:\.py|/))?(?:::(test_\w+))?`", page):
        file = place or file
        if not (place or name):
            continue
        assert (TESTS / file).exists(), file
        if name:
            tree = ast.parse((TESTS / file).read_text())
            assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{file}::{name}"
        checked += 1
    assert checked > 25
