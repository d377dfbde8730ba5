"""Replaces W&B in a trial's script: write `from tuner.integrations import wandb` instead of `import wandb`.

In a trial, `wandb.config` has the trial's parameters, and `wandb.log` reports the search's metric to the search. The
script's own W&B run is disabled, because the search itself can copy trials to W&B. `wandb.sweep` and `wandb.agent`
define the file's search space. Outside of a search, each function does what W&B's function of that name does.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import numbers
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tuner.errors import nearest
from tuner.record.storage.made import MadeFolder
from tuner.spec.script import Declared, Trial, check_declared, importing, running, script_space
from tuner.spec.space import Space

_sweeps: list[Space] = []  # the spaces of the sweeps in the file that is being imported


@dataclass
class _Logged:
    """What a trial has logged since its last report, and what is known of the steps that it gives to `log`."""

    numbers: dict[str, Any] = field(default_factory=dict)  # metric -> its latest number
    step: Any = None  # the last `step=`; None before the first
    names: set[str] = field(default_factory=set)  # what was logged for this step
    is_sent: bool = False  # whether it was reported
    usual: set[str] = field(default_factory=set)  # what was logged for any step that was reported


_logged = _Logged()


def __getattr__(name: str) -> Any:
    wandb = importlib.import_module("wandb")
    # `wandb.log_model` and similar functions ignore a disabled run and ask for `wandb.init`; the run's methods work.
    run = wandb.run if running() else None
    return getattr(run, name) if run is not None and hasattr(run, name) else getattr(wandb, name)


def login(*arguments: Any, **options: Any) -> bool:
    """Logs in to W&B; in a trial, or while a space is imported, does nothing and returns True."""
    return True if running() or importing() else bool(__getattr__("login")(*arguments, **options))


def init(*arguments: Any, **options: Any) -> Any:
    """Starts a W&B run; in a trial, the run is disabled, and its config has the trial's parameters, locked."""
    global _logged
    trial = running()
    if trial is None:
        check_declared("wandb.init")
        return __getattr__("init")(*arguments, **options)
    if trial.at_end and _is_whole(trial):  # the last step of an earlier run of this trial
        _report(trial)
    _logged = _Logged()
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
    run.log, trial.held["wandb.config"] = log, run.config
    trial.at_end = partial(_report_rest, trial, run)
    return run


def log(
    data: Mapping[str, Any] | None = None, step: Any = None, commit: bool | None = None, *arguments: Any, **options: Any
) -> None:
    """Logs to W&B; in a trial, reports the numbers once they include each metric that the scheduler compares.

    Numbers that are logged without these, or with `commit=False`, are part of the next report. The numbers of one
    `step` are one report. It is sent once the step has each number that earlier steps had, at the latest when another
    step begins or the script ends. What a reported step gets later is left out, and awaited in the steps after it.
    """
    trial = running()
    if trial is None:
        __getattr__("log")(data, step, commit, *arguments, **options)
        return
    if trial.pid != os.getpid():
        return  # only the trial's own process can report, not a process that the script has started
    values = _numbers(data or {})
    has_metric = not _needed(trial).isdisjoint(values)
    begins = step is not None and (step != _logged.step or (_logged.is_sent and has_metric))
    # Without `step`, numbers belong to the present step, but a metric's new value does not replace the one there.
    if _is_whole(trial) and (begins or (step is None and _logged.step is not None and has_metric)):
        _report(trial)
    if begins:
        _logged.step, _logged.names, _logged.is_sent = step, set(), False
    elif step is not None and _logged.is_sent:
        if late := sorted(values.keys() - _logged.usual):
            print(f"wandb.log: {', '.join(late)} came after the report of step {step}; later steps wait for it")
        _logged.usual |= values.keys()
        return
    _logged.names |= values.keys()
    _logged.numbers.update(values)
    is_over = step is None if commit is None else commit
    is_usual = step is not None and commit is None and _logged.usual <= _logged.names
    if (is_over or is_usual) and _is_whole(trial):
        _report(trial)


def _needed(trial: Trial) -> set[str]:
    return {trial.compared, *trial.others}


def _is_whole(trial: Trial) -> bool:
    return _needed(trial) <= _logged.numbers.keys()


def _report(trial: Trial) -> None:
    from ray import tune

    report, _logged.numbers = _logged.numbers, {}
    _logged.usual, _logged.is_sent = _logged.usual | _logged.names, True
    trial.reported, trial.answered = True, trial.answered or trial.metric in report
    tune.report(report)


