"""Collects what experiment.json records beside the options: the space, the versions of packages, the git commit."""

from __future__ import annotations

import contextlib
import platform
import secrets
import subprocess
import time
from typing import Any

from tuner.spec import parameters
from tuner.spec.command import Command
from tuner.spec.experiment import BEST_RULE
from tuner.spec.spaces import LoadedSpace

PACKAGES = ("ray", "torch", "torchvision", "numpy", "wandb", "scikit-learn", "hyperopt", "optuna", "hpbandster")


def facts_of(loaded_space: LoadedSpace, command: list[str]) -> dict[str, Any]:
    """Returns what is written to experiment.json before the data is read, apart from the options."""
    return {
        "id": secrets.token_hex(8),  # the journal's first event has it too: two searches may have the same name
        "best_rule": BEST_RULE,
        "space": space_facts(loaded_space),
        "versions": versions(),
        "git_commit": git_commit(),
        "command": command,
        "created": round(time.time(), 3),
    }


def space_facts(loaded_space: LoadedSpace) -> dict[str, Any]:
    """Returns what experiment.json records about the space; `mutable` names the parameters that pbt may change."""
    space = loaded_space.space
    return {
        "path": str(loaded_space.path or ""),
        "sha256": loaded_space.sha256,
        "params": parameters.describe(space.declared),
        "constants": space.constants,
        "mutable": list(space.mutable),
        **({"seeded": space.seeded} if space.seeded or isinstance(space.train, Command) else {}),
        **({"length": space.length} if space.length else {}),
    }


def versions() -> dict[str, str]:
    """Package -> version, for Python and those packages of PACKAGES that are installed."""
    import importlib.metadata  # takes 10 ms, and `--help` imports this module

    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def git_commit() -> str:
    """The commit of the working folder, with a `+` if tracked files have changes; empty outside git or if git fails."""
    # `git describe --dirty` would write the repository's index.
    commands = ["rev-parse", "HEAD"], ["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        commit, changes = (
            subprocess.run(["git", *command], capture_output=True, text=True, timeout=5, check=True).stdout.strip()
            for command in commands
        )
        return f"{commit}+" if changes else commit
    return ""
