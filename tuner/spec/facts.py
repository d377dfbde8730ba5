"""What a search ran with, for experiment.json."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time
from functools import partial
from typing import Any

from tuner.spec.spaces import Found

from tuner.spec import domains
from tuner.spec.experiment import BEST_RULE


def facts_of(found: Found, argv: list[str]) -> dict[str, Any]:
    """Everything in experiment.json that is not an option, but for the data: where the space and the code came from."""
    space = found.space
    return {
        "best_rule": BEST_RULE,
        "space": {
            "path": str(found.path),
            "sha256": found.sha256,
            "params": {name: domains.describe(domain) for name, domain in domains.leaves(space.params)},
            "mutable": list(space.mutable),
        },
        "versions": versions(),
        "git_commit": git_commit(),
        "command": [sys.executable, "-m", "tuner.run", *argv],
        "created": round(time.time(), 3),
    }


def versions() -> dict[str, str]:
    """Package -> version, of those that bear on the figures."""
    names = ("ray", "torch", "torchvision", "numpy", "wandb", "hyperopt", "optuna", "hpbandster")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_commit() -> str:
    """The commit of the working folder, with `+` where it has changes; empty outside git."""
    run = partial(subprocess.run, capture_output=True, text=True, check=True, timeout=5)
    try:
        commit: str = run(["git", "rev-parse", "HEAD"]).stdout.strip()
        return commit + ("+" if run(["git", "status", "--porcelain", "-uno"]).stdout.strip() else "")
    except (OSError, subprocess.SubprocessError):
        return ""
