"""The documentation names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_promise_of_the_security_page_names_a_test_that_is_there():
    cells = re.findall(r"`([^`]*(?:\.py|/|::)[^`]*)`", (ROOT / "docs" / "security.md").read_text())
    held = [cell for cell in cells if ".py" in cell or cell.startswith("::") or (ROOT / "tests" / cell).is_dir()]
    assert len(held) > 20
    file = ""
    for cell in held:
        path, _, name = cell.partition("::")
        file = path or file  # `::name` is of the file before it
        text = (ROOT / "tests" / file).read_text() if file.endswith(".py") else ""
        assert (ROOT / "tests" / file).exists() and (not name or f"def {name}(" in text), cell