def _report_rest(trial: Trial, run: Any) -> None:
    """Reports the last step, and the run's summary if the script never logged the metric; ValueError if it lacks it.

    If the scheduler compares another metric, also reports the searched metric if it was logged since the last report,
    or if it was never logged and the summary has it.
    """
    if _is_whole(trial):
        _report(trial)
    if trial.reported and trial.compared == trial.metric:
        return
    summary, pending = _numbers(dict(run.summary)), _logged.numbers
    if trial.reported:  # then the scheduler compares another metric
        if trial.metric in summary and not trial.answered:
            pending.setdefault(trial.metric, summary[trial.metric])
        return _report(trial) if trial.metric in pending else None
    pending.update(summary)
    if trial.compared not in pending:
        logged = ", ".join(pending) or "no number"
        raise ValueError(
            f"the script has never logged the metric {trial.compared!r}{nearest(trial.compared, pending)}; it logged "
            f"{logged}; give one of these names as {'--metric' if trial.compared == trial.metric else '--prune-by'}"
        )
    _report(trial)


def _numbers(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries that are numbers, or arrays and tensors of one number."""
    found = {}
    for name, value in data.items():
        with contextlib.suppress(AttributeError, TypeError, ValueError, RuntimeError):
            value = value.item()  # raises an error if `value` holds several numbers
        if isinstance(value, numbers.Number):
            found[name] = value
    return found


def sweep(sweep: Mapping[str, Any], *arguments: Any, **options: Any) -> str:
    """Creates a W&B sweep; while a space is imported, keeps the sweep's space for `agent`; in a trial, does nothing."""
    if not running() and (path := importing()):
        # Every parameter becomes a domain or a constant; the sweep's `method` and `early_terminate` are ignored.
        metric = sweep.get("metric", {})
        named = {"metric": metric["name"]} if metric else {}
        mode = {"maximize": "max", "minimize": "min"}[metric.get("goal", "minimize")]
        _sweeps.append(script_space(path, params_of(sweep["parameters"]), mode=mode, **named))
    elif not running():
        return str(__getattr__("sweep")(sweep, *arguments, **options))
    return "tuner"


def agent(sweep_id: str, function: Callable[[], Any] | None = None, *arguments: Any, **options: Any) -> None:
    """Runs a W&B agent. In a trial, calls the function once; while a file with a sweep is imported, ends the import."""
    if running():
        if function is not None:
            function()
    elif importing() and _sweeps:
        count = options.get("count") or (arguments[2] if len(arguments) > 2 else None)
        space = _sweeps.pop()
        raise Declared(replace(space, num_samples=count) if count else space)
    else:
        __getattr__("agent")(sweep_id, function, *arguments, **options)


def params_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a sweep's parameters as domains and constants; ValueError for unknown distributions or missing bounds."""
    return {name: _domain(name, each) for name, each in parameters.items()}


def _domain(name: str, declared: Mapping[str, Any]) -> Any:
    from ray import tune

    if "parameters" in declared:
        return params_of(declared["parameters"])
    if "value" in declared:
        return declared["value"]
    if "values" in declared:
        return tune.choice(list(declared["values"]))
    low, high, step = declared.get("min"), declared.get("max"), declared.get("q", 1)
    whole = isinstance(low, int) and isinstance(high, int)
    kind = declared.get("distribution", "int_uniform" if whole else "uniform")
    if kind in ("normal", "q_normal"):
        shape = declared.get("mu", 0), declared.get("sigma", 1)
        return tune.qrandn(*shape, step) if kind == "q_normal" else tune.randn(*shape)
    if low is None or high is None:
        raise ValueError(f"parameter {name!r} of the sweep: {dict(declared)} needs value, values, or min and max")
    if kind in ("log_uniform", "q_log_uniform"):
        low, high, whole = math.exp(low), math.exp(high), False  # W&B's bounds are exponents of e
    whole = whole and isinstance(step, int)
    domains: dict[str, Callable[[], Any]] = {
        "int_uniform": lambda: tune.randint(low, high + 1),
        "uniform": lambda: tune.uniform(low, high),
        "log_uniform": lambda: tune.loguniform(low, high),
        "q_uniform": lambda: tune.qrandint(low, high, step) if whole else tune.quniform(low, high, step),
        "q_log_uniform": lambda: tune.qlograndint(low, high, step) if whole else tune.qloguniform(low, high, step),
    }
    kind = kind.removesuffix("_values")
    if kind not in domains:
        raise ValueError(f"parameter {name!r} of the sweep: unknown distribution {kind!r}{nearest(kind, domains)}")
    return domains[kind]()
