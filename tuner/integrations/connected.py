"""Connects the libraries that a script or a command imports: Trainers, and in a command Ray Tune and loggers.

A process of a command's trial runs outside of Ray. It reports through `tuner_trial`, a module that needs only Python.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

from wrapt import when_imported

from tuner.spec.command_process import VARIABLE
from tuner.spec.ways import in_sanity_check

TRAINERS = {  # module that defines a Trainer -> the integration that reports for it
    "lightning.pytorch": "tuner.integrations.lightning",
    "pytorch_lightning": "tuner.integrations.lightning",
    "transformers.trainer": "tuner.integrations.transformers",
}
LOGGERS = {  # module that has a logger -> the integration that reports what it logs, and its function
    "keras": ("tuner.integrations.loggers", "connect_keras"),
    "wandb": ("tuner.integrations.wandb", "connect"),
    "mlflow": ("tuner.integrations.loggers", "connect_mlflow"),
    "tensorboardX": ("tuner.integrations.loggers", "connect_tensorboard"),
    "torch.utils.tensorboard": ("tuner.integrations.loggers", "connect_tensorboard"),
}
_until_exit = ExitStack()


def install() -> None:
    """Connect each library when it is imported."""
    when_imported("ray.tune")(_connect_tune)
    connect_trainers(_until_exit)
    for module, (integration, function) in LOGGERS.items():
        when_imported(module)(partial(_connect_logger, integration, function))


def connect_trainers(stack: ExitStack) -> None:
    """Let each Trainer report by itself, from the import of its module until the stack closes."""
    connected = set[str]()  # the Trainers of `pytorch_lightning` and `lightning.pytorch` have one integration
    stack.callback(connected.update, TRAINERS.values())

    def connect(integration: str, module: Any) -> None:
        if integration not in connected:
            connected.add(integration)
            stack.enter_context(importlib.import_module(integration).automatic())

    for module, integration in TRAINERS.items():
        when_imported(module)(partial(connect, integration))


def _connect_tune(tune: Any) -> None:
    from tuner_trial import checkpoint_folder, in_trial_of_ray
    from tuner_trial import report as send

    own_report, own_checkpoint = tune.report, tune.get_checkpoint

    def report(metrics: Mapping[str, Any], *, checkpoint: Any = None, **options: Any) -> None:
        if in_trial_of_ray():
            own_report(metrics, checkpoint=checkpoint, **options)
            return
        if in_sanity_check():
            return
        with checkpoint.as_directory() if checkpoint else nullcontext() as folder:
            send(metrics, folder, "tune.report")

    def get_checkpoint() -> Any:
        if in_trial_of_ray():
            return own_checkpoint()
        folder = checkpoint_folder()
        return folder and tune.Checkpoint.from_directory(folder)

    tune.report, tune.get_checkpoint = report, get_checkpoint


def _connect_logger(integration: str, function: str, module: Any) -> None:
    if VARIABLE in os.environ:  # not of a search that the command has started
        try:
            getattr(importlib.import_module(integration), function)(module)
        except (AttributeError, ImportError) as error:  # another library or version has this name
            print(f"tuner: what {module.__name__} logs is not reported ({error})", file=sys.stderr)
