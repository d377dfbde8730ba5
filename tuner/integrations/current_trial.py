"""What Lightning's and Hugging Face's `TunerCallback` do in a trial: resume and report."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.record.storage.made import MadeFolder, temporary_folder
from tuner.spec.command_process import VARIABLE  # set in a command's trial, whose processes run outside of Ray
from tuner.spec.script import running

BY = "the Trainer"
_resumed: dict[str | None, Path | None] = {}  # trial that called `checkpoint_folder` since its last report -> folder
BOTH = (
    "the script calls tune.report, and its Trainer reports by itself, so that each epoch would count twice: give the "
    "Trainer callbacks=[TunerCallback()] if both are meant, or call tune.report before the Trainer's epoch ends"
)
_copy = contextlib.ExitStack()  # its close() deletes the local copy of a checkpoint from an object store


def trial_id() -> str | None:
    """Returns the id of the trial that runs in this process; None if the script runs by itself."""
    if command := os.environ.get(VARIABLE):
        return command
    import ray
    from ray import tune

    return tune.get_context().get_trial_id() if running() or ray.is_initialized() else None


def checkpoint_folder() -> Path | None:
    """Returns the folder of the checkpoint from which the trial resumes; None at epoch 0 or outside of a trial.

    A checkpoint in an object store is copied to this machine; the trial's next report deletes the copy.
    """
    if (trial := trial_id()) not in _resumed:
        _forget_checkpoint()
        _resumed[trial] = _saved() if trial is not None else None
    return _resumed[trial]


def _saved() -> Path | None:
    if VARIABLE in os.environ:
        from tuner_trial import checkpoint_folder

        folder = checkpoint_folder()
        return folder and Path(folder)
    from ray import tune

    checkpoint = tune.get_checkpoint()
    return checkpoint and Path(_copy.enter_context(checkpoint.as_directory()))


def _forget_checkpoint() -> None:
    _resumed.clear()
    _copy.close()


def check_resumes(line: str) -> None:
    """Raises ValueError if `checkpoint_folder` was not called since the trial's last report; the text names `line`."""
    if trial_id() not in _resumed:
        raise ValueError(f"the training would not resume from the trial's checkpoint: write {line}")


def report(metrics: dict[str, Any], local: MadeFolder, name: str) -> None:
    """Reports metrics with a folder in `local` as the checkpoint, then removes it, because Ray has copied it.

    If the scheduler stops the trial, Ray raises SystemExit here; the exception ends the framework's loop and the trial.
    """
    _forget_checkpoint()
    trial = running()
    try:
        if trial and trial.num_of_trainer is not None:
            if trial.num_reports() > trial.num_of_trainer:
                if trial.num_of_trainer:
                    raise ValueError(BOTH)
                return  # the script reports by itself
            trial.num_of_trainer += 1
        if VARIABLE in os.environ:
            import tuner_trial

            tuner_trial.report(metrics, local.path / name, by=BY)
            return
        from ray import tune

        tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(local.path / name))
    finally:
        local.clear(name)


def local_folder(owner: Any) -> MadeFolder:
    """Creates a folder for the files that a framework writes in a trial; it is removed with the object `owner`."""
    command = os.environ.get(VARIABLE)  # whose folder is removed with the trial
    made = temporary_folder("tuner-", Path(command) if command else None)
    weakref.finalize(owner, made.remove)
    return made


def automatic(
    trainer: Any, method: str, checkpoint: str, callback: Any, file: str
) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which each new Trainer gets a callback, and `method` gets the checkpoint to resume from.

    A checkpoint without `file` is not the callback's: the script saves its own, and resumes from it.
    """
    made, trained = trainer.__init__, getattr(trainer, method)

    @functools.wraps(made)  # LightningCLI makes its options from the signature
    def make(self: Any, *arguments: Any, **options: Any) -> None:
        own = options.get("callbacks") or []
        own = list(own) if isinstance(own, Sequence) else [own]  # hydra gives a ListConfig
        ours = [] if any(isinstance(each, callback) for each in own) else [callback()]
        if ours and (trial := running()):
            trial.num_of_trainer = trial.num_of_trainer or 0
        made(self, *arguments, **{**options, "callbacks": [*own, *ours]})

    @functools.wraps(trained)
    def train(self: Any, *arguments: Any, **options: Any) -> Any:
        call = inspect.signature(trained).bind(self, *arguments, **options)
        own = call.arguments.get(checkpoint)
        folder = checkpoint_folder()
        if folder is None or Path(folder, file).exists():
            call.arguments[checkpoint] = callback.checkpoint() or (None if own is True else own)  # True = the newest
        if VARIABLE in os.environ:
            import tuner_trial

            tuner_trial.report({}, by=BY)  # what the training logs is no report
        return trained(*call.args, **call.kwargs)

    replaced: dict[str, Any] = {"__init__": make, method: train}
    patch: contextlib.AbstractContextManager[Any] = mock.patch.multiple(trainer, **replaced)
    return patch
