"""The error of a failed check, and advice where the type or the place of a user's error proves the cause.

Other errors get no advice: an error text with the user's file and line is better than a guess.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.errors import nearest

Config = dict[str, Any]
# Function of a space -> the arguments that tuner calls it with. Others (the loss, the metrics) get outputs and targets.
ARGUMENTS = {
    **dict.fromkeys(("model", "train"), "config"),
    **dict.fromkeys(("prepare", "augment", "the model"), "inputs"),
    "optimizer": "parameters, config",
    "schedule": "optimizer, config, max_epochs",
    "data": "data_dir",
}
CUDA_START = (("torch", "cuda", "__init__.py"), "_lazy_init")
BATCH_NORM = (("torch", "nn", "functional.py"), "_verify_batch_size")


@dataclass(eq=False)
class CheckFailed(Exception):
    """Raised if a part of the space or its data fails.

    Attributes:
        advice: what is allowed and what to do; empty if nothing is certain.
        tried: the config with which it failed; empty if the config does not matter.
    """

    part: str
    problem: str
    advice: str = ""
    tried: Config = field(default_factory=dict)


class TracedConfig(dict[str, Any]):
    """A config whose KeyError names the keys that it has, so that no KeyError of another dictionary is explained."""

    def __init__(self, config: Config, name: str = "config") -> None:
        self._name = name
        super().__init__(
            (key, TracedConfig(value, f"{name}[{key!r}]") if type(value) is dict else value)
            for key, value in config.items()
        )

    def __missing__(self, key: str) -> Any:
        error = KeyError(key)
        error.add_note(f"{self._name} has {', '.join(self)}{nearest(str(key), self)}")
        raise error


def arguments_of(name: str) -> str:
    """Returns the arguments of a function, which is named as in errors: `metrics['acc']` or `model(config)`."""
    return ARGUMENTS.get(name.partition("(")[0], "outputs, targets")


def advice_on(error: BaseException, name: str = "", function: object = None) -> str:
    """Says what to do about an error; empty if nothing is certain.

    Args:
        name: the function that raised it, named as for `arguments_of`.
        function: that function.
    """
    frames = traceback.extract_tb(error.__traceback__)
    raised_in = (Path(frames[-1].filename).parts[-3:], frames[-1].name) if frames else ((), "")
    if isinstance(function, type):
        if arguments_of(name) == "outputs, targets":
            return f"give an object, not the class: {function.__name__}()"
        more = {"optimizer": "parameters, lr=config['lr']", "schedule": "optimizer, ..."}.get(
            name.partition("(")[0], "..."
        )
        return f"write it as lambda {arguments_of(name)}: {function.__name__}({more})"
    if hasattr(function, "named_parameters") and name == "model(config)":
        return "a Task needs a function, not a module: model=lambda config: Net(...)"
    if isinstance(error, KeyError) and hasattr(error, "__notes__"):
        return str(error.__notes__[0])
    if isinstance(error, SystemExit):
        return "raise an exception that says what is wrong, or return; a function must not end the process"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name.partition('.')[0]!r}, or correct the name"
    if isinstance(error, FileNotFoundError) and error.filename and not Path(str(error.filename)).is_absolute():
        return f"relative paths start in {Path.cwd()}: give an absolute path, or --data-dir DIR and read data_dir / ..."
    if name and isinstance(error, TypeError) and len(frames) == 1:  # tuner's own call raised it
        return f"it is called with {arguments_of(name)}"
    if raised_in == CUDA_START:
        return "leave out .cuda() and .to('cuda'): tuner moves the model and the data to the trial's device"
    if raised_in == BATCH_NORM:
        return "an epoch's last batch has one example, too few for batch norm: give another batch_size"
    return ""


def described(value: Any) -> str:
    """Describes a tensor or array by its shape and dtype, and any other value by its type."""
    shape = getattr(value, "shape", None)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if shape is None or isinstance(shape, property):
        if isinstance(value, (tuple, list)):
            return f"a {type(value).__name__} of {len(value)}"
        return "None" if value is None else f"a {type(value).__name__}"
    return f"shape {tuple(shape)} {str(value.dtype).removeprefix('torch.')}"
