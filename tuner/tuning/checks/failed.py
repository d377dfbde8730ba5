"""What the checks of a space raise, and advice on the errors of its functions."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SKIP = "; --no-preflight skips this check"
Config = dict[str, Any]
# The arguments that tuner passes to the functions of a Task, as error texts name them.
CONFIG, PARAMETERS, OPTIMIZER = "config", "parameters, config", "optimizer, config, max_epochs"
INPUTS, OUTPUTS = "inputs", "outputs, targets"
# File and function that raised an error -> advice to the user.
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
    """Raised if a part of the space or its data fails; `advice`, and the config `tried`, are empty if unknown."""

    part: str
    problem: str
    advice: str = ""
    tried: Config = field(default_factory=dict)

    def __reduce__(self) -> Any:
        return CheckFailed, (self.part, self.problem, self.advice, self.tried)


def advice_on(error: BaseException, function: object = None, arguments: str = "") -> str:
    """Returns advice on an error of a space's function; empty if no advice is certain."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(function, type):
        if arguments in (INPUTS, OUTPUTS):
            return f"give an object, not the class: {function.__name__}()"
        given = {PARAMETERS: "parameters, lr=config['lr']", OPTIMIZER: "optimizer, ..."}.get(arguments, "...")
        return f"write it as lambda {arguments}: {function.__name__}({given})"
    if hasattr(function, "named_parameters") and arguments == CONFIG:
        return "a Task needs a function, not a module: model=lambda config: Net(...)"
    if isinstance(error, KeyError) and hasattr(error, "__notes__"):
        return str(error.__notes__[0])
    if isinstance(error, SystemExit):
        return "raise an exception that says what is wrong, or return; a function must not end the process"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name.partition('.')[0]!r}, or correct the name"
    if isinstance(error, FileNotFoundError) and error.filename and not Path(str(error.filename)).is_absolute():
        return f"relative paths start in {Path.cwd()}: give an absolute path, or --data-dir DIR and open data_dir/FILE"
    if arguments and isinstance(error, TypeError) and len(frames) == 1:  # tuner's own call raised it
        return f"it is called with {arguments}"
    return RAISED_IN.get(("/".join(Path(frames[-1].filename).parts[-3:]), frames[-1].name), "") if frames else ""
