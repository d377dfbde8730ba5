"""Says what to do about the errors of users' functions that occur often."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.errors import nearest
from tuner.training.data import Splits

# Function of a space -> the arguments that tuner calls it with. Others (the loss, the metrics) get outputs and targets.
ARGUMENTS = {
    **dict.fromkeys(("model", "train"), "config"),
    **dict.fromkeys(("prepare", "augment"), "inputs"),
    "optimizer": "parameters, config",
    "schedule": "optimizer, config, max_epochs",
    "data": "data_dir",
}
NEGATIVE = "class numbers start at 0: renumber them, or give loss=nn.CrossEntropyLoss(ignore_index=-1)"
# Words of an error's text -> what the user should do. The first entry whose words are all in the text counts.
KNOWN = {
    ("out of bounds", "Target -"): NEGATIVE,
    ("out of bounds", "Target"): ("class numbers must be below the number of outputs: renumber them, or add outputs"),
    ("expected", "Long"): "class numbers are integers: return targets.astype('int64')",
    ("doesn't match the desired", "cross"): "class numbers must have the shape (N,): return targets.reshape(-1)",
    ("multi-target not supported",): "class numbers must have the shape (N,): return targets.argmax(1)",
    ("Found dtype Long but expected Float",): "targets must be floats: return targets.astype('float32')",
    ("target size", "input size"): "give targets the shape of the outputs, or use cross-entropy for class numbers",
    ("size of tensor", "must match the size of tensor"): (
        "give both the same shape, or use cross-entropy for class numbers"
    ),
    ("Byte",): "inputs are bytes: convert them in Task(prepare=lambda inputs: inputs.float() / 255)",
    ("unsigned char",): "inputs are bytes: convert them in Task(prepare=lambda inputs: inputs.float() / 255)",
    ("must have the same dtype",): "inputs and weights differ in type: return inputs.astype('float32')",
    ("should be the same", "type"): "inputs and weights differ in type: return inputs.astype('float32')",
    ("Double",): "inputs and weights differ in type: return inputs.astype('float32')",
    ("shapes cannot be multiplied",): (
        "the layer expects another number of features: change it, or flatten or reshape the inputs"
    ),
    ("channels, but got",): "images have the shape (N, channels, height, width): transpose the inputs",
    ("optimizer can only optimize Tensors",): "give it the parameters that the function gets, not the model",
    ("optimizer got an empty parameter list",): "the model has no parameters: make its layers attributes, in __init__",
    ("does not require grad",): (
        "compute it from the outputs by operations with a gradient: no argmax, ==, round, detach, item or no_grad"
    ),
    (
        "leaf Variable that requires grad",
        "in-place",
    ): "in forward, use a new value, w = weight + 1, not weight += 1",
    ("modified by an inplace operation",): "write y = y + 1 instead of y += 1, and relu(y) instead of relu_(y)",
    ("ReduceLROnPlateau.step()",): (
        "a Task steps its schedule without a metric: use another one, such as CosineAnnealingLR(optimizer, max_epochs)"
    ),
    ("not supported between instances of 'str' and",): "a text is where a number must be: write it without quotes",
    ("not supported between", "and 'str'"): "a text is where a number must be: write it without quotes",
    ("NVIDIA",): "leave out .cuda() and .to('cuda'): tuner moves the model and the data to the trial's device",
    ("not compiled with CUDA",): (
        "leave out .cuda() and .to('cuda'): tuner moves the model and the data to the trial's device"
    ),
    ("all tensors to be on the same device",): (
        "leave out .cuda() and .to(device): tuner moves the model and the data to the trial's device"
    ),
}


def arguments_of(name: str) -> str:
    """Returns the arguments of a function, which is named as in errors: `metrics['acc']` or `model(config)`."""
    return ARGUMENTS.get(name.partition("(")[0], "outputs, targets")


def advice_on(error: BaseException, config: Mapping[str, Any], name: str = "", last_batch: str = "") -> str:
    """Says what to do about an error that users often make; empty for other errors.

    Args:
        name: the name of the function that raised the error, as for `arguments_of`.
        last_batch: the advice on a batch of one example; empty if the error is not from a model's forward pass.
    """
    text = str(error)
    if config and isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return f"config has {', '.join(config)}{nearest(error.args[0], config)}"
    if isinstance(error, SystemExit):
        return "raise an exception that says what is wrong, or return; a function must not end the process"
    if isinstance(error, RecursionError):
        return "the function calls itself without an end"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"install {error.name.partition('.')[0]!r}, or correct the name"
    if isinstance(error, FileNotFoundError) and error.filename and not Path(str(error.filename)).is_absolute():
        return f"relative paths start in {Path.cwd()}: give an absolute path, or --data-dir DIR and read data_dir / ..."
    if "must be Tensor, not tuple" in text or "must be Tensor, not list" in text or "'tuple' object has no" in text:
        return "the model returns several values: return the scores alone, or use Task(loss=...)"
    if "Expected more than 1 value per channel" in text:
        return last_batch
    if name and isinstance(error, TypeError) and "positional argument" in text and _at_call(error):
        return f"write it as lambda {arguments_of(name)}: ..."
    if isinstance(error, MemoryError) or "tried to allocate" in text:
        what = "the model or the batch" if last_batch else "this array or layer"
        return f"this machine has less memory: make {what} smaller"
    texts = [name for name, value in config.items() if isinstance(value, str) and is_number(value)]
    if texts and ("str" in text or "not supported between" in text):
        return f"parameter {texts[0]!r} is the text {config[texts[0]]!r}: write the number without quotes in params"
    return next((advice for words, advice in KNOWN.items() if all(word in text for word in words)), "")


def advice_of_class(name: str, function: object) -> str:
    """Says what to write for a class that a Task has as a function, such as nn.CrossEntropyLoss; empty for others."""
    if not isinstance(function, type):
        return ""
    if "loss" in name or "metrics" in name:
        return f"give an object, not the class: {function.__name__}()"
    more = {"optimizer": "parameters, lr=config['lr']", "schedule": "optimizer, ..."}.get(name.partition("(")[0], "...")
    return f"write it as lambda {arguments_of(name)}: {function.__name__}({more})"


def counted(splits: Splits) -> str:
    """Says how many training examples there are, and how many examples are for validation."""
    num, held_out = len(splits.train), len(splits.validation or ())
    return f"{num} training examples ({held_out} of {num + held_out} are for validation)"


def batch_of_one(splits: Splits, size: int) -> str:
    """Says what to do about a batch of one example, which batch norm cannot train on."""
    num = len(splits.train)
    other = next((each for each in range(size + 1, num) if num % each != 1), num)
    return f"a batch has 1 of the {counted(splits)}: give another batch_size, such as {other}"


def _at_call(error: BaseException) -> bool:
    """Whether tuner's own call raised the error, rather than a line of the function."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def is_number(text: str) -> bool:
    try:
        float(text)
        return True
    except ValueError:
        return False


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
