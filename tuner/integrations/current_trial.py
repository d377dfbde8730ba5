"""What integrations do in the trial of this process, a script's or command's: resume, and report by their names."""

from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import json
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.record.storage.made import MadeFolder, temporary_folder
from tuner.spec.command_process import CONFIG, METRICS, VARIABLE  # the last one is set in a command's processes
from tuner.spec.script import Trial, running
from tuner.spec.ways import TRAINER

_resumed: dict[str | None, Path | None] = {}  # trial that called `checkpoint_folder` since its last report -> folder
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


def trial_here() -> Trial | None:
    """Returns the trial of which this process runs the script or command; None for one of a function, or none."""
    return running() or (_of_command() if VARIABLE in os.environ else None)


@functools.cache
def _of_command() -> Trial:
    """Returns the trial of the command to which this process belongs; what ends with the trial is done at exit."""
    folder = Path(os.environ[VARIABLE])
    compared, metric, *others = json.loads((folder / METRICS).read_text())
    trial = Trial(json.loads((folder / CONFIG).read_text()), metric, compared=compared, others=others)

    def end() -> None:
        with trial.stack, contextlib.suppress(SystemExit):  # the search has stopped the trial, which ends anyway
            for each in trial.at_end if trial.pid == os.getpid() else ():
                try:
                    each()
                except ValueError as error:
                    print(error, file=sys.stderr)

    atexit.register(end)
    return trial


def report_by(by: str, metrics: Mapping[str, Any], folder: Path | None = None) -> None:
    """Reports by one of WAYS, with a folder as the checkpoint; without metrics, only announces the first report."""
    if VARIABLE in os.environ:
        import tuner_trial

        tuner_trial.report(metrics, folder, by)
        return
    from ray import tune

    trial = running()
    if trial and not metrics:
        trial.ways.counts(by, metrics)
    elif metrics:
        checkpoint = tune.Checkpoint.from_directory(folder) if folder else None
        with mock.patch.object(trial, "by", by) if trial else contextlib.nullcontext():
            tune.report(metrics, checkpoint=checkpoint)


def report(metrics: dict[str, Any], local: MadeFolder, name: str) -> None:
    """Reports metrics with a folder in `local` as the checkpoint, then removes it, because Ray has copied it.

    If the scheduler stops the trial, Ray raises SystemExit here; the exception ends the framework's loop and the trial.
    """
    _forget_checkpoint()
    try:
        report_by(TRAINER, metrics, local.path / name)
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
        made(self, *arguments, **{**options, "callbacks": [*own, *ours]})

    @functools.wraps(trained)
    def train(self: Any, *arguments: Any, **options: Any) -> Any:
        call = inspect.signature(trained).bind(self, *arguments, **options)
        own = call.arguments.get(checkpoint)
        folder = checkpoint_folder()
        if folder is None or Path(folder, file).exists():
            call.arguments[checkpoint] = callback.checkpoint() or (None if own is True else own)  # True = the newest
        report_by(TRAINER, {})  # what the training logs is no report
        return trained(*call.args, **call.kwargs)

    replaced: dict[str, Any] = {"__init__": make, method: train}
    patch: contextlib.AbstractContextManager[Any] = mock.patch.multiple(trainer, **replaced)
    return patch
