"""Imports go one way; what must start fast, or read without Ray, imports neither Ray nor torch with its module."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "tuner").rglob("*.py"))
COMMANDS = ("__main__", "run", "train", "audit", "report", "gpus", "tuning.output.wandb_mirror")
READ_WITHOUT_RAY = ("spec", "record", "views", "serve")  # rooms


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_rooms_import_only_the_rooms_below_them():
    check = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Contracts" in done.stdout and done.returncode == 0, done.stdout + done.stderr


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


def test_the_listing_of_the_package_shows_its_architecture():
    listed = subprocess.run(["git", "ls-files", "tuner"], cwd=ROOT, capture_output=True, text=True, check=True)
    entries = {Path(line).parts[1] for line in listed.stdout.splitlines()}
    assert len(entries) <= 18, sorted(entries)
