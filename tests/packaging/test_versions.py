"""What is imported is declared, bounded above, and of the same tested version for pip and for uv."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = [Requirement(line) for line in PYPROJECT["project"]["dependencies"]]
EXTRAS = [Requirement(line) for extra in PYPROJECT["project"]["optional-dependencies"].values() for line in extra]


def imported(folder):
    """The first names of all modules that a folder's files import, without Python's own and the project's."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            aliases = node.names if isinstance(node, ast.Import) else ()
            modules = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in aliases]
            for name in {module.split(".")[0] for module in modules} - sys.stdlib_module_names:
                if name not in ("tuner", "search_spaces"):
                    yield name, path


@pytest.mark.parametrize("folder", ["tuner", "search_spaces"])
def test_what_is_imported_is_declared(folder):
    declared = {canonicalize_name(each.name) for each in [*DEPENDENCIES, *EXTRAS]}
    distributions = importlib.metadata.packages_distributions()
    # The frameworks' packages are installed with their extras only, and have their modules' names; Lightning is two.
    own = {path.stem for path in (ROOT / "tuner" / "integrations" / "in_command").glob("*.py")}
    undeclared = {
        (name, path.name)
        for name, path in imported(folder)
        if name not in own
        and not declared
        & {canonicalize_name(re.sub("^pytorch[-_]|[-_]fabric$", "", each)) for each in distributions.get(name, [name])}
    }
    assert not undeclared


def test_pip_and_uv_install_the_same_tested_versions_which_the_project_allows_up_to_a_ceiling():
    pips = (ROOT / "constraints.txt").read_text().splitlines()
    assert PYPROJECT["tool"]["uv"]["constraint-dependencies"] == pips
    tested = {each.name: each for each in map(Requirement, pips)}
    for each in [*DEPENDENCIES, *EXTRAS]:
        assert re.search("<|==", str(each.specifier)), each
        (version,) = [item.version for item in tested[canonicalize_name(each.name)].specifier]
        assert each.specifier.contains(version), each
