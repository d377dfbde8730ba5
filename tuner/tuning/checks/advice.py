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
# Function that raised an error -> what to do about the error.
RAISED_IN = {
    ("torch/cuda/__init__.py", "_lazy_init"): (
        "leave out .cuda() and .to('cuda'): tuner moves the model and the data to the trial's device"
    ),
    ("torch/nn/functional.py", "_verify_batch_size"): (
        "an epoch's last batch has one example, too few for batch norm: give another batch_size"
    ),
}


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
        inner = {key: TracedConfig(value, f"{name}[{key!r}]") for key, value in config.items() if type(value) is dict}
        super().__init__(config | inner)

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
        name, function: the function that raised it, and its name as for `arguments_of`.
    """
    frames = traceback.extract_tb(error.__traceback__)
    arguments = arguments_of(name)
    if isinstance(function, type):
        if arguments == "outputs, targets":
            return f"give an object, not the class: {function.__name__}()"
        more = {"optimizer": "parameters, lr=config['lr']", "schedule": "optimizer, ..."}
        return f"write it as lambda {arguments}: {function.__name__}({more.get(name.partition('(')[0], '...')})"
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
        return f"it is called with {arguments}"
    return RAISED_IN.get(("/".join(Path(frames[-1].filename).parts[-3:]), frames[-1].name), "") if frames else ""


def described(value: Any) -> str:
    """Describes a tensor or array by its shape and dtype, and any other value by its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"shape {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
