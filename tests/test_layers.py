"""Imports go one way; what must start fast, or read without Ray, imports neither Ray nor torch with its module."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "tuner").rglob("*.py"))
COMMANDS = ("__main__", "run", "train", "audit", "report", "gpus", "tuning.output.wandb_mirror")
STARTS = {"init", "shutdown"}
READ_WITHOUT_RAY = ("spec", "record", "views", "serve")  # rooms


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def broken_contracts(root):
    """What import-linter prints where a contract of the folder's pyproject.toml is broken; empty where all hold."""
    check = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", check], cwd=root, env=environment, capture_output=True, text=True, timeout=60
    )
    assert "Contracts" in done.stdout, done.stderr
    return done.stdout.partition("Broken contracts")[2] if done.returncode else ""


def test_rooms_import_only_the_rooms_below_them():
    assert broken_contracts(ROOT) == ""


def test_imports_of_the_wrong_direction_break_the_contracts(tmp_path):
    for name in ("tuner", "search_spaces"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    wrong = {
        "tuner/spec/domains.py": ("def later(): import tuner.tuning.driver", "Rooms import only the rooms below them"),
        "tuner/training/loop.py": ("import ray.tune", "Training knows no Ray"),
        "tuner/tuning/trial.py": ("import tuner.tuning.assembly", "No imports go in a circle"),
        "tuner/integrations/current_trial.py": ("import tuner.tuning.trial", "Integrations import nothing of the"),
        "search_spaces/cifar.py": ("import tuner.record.journal", "Spaces import nothing of the search"),
    }
    for module, (line, _) in wrong.items():
        with open(tmp_path / module, "a") as file:
            file.write(f"\n{line}\n")
    broken = broken_contracts(tmp_path)
    assert all(contract in broken for _, contract in wrong.values()), broken


def test_commands_and_the_rooms_that_read_import_neither_ray_nor_torch():
    reading = [name_of(path) for path in FILES if path.relative_to(ROOT / "tuner").parts[0] in READ_WITHOUT_RAY]
    modules = [*(f"tuner.{name}" for name in (*COMMANDS, "space", "errors", "training.data")), *reading]
    script = f"""
import importlib, sys
for name in {[name for name in modules if not name.endswith("__init__")]}:
    importlib.import_module(name)
    for heavy in ("ray", "torch"):
        assert heavy not in sys.modules, f"{{name}} imports {{heavy}}"
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_only_the_driver_starts_ray():
    assert [name_of(path) for path in FILES if starts_ray(path.read_text())] == ["tuner.tuning.driver"]
    for text in ("import ray as r\nr.init()", "from ray import init", "import ray\nstart = ray.init"):
        assert starts_ray(text)


def starts_ray(text):
    """Whether a module uses `ray.init` or `ray.shutdown`, by any name."""
    nodes = list(ast.walk(ast.parse(text)))
    aliases = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names = {"ray", *(alias.asname for alias in aliases if alias.name == "ray" and alias.asname)}
    imported = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "ray"]
    return any(alias.name in STARTS for node in imported for alias in node.names) or any(
        isinstance(node, ast.Attribute) and node.attr in STARTS and ast.unparse(node.value) in names for node in nodes
    )


def test_the_listing_of_the_package_shows_its_architecture():
    listed = subprocess.run(["git", "ls-files", "tuner"], cwd=ROOT, capture_output=True, text=True, check=True)
    entries = {Path(line).parts[1] for line in listed.stdout.splitlines()}
    assert len(entries) <= 18, sorted(entries)
