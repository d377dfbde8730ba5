"""Connects W&B in a trial of a script or command.

`wandb.config` has the trial's parameters, and `wandb.log` reports the search's metric. The script's own W&B run is
disabled, because the search itself can copy trials to W&B. If a script writes `from tuner.integrations import wandb`
instead of `import wandb`, its `wandb.sweep` and `wandb.agent` declare its search space. Outside of a search, each
function does what W&B's function of that name does.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.integrations.current_trial import trial_here
from tuner.integrations.steps import Steps, steps_of
from tuner.record.storage.made import MadeFolder
from tuner.spec.script import Declared, Trial, check_declared, importing, script_space
from tuner.spec.space import Space
from tuner.spec.sweep import fields_of

_sweeps: list[Space] = []  # the spaces of the sweeps in the file that is being imported
_real: dict[str, Any] = {}  # W&B's own functions that `connect` has replaced
_runs: list[Any] = []  # the run that the trial has begun last


@contextmanager
def connect(wandb: Any, trial: Trial) -> Iterator[None]:
    """Lets W&B's own module do what this one does, in the trial of this process."""
    ours: dict[str, Any] = {"init": init, "login": login, "sweep": sweep, "agent": agent, "log": log}
    _real.update({name: getattr(wandb, name) for name in ours})
    with mock.patch.multiple(wandb, **ours):
        yield
    _real.clear()


def __getattr__(name: str) -> Any:
    wandb = importlib.import_module("wandb")  # whose import may call `connect`
    if name in _real:
        return _real[name]
    # `wandb.log_model` and similar functions ignore a disabled run and ask for `wandb.init`; the run's methods work.
    run = wandb.run if trial_here() else None
    return getattr(run, name) if run is not None and hasattr(run, name) else getattr(wandb, name)


def _steps_of(trial: Trial) -> Steps:
    return steps_of(trial, "wandb.log", lambda: dict(_runs[-1].summary) if _runs else {})


def login(*arguments: Any, **options: Any) -> bool:
    """Logs in to W&B; in a trial, or while a space is imported, does nothing and returns True."""
    return True if trial_here() or importing() else bool(__getattr__("login")(*arguments, **options))


def init(*arguments: Any, **options: Any) -> Any:
    """Starts a W&B run; in a trial, the run is disabled, and its config has the trial's parameters, locked."""
    trial = trial_here()
    if trial is None:
        check_declared("wandb.init")
        return __getattr__("init")(*arguments, **options)
    _steps_of(trial).restart()
    trial.read = True
    # W&B would make the folder in which this process called it first, which was an earlier trial's.
    run = __getattr__("init")(config=options.get("config"), mode="disabled", dir=os.getcwd())
    folder = Path(run.dir)  # scripts save models in it; W&B makes no folder for a disabled run
    folder.parents[1].mkdir(parents=True, exist_ok=True)
    made = MadeFolder(folder.parents[1], folder.parent.name, "new")
    folder.mkdir()
    trial.stack.callback(made.remove)
    run.config.update(trial.config, allow_val_change=True)
    run.config.update_locked(trial.config, user="tuner")
    run.log = vars(importlib.import_module("wandb"))["log"] = log
    trial.held["wandb.config"], _runs[:] = run.config, [run]
    return run


def log(
    data: Mapping[str, Any] | None = None, step: Any = None, commit: bool | None = None, *arguments: Any, **options: Any
) -> None:
    """Logs to W&B; in a trial, reports the numbers once they include each metric that the scheduler compares.

    Numbers that are logged without these, or with `commit=False`, are part of the next report. The numbers of one
    `step` are one report; see `Steps`.
    """
    trial = trial_here()
    if trial is None:
        __getattr__("log")(data, step, commit, *arguments, **options)
    else:
        _steps_of(trial).log(data or {}, step, commit)


def sweep(sweep: Mapping[str, Any], *arguments: Any, **options: Any) -> str:
    """Creates a W&B sweep; while a space is imported, keeps the sweep's space for `agent`; in a trial, does nothing."""
    if not trial_here() and (path := importing()):
        _sweeps.append(script_space(path, **fields_of(sweep)))
    elif not trial_here():
        return str(__getattr__("sweep")(sweep, *arguments, **options))
    return "tuner"


def agent(sweep_id: str, function: Callable[[], Any] | None = None, *arguments: Any, **options: Any) -> None:
    """Runs a W&B agent. In a trial, calls the function once; while a file with a sweep is imported, ends the import."""
    if trial_here():
        if function is not None:
            function()
    elif importing() and _sweeps:
        count = options.get("count") or (arguments[2] if len(arguments) > 2 else None)
        space = _sweeps.pop()
        raise Declared(replace(space, num_samples=count) if count else space)
    else:
        __getattr__("agent")(sweep_id, function, *arguments, **options)
