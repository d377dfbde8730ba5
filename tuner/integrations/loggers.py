"""Makes reports of what a command gives to Keras, MLflow and TensorBoard's writers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tuner.integrations.steps import needed_metrics, numbers_in, of_command


def connect_keras(keras: Any) -> None:
    """Report each epoch of `Model.fit` that has the metric, after its callbacks, which may save a checkpoint."""
    from tuner_trial import report

    compared, _, others = needed_metrics()
    original = keras.callbacks.CallbackList.on_epoch_end

    @functools.wraps(original)
    def on_epoch_end(self: Any, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        metrics = numbers_in(logs or {})
        is_report = {compared, *others} <= metrics.keys()
        if is_report:
            report({}, by="Keras")  # a callback may log this epoch elsewhere
        original(self, epoch, logs)
        if is_report:
            report(metrics, by="Keras")

    keras.callbacks.CallbackList.on_epoch_end = on_epoch_end


def connect_mlflow(mlflow: Any) -> None:
    """Report what `mlflow.log_metric` and `mlflow.log_metrics` log."""
    steps = of_command("MLflow")
    for name, data_of in (("log_metric", lambda each: {each["key"]: each["value"]}), ("log_metrics", _metrics_of)):
        setattr(mlflow, name, _also(getattr(mlflow, name), steps.log, data_of, "step"))


def connect_tensorboard(module: Any) -> None:
    """Report what a `SummaryWriter` of this module gets by `add_scalar`; the metric may come to one folder alone."""
    steps, writer, folders = of_command("TensorBoard"), module.SummaryWriter, list[str]()

    def data_of(call: Mapping[str, Any]) -> Mapping[str, Any]:
        tag, folder = call["tag"], str(getattr(call["self"], "log_dir", None) or call["self"].logdir)
        if tag in steps.needed and folder not in folders:
            if folders and call.get("global_step") is None:  # `add_hparams` repeats the last value in its own folder
                return {}
            if len(folders) == 1:
                why = f"{tag!r} is logged in {folders[0]} and in {folder}: which is the metric? Rename one tag"
                if steps.sent:
                    raise ValueError(why)
                print(f"TensorBoard: {why}; until then, it is no report")
                steps.numbers.clear()
            folders.append(folder)
        return {tag: call["scalar_value"]} if len(folders) < 2 else {}

    writer.add_scalar = _also(writer.add_scalar, steps.log, data_of, "global_step")


def _metrics_of(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    metrics: Mapping[str, Any] = arguments["metrics"]
    return metrics


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
