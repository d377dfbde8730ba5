"""What Lightning's and Hugging Face's `TunerCallback` do in a trial: resume, report, and apply what pbt changed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The options that optimizers were created with: for each optimizer, for each parameter group, option -> value.
Options = list[list[dict[str, Any]]]
RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr"})  # options that are learning rates; a schedule changes them

# The last trial that called `checkpoint_folder`; `check_resumes` compares it with the current trial.
_asked: list[object] = []
_copies: dict[str, tempfile.TemporaryDirectory[str]] = {}  # a checkpoint's path in an object store -> its local copy


def trial_id() -> str | None:
    """Returns the id of the trial that runs in this process; None if the script runs by itself."""
    import ray
    from ray import tune

    return tune.get_context().get_trial_id() if ray.is_initialized() else None


def checkpoint_folder() -> Path | None:
    """Returns the folder of the checkpoint from which the trial resumes; None at epoch 0 or outside of a trial.

    A checkpoint in an object store is copied to this machine until the trial's next report.
    """
    from ray import tune

    trial = trial_id()
    _asked[:] = [trial]
    checkpoint = tune.get_checkpoint() if trial is not None else None
    if checkpoint is None:
        return None
    if Path(checkpoint.path).is_dir():
        return Path(checkpoint.path)
    if checkpoint.path not in _copies:
        copy = local_folder()
        checkpoint.to_directory(copy.name)
        _copies[checkpoint.path] = copy
    return Path(_copies[checkpoint.path].name)


def check_resumes(line: str) -> None:
    """Raises ValueError, which tells to write `line`, if the script did not call `checkpoint_folder` in this trial."""
    if _asked != [trial_id()]:
        raise ValueError(f"the training would not resume from the trial's checkpoint: write {line}")


def report(metrics: dict[str, Any], folder: Path) -> None:
    """Reports metrics with a folder as the checkpoint, then deletes the folder, which Ray has copied.

    If the scheduler stops the trial, Ray raises a SystemExit here; it ends the framework's loop and the trial.
    """
    from ray import tune

    _copies.clear()
    try:
        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replaced(owner: type, **methods: Any) -> Iterator[None]:
    """Replaces methods of a framework's class in a `with` block."""
    before = {name: getattr(owner, name) for name in methods}
    try:
        for name, method in methods.items():
            setattr(owner, name, method)
        yield
    finally:
        for name, method in before.items():
            setattr(owner, name, method)


def local_folder() -> tempfile.TemporaryDirectory[str]:
    """Makes a folder for a framework's files of one trial; the folder is deleted with the returned object."""
    return tempfile.TemporaryDirectory(prefix="tuner-", ignore_cleanup_errors=True)


def options_of(optimizers: Iterable[Any]) -> Options:
    """Returns the plain options of each optimizer's parameter groups; `plain_options` says which are plain."""
    return [[plain_options(group) for group in optimizer.param_groups] for optimizer in optimizers]


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a parameter group that are numbers, booleans or lists of them; a tuple becomes a list."""
    # An optimizer with `capturable=True` may keep its learning rate in a tensor.
    values = {name: value.item() if hasattr(value, "item") else value for name, value in group.items()}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {
        name: value
        for name, value in plain.items()
        if all(isinstance(number, (int, float)) for number in (value if isinstance(value, list) else [value]))
        and name != "params"
    }


def keep_changes(optimizers: Iterable[Any], schedulers: Iterable[Any], before: Options, now: Options) -> None:
    """Sets the options that population-based training changed, in optimizers that were restored from a checkpoint.

    Learning rates change in proportion: a schedule has already multiplied the restored ones.

    Args:
        before, now: the options with which the checkpoint's trial, and this trial, created their optimizers.
    """
    if before == now:
        return
    ratios: dict[int, list[float]] = {}
    for optimizer, olds, news in zip(optimizers, before, now, strict=True):
        for group, old, new in zip(optimizer.param_groups, olds, news, strict=True):
            ratio = _rate(new) / _rate(old) if _rate(old) else 1.0
            ratios.setdefault(id(_bare(optimizer)), []).append(ratio)
            for name in RATES & group.keys():
                group[name] *= ratio
            for name in (old.keys() & new.keys() & group.keys()) - RATES:
                if old[name] != new[name]:
                    group[name] = tuple(new[name]) if isinstance(new[name], list) else new[name]
    for scheduler in schedulers:
        # A SequentialLR or ChainedScheduler has the schedulers that it combines in `_schedulers`.
        for each in [scheduler, *getattr(scheduler, "_schedulers", [])]:
            if hasattr(each, "base_lrs"):
                factors = ratios[id(_bare(each.optimizer))]
                each.base_lrs = [rate * factor for rate, factor in zip(each.base_lrs, factors, strict=True)]


def _rate(options: dict[str, Any]) -> float:
    """Returns the learning rate before any schedule. `lr` is not that rate: a warmup has set it to 0 at the start."""
    rate: float = options.get("initial_lr", options["lr"])
    return rate


def _bare(optimizer: Any) -> Any:
    """Returns the torch optimizer inside a framework's wrapper; returns an optimizer without a wrapper unchanged."""
    return getattr(optimizer, "optimizer", optimizer)
