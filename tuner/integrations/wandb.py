"""Replaces W&B in a trial's script: write `from tuner.integrations import wandb` instead of `import wandb`.

In a trial, `wandb.config` has the trial's parameters, and `wandb.log` reports the search's metric to the search. The
script's own W&B run is disabled, because the search itself can copy trials to W&B. `wandb.sweep` and `wandb.agent`
define the file's search space. Outside of a search, each function does what W&B's function of that name does.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from tuner.integrations.steps import Steps, needed_metrics, of_command
from tuner.record.storage.made import MadeFolder
from tuner.spec.command_process import CONFIG, VARIABLE
from tuner.spec.script import Declared, Trial, check_declared, importing, running, script_space
from tuner.spec.space import Space
from tuner.spec.sweep import fields_of

_sweeps: list[Space] = []  # the spaces of the sweeps in the file that is being imported
_real: dict[str, Any] = {}  # W&B's own functions that `connect` has replaced
_runs: list[Any] = []  # the run that the trial has begun last


def connect(wandb: Any) -> None:
    """Let W&B's own module do what this one does, in a process of a command's trial."""
    for name, ours in {"init": init, "login": login, "sweep": sweep, "agent": agent}.items():
        _real[name] = getattr(wandb, name)
        setattr(wandb, name, ours)


def __getattr__(name: str) -> Any:
    if name in _real:
        return _real[name]
    wandb = importlib.import_module("wandb")
    # `wandb.log_model` and similar functions ignore a disabled run and ask for `wandb.init`; the run's methods work.
    run = wandb.run if _trial() else None
    return getattr(run, name) if run is not None and hasattr(run, name) else getattr(wandb, name)


def _trial() -> Trial | None:
    return running() or (_of_command() if VARIABLE in os.environ else None)


@cache
def _of_command() -> Trial:
    """Return the trial of the command to which this process belongs; its last step is reported at exit."""
    compared, metric, others = needed_metrics()
    trial = Trial(json.loads(Path(os.environ[VARIABLE], CONFIG).read_text()), metric, compared=compared, others=others)
    atexit.register(trial.stack.close)
    trial.steps = of_command("wandb.log", lambda: dict(_runs[-1].summary) if _runs else {})
    return trial


def _steps_of(trial: Trial) -> Steps:
    def send(report: dict[str, Any]) -> None:
        from ray import tune

        if report:
            tune.report(report)

    if trial.steps is None:
        trial.steps = Steps({trial.compared, *trial.others}, trial.metric, send, "wandb.log")
    steps: Steps = trial.steps
    return steps


def login(*arguments: Any, **options: Any) -> bool:
    """Logs in to W&B; in a trial, or while a space is imported, does nothing and returns True."""
    return True if _trial() or importing() else bool(__getattr__("login")(*arguments, **options))


def init(*arguments: Any, **options: Any) -> Any:
    """Starts a W&B run; in a trial, the run is disabled, and its config has the trial's parameters, locked."""
    trial = _trial()
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
    trial.at_end = partial(_report_rest, trial)
    return run


def log(
    data: Mapping[str, Any] | None = None, step: Any = None, commit: bool | None = None, *arguments: Any, **options: Any
) -> None:
    """Logs to W&B; in a trial, reports the numbers once they include each metric that the scheduler compares.

    Numbers that are logged without these, or with `commit=False`, are part of the next report. The numbers of one
    `step` are one report; see `Steps`.
    """
    trial = _trial()
    if trial is None:
        __getattr__("log")(data, step, commit, *arguments, **options)
    elif trial.pid == os.getpid() or VARIABLE in os.environ:  # a process that a script has forked cannot report
        _steps_of(trial).log(data or {}, step, commit)


def _report_rest(trial: Trial) -> None:
    """Reports the last step, and the run's summary if the script never logged the metric; ValueError if it lacks it."""
    if why := _steps_of(trial).end(dict(_runs[-1].summary)):
        named = "--metric" if trial.compared == trial.metric else "--prune-by"
        raise ValueError(f"the script has never logged {why}; give one of these names as {named}")


def sweep(sweep: Mapping[str, Any], *arguments: Any, **options: Any) -> str:
    """Creates a W&B sweep; while a space is imported, keeps the sweep's space for `agent`; in a trial, does nothing."""
    if not _trial() and (path := importing()):
        _sweeps.append(script_space(path, **fields_of(sweep)))
    elif not _trial():
        return str(__getattr__("sweep")(sweep, *arguments, **options))
    return "tuner"


def agent(sweep_id: str, function: Callable[[], Any] | None = None, *arguments: Any, **options: Any) -> None:
    """Runs a W&B agent. In a trial, calls the function once; while a file with a sweep is imported, ends the import."""
    if _trial():
        if function is not None:
            function()
    elif importing() and _sweeps:
        count = options.get("count") or (arguments[2] if len(arguments) > 2 else None)
        space = _sweeps.pop()
        raise Declared(replace(space, num_samples=count) if count else space)
    else:
        __getattr__("agent")(sweep_id, function, *arguments, **options)
