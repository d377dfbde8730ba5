"""Makes reports of what a script or command gives to Keras, MLflow and TensorBoard's writers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from tuner.integrations.current_trial import report_by
from tuner.integrations.steps import numbers_in, steps_of
from tuner.spec.script import Trial


def connect_keras(keras: Any, trial: Trial) -> AbstractContextManager[Any]:
    """Return a context that reports each epoch of `Model.fit` with the metric, after callbacks, which may save."""
    original = keras.callbacks.CallbackList.on_epoch_end

    @functools.wraps(original)
    def on_epoch_end(self: Any, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        metrics = numbers_in(logs or {})
        is_report = {trial.compared, *trial.others} <= metrics.keys()
        if is_report:
            report_by("Keras", {})  # a callback may log this epoch elsewhere
        original(self, epoch, logs)
        if is_report:
            report_by("Keras", metrics)

    return mock.patch.object(keras.callbacks.CallbackList, "on_epoch_end", on_epoch_end)


def connect_mlflow(mlflow: Any, trial: Trial) -> AbstractContextManager[Any]:
    """Return a context that reports what `mlflow.log_metric` and `mlflow.log_metrics` log."""
    log = steps_of(trial, "MLflow").log
    one = _also(mlflow.log_metric, log, lambda call: {call["key"]: call["value"]}, "step")
    several = _also(mlflow.log_metrics, log, lambda call: call["metrics"], "step")
    patch: AbstractContextManager[Any] = mock.patch.multiple(mlflow, log_metric=one, log_metrics=several)
    return patch


def connect_tensorboard(module: Any, trial: Trial) -> AbstractContextManager[Any]:
    """Return a context that reports what a module's `SummaryWriter` gets by `add_scalar`; the metric in one folder."""
    steps, writer, folders = steps_of(trial, "TensorBoard"), module.SummaryWriter, list[str]()

    def data_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
        tag, folder = call["tag"], str(getattr(call["self"], "log_dir", None) or call["self"].logdir)
        if tag in steps.needed and folder not in (folders or [folder]):
            if call.get("global_step") is None:  # `add_hparams` repeats the last value, in a folder of its own
                return {}
            raise ValueError(f"{tag!r} is logged in {folders[0]} and in {folder}: which is the metric? Rename one tag")
        folders.extend([folder] if tag in steps.needed else [])
        return {tag: call["scalar_value"]}

    return mock.patch.object(writer, "add_scalar", _also(writer.add_scalar, steps.log, data_of, "global_step"))


def _also(original: Callable[..., Any], log: Callable[..., None], data_of: Callable[..., Any], step: str) -> Any:
    """Return a function that calls `original`, and then logs what `data_of` finds in its arguments."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def logs(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        call = signature.bind(*arguments, **options).arguments
        log(data_of(call), call.get(step))
        return result

    return logs
