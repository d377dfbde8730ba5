"""What Lightning's and Hugging Face's `TunerCallback` do in a trial: resume and report."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

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


def local_folder() -> tempfile.TemporaryDirectory[str]:
    """Makes a folder for a framework's files of one trial; the folder is deleted with the returned object."""
    return tempfile.TemporaryDirectory(prefix="tuner-", ignore_cleanup_errors=True)
