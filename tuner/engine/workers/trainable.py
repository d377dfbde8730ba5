"""Turns a trial's function into the class that Ray runs in a worker; runs a user's class in such a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.train._internal.session import get_session
from ray.tune.result import DONE
from ray.tune.trainable import wrap_function

from tuner.engine.workers.own_folder import await_left, session_of_ray
from tuner.engine.workers.reports import errors_sent
from tuner.record.checkpoints import STATE, load_state
from tuner.record.report_keys import RAY_KEYS
from tuner.record.storage.made import temporary_folder


class StillTrainingError(Exception):
    """The worker cannot start a trial: the previous trial's function still runs."""


def trainable_of(function: Callable[[dict[str, Any]], Any], bundles: list[dict[str, float]]) -> type:
    """Returns a Ray trainable class for a function, with the resources of one trial.

    The class's `reset_config` raises an error if the worker cannot be reset. If it returned False, as Ray's own does,
    Ray would mark the next trial as failed, although it has not started, and never inform the searcher.
    """

    def run(config: dict[str, Any]) -> Any:
        with errors_sent():
            return function(config)

    base: Any = wrap_function(run, name="func")

    class TrialFunction(base):
        def cleanup(self) -> None:
            try:
                super().cleanup()
            finally:
                await_left()

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            if not super().reset_config(new_config):
                raise StillTrainingError("the function of this worker's previous trial has not ended")
            return True

    made: type = tune.with_resources(TrialFunction, tune.PlacementGroupFactory(bundles))
    return made


@contextmanager
def session_folder() -> Iterator[str]:
    """Creates a temporary folder in Ray's session, so that none is left if this process is killed."""
    session, _ = session_of_ray()
    with temporary_folder("tuner-", Path(session) if session else None) as made:
        (folder := made.path / "own").mkdir()
        yield str(folder)


def run_class(trainable: type[tune.Trainable], config: dict[str, Any]) -> None:
    """Runs or resumes a class Trainable; reports each step's result, with a checkpoint if the class can save one.

    If `save_checkpoint` returns a dict, `torch.load` must be able to read it with `weights_only`: a resume must not run
    code from a file. Any other returned value is ignored, and the files in the folder are the checkpoint.
    """
    import torch

    # Without `storage`, a Trainable makes a folder in the user's home for each trial.
    advice = "let save_checkpoint return tensors and plain values only, or write files"
    instance: Any = trainable(config=config, storage=get_session().storage)
    try:
        if checkpoint := tune.get_checkpoint():
            with checkpoint.as_directory() as folder:
                state = load_state(Path(folder), STATE, advice, map_location=None)
                instance.load_checkpoint(folder if state["data"] is None else state["data"])
            instance._iteration = state["iteration"]
        done = False
        while not done:
            result = instance.train()
            done = bool(result.get(DONE))
            metrics = {name: value for name, value in result.items() if name not in RAY_KEYS}
            with session_folder() as folder:
                try:
                    data = instance.save_checkpoint(folder)
                except NotImplementedError:  # the class does not define `save_checkpoint`
                    tune.report(metrics)
                    continue
                data = data if isinstance(data, dict) else None
                torch.save({"iteration": instance.iteration, "data": data}, Path(folder) / STATE)
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
    finally:
        instance.stop()
