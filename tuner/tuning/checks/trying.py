"""Tries one setting of the parameters: trains and evaluates on about one batch, and saves the state.

It wraps the Task's functions and the model's forward pass, so that an error names the function that failed or returned
a wrong value. An error about NaN or infinity in the data names the first such example.
"""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils import _pytree

from tuner.engine.workers.own_folder import scratch_folder
from tuner.errors import OUT_OF_MEMORY, nearest
from tuner.errors.users_code import place_of, place_raised
from tuner.spec.experiment import Experiment
from tuner.spec.patience import patience
from tuner.spec.space import Space
from tuner.spec.spaces import with_place
from tuner.training.data import Arrays, DataError, Files, HeldOut, Mapped, Splits, read_examples
from tuner.training.loop import Training
from tuner.training.metrics import MAX_OUTPUT_BYTES, REMEDY, bytes_of, of_batch
from tuner.training.parallel import stages_of
from tuner.training.plain import load_plain
from tuner.training.sources import predicts_classes
from tuner.training.task import METRICS, Task, TrialSpec, kept_streams, mean_of_batches, streams, whole_config
from tuner.tuning.checks.failed import (
    CONFIG,
    INPUTS,
    OPTIMIZER,
    OUTPUTS,
    PARAMETERS,
    SKIP,
    CheckFailed,
    Config,
    advice_on,
)

logger = logging.getLogger(__name__)
MAX_BATCH_VALUES = 2**13  # of 10 MNIST images; with 85 CIFAR images, MobileNet at 112 pixels would take 30 s
MOST_TARGETS = 2_000  # that a metric is tried with
CHUNK_BYTES = 2**20  # bytes that are searched for NaN at a time: 614 MB (CIFAR-10 as float32) take 0.11 s in all
NAN = "look for log(0), a division by 0 or an overflow"
BY_GRADIENTS = "by operations with a gradient: no argmax, ==, round, detach, item or no_grad"
MEAN = "its mean over the batch, a tensor without dimensions (no .item())"
SCHEDULE = "a learning-rate scheduler that steps without a metric, such as CosineAnnealingLR(optimizer, max_epochs)"


def try_settings(
    _: Config,
    material: tuple[Any, Any],
    *,
    settings: list[tuple[str, Config]],
    odd: Mapping[str, int | None],
    experiment: Experiment,
    gpus: float | str,
) -> tuple[dict[str, CheckFailed], dict[str, str], list[str]]:
    """Tries one batch with each setting, by its name; returns which diverge, which cannot be tried, and the warnings.

    Raises CheckFailed if a trial would fail.
    """
    diverged: dict[str, CheckFailed] = {}
    untried: dict[str, str] = {}
    doing = ""
    with scratch_folder(experiment.space), patience(lambda: doing, SKIP), kept_streams(), silence() as heard:
        for number, (name, config) in enumerate(settings, 1):
            doing = f"trying the space on one batch ({name}; {number} of {len(settings)})"
            try:
                if blamed := try_setting(*material, odd, config, experiment):
                    diverged[name] = replace(blamed, tried=config)
            except CheckFailed as failed:
                failed.tried = failed.tried or config
                if not _is_of_this_process(failed.problem, gpus):
                    raise
                untried[name] = failed.problem
    return diverged, untried, [" ".join(str(each.message).split()) for each in heard]


def _is_of_this_process(problem: str, gpus: float | str) -> bool:
    """Whether a trial may succeed nevertheless: this process ran out of memory, or lacks the GPU that trials get."""
    needs_gpu = any(word in problem for word in ("CUDA", "cuda", "'CPU'", "GPU"))
    return any(text in problem for text in (*OUT_OF_MEMORY, "MemoryError")) or bool(gpus and needs_gpu)


BROADCASTS = "seems to compare each output with all targets:"  # begins the text of a warning


@contextlib.contextmanager
def silence() -> Iterator[list[warnings.WarningMessage]]:
    """Drops what the user's functions print, and yields Python's warnings; makes `os._exit` raise SystemExit."""
    process, ends = os.getpid(), os._exit
    dropped = open(os.devnull, "w")  # not closed, because a user's log handler may use it later

    def leave(status: int) -> NoReturn:
        if os.getpid() != process:  # a forked process, such as a DataLoader's
            ends(status)
        raise SystemExit(f"os._exit({status})")

    with (
        mock.patch.object(os, "_exit", leave),
        contextlib.redirect_stdout(dropped),
        contextlib.redirect_stderr(dropped),
        warnings.catch_warnings(record=True) as heard,
    ):
        warnings.simplefilter("always")
        yield heard


def _is_mean(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _steps(value: Any) -> bool:
    """Whether training can use a value as an optimizer or a schedule."""
    fits = hasattr(value, "step") and hasattr(value, "state_dict") and not isinstance(value, type)
    return fits and not isinstance(value, ReduceLROnPlateau)


class Wanted(NamedTuple):
    """A function of a Task: its name in errors, its arguments, the check of what it returns, what it should return."""

    name: str
    arguments: str
    fits: Callable[[Any], bool]
    returns: str


FUNCTIONS = {
    "model": Wanted("model(config)", CONFIG, lambda it: isinstance(it, nn.Module), "a torch.nn.Module, such as Net()"),
    "optimizer": Wanted(f"optimizer({PARAMETERS})", PARAMETERS, _steps, "a torch.optim.Optimizer"),
    "loss": Wanted("the loss", OUTPUTS, _is_mean, MEAN),
    "training_loss": Wanted("training_loss", f"{OUTPUTS}, config", _is_mean, MEAN),
    "schedule": Wanted(f"schedule({OPTIMIZER})", OPTIMIZER, _steps, SCHEDULE),
    "prepare": Wanted("prepare", INPUTS, torch.is_tensor, "the prepared inputs, a tensor"),
    "augment": Wanted("augment", INPUTS, torch.is_tensor, "the augmented inputs, a tensor"),
}
METRIC = Wanted("", OUTPUTS, lambda it: float(it) is not None, "one number for all examples")
OF_MODEL = Wanted("", "model", METRIC.fits, "a number")
FORWARD = Wanted("the model", INPUTS, lambda outputs: True, "")


class TracedConfig(dict[str, Any]):
    """A config whose own KeyError lists its keys; a KeyError of another dictionary gets no such note."""

    def __init__(self, config: Config, name: str = "config") -> None:
        self._name = name
        inner = {key: TracedConfig(value, f"{name}[{key!r}]") for key, value in config.items() if type(value) is dict}
        super().__init__(config | inner)

    def __missing__(self, key: str) -> Any:
        error = KeyError(key)
        error.add_note(f"{self._name} has {', '.join(self)}{nearest(str(key), self)}")
        raise error


class TracedTask:
    """Wraps a Task for one setting: functions of `self.task` raise CheckFailed on an error or a wrong value.

    `forward` is the file and line of the forward pass; `blamed` is what made the first training loss NaN or infinite.
    """

    def __init__(self, task: Task, splits: Splits) -> None:
        self.forward = place_of(task.model)
        self.blamed: CheckFailed | None = None
        self._splits, self._unset, self._is_first = splits, "", True
        self._own = task = replace(task, loss=task.loss or nn.functional.cross_entropy)
        self._minimized = "training_loss" if task.training_loss else "the loss"
        metrics: dict[str, Any] = {
            field: {
                name: self._traced_metric(metric, wanted._replace(name=f"{field}[{name!r}]"))
                for name, metric in getattr(task, field).items()
            }
            for field, wanted in zip(METRICS, (METRIC, METRIC, OF_MODEL), strict=True)
        }
        functions = {field: getattr(task, field) for field in FUNCTIONS}
        traced = {field: self._traced(each, FUNCTIONS[field]) for field, each in functions.items() if each is not None}
        self.task = replace(task, **traced, **metrics, compile=False, stages=None)

    def trace_forward(self, model: nn.Module) -> None:
        weights = dict(model.named_parameters())
        unset = (name for name, value in weights.items() if not value.isfinite().all())
        self.forward, self._unset = place_of(model.forward) or self.forward, next(unset, "")
        if frozen := sum(value.numel() for value in weights.values() if not value.requires_grad):
            total = sum(value.numel() for value in weights.values())
            text = f"frozen weights: {frozen:,} of {total:,} (requires_grad=False); no trial trains them"
            warnings.warn(text, stacklevel=1)
        model.forward = self._traced(model.forward, FORWARD)

    def _traced_metric(self, metric: Any, wanted: Wanted) -> Any:
        """Wraps a metric, so that one of a whole part gets about as many targets as trials give it, if they are known.

        A few examples may have one class alone, for which no AUC is defined. The outputs are those of the tried batch.
        """
        if isinstance(metric, mean_of_batches):
            return mean_of_batches(self._traced(metric, wanted))
        if wanted.arguments != OUTPUTS:
            return self._traced(metric, wanted)
        function, known = of_batch(metric), getattr(self._splits.validation, "targets", None)

        def call(outputs: Any, targets: Tensor) -> Any:
            if known is None:
                return function(outputs, targets)
            if not streams(metric) and bytes_of(outputs) / len(targets) * len(known) > MAX_OUTPUT_BYTES:
                raise ValueError(f"the outputs of all {len(known):,} examples are too large to keep; {REMEDY}")
            some = np.unique(np.linspace(0, len(known) - 1, MOST_TARGETS).astype(int))
            rows = torch.arange(len(some)) % len(targets)
            many = _pytree.tree_map(lambda each: each[rows.to(each.device)], outputs)
            return function(many, torch.as_tensor(known[some]).to(targets))

        return self._traced(functools.update_wrapper(call, function), wanted)

    def _traced(self, function: Any, wanted: Wanted) -> Any:
        name = wanted.name

        def call(*arguments: Any, **options: Any) -> Any:
            minimized = name == self._minimized and torch.is_grad_enabled()  # an evaluation has no gradients
            if minimized and self._is_first and predicts_classes(self._own):
                check_classes(self._own, self._splits, arguments[0])
            try:
                given = (TracedConfig(each) if type(each) is dict else each for each in arguments)
                value = function(*given, **options)
            except (Exception, SystemExit) as error:
                place = place_of(function) or (self.forward if name == "the model" else "")
                raised = place_raised(error)
                tensors = self._tensors(wanted, arguments, not (raised or place))
                advice = [tensors, advice_on(error, function, wanted.arguments)]
                problem = f"raises {with_place(error)}{'' if raised else place}"
                raise CheckFailed(name, problem, "; ".join(filter(None, advice))) from error
            fits = False
            with contextlib.suppress(TypeError, ValueError, RuntimeError):  # a metric's value that is no number
                fits = wanted.fits(value)
            if not fits:
                made = f"an object: {value.__name__}(...)" if isinstance(value, type) else wanted.returns
                raise CheckFailed(f"{name}{place_of(function)}", f"returns {described(value)}", f"return {made}")
            if minimized:
                if self._is_first:
                    _warn_of_broadcast(function, value, *arguments)
                self._check_loss(f"{name}{place_of(function)}", arguments[0], value)
            return value

        return call

    def _tensors(self, wanted: Wanted, arguments: tuple[Any, ...], with_places: bool) -> str:
        """Describes the tensors that a function got; `with_places` adds where the user's model and data are defined."""
        if not any(isinstance(each, Tensor) for each in arguments):
            return ""
        places = ["", "", ""]
        if with_places and len(arguments) > 1:
            places[:2] = self.forward, place_of(self._own.data)
        texts = zip(wanted.arguments.split(", "), arguments, places, strict=False)
        text = ", ".join(f"{argument}: {described(value)}{place}" for argument, value, place in texts)
        if wanted.name == "the loss" and predicts_classes(self._own):  # torch's own loss, whose arguments are known
            outputs, targets = arguments[:2]
            if not isinstance(outputs, Tensor):
                text += "; cross-entropy takes one tensor: return the scores alone, or use Task(loss=...)"
            elif targets.is_floating_point() and targets.shape != outputs.shape:
                text += "; class numbers are integers: return targets.astype('int64')"
        return f"it gets {text}"

    def _check_loss(self, loss: str, outputs: Any, value: Tensor) -> None:
        """Raises CheckFailed if the loss has no gradient; sets `blamed` if the first loss is not finite."""
        if not value.requires_grad:
            if isinstance(outputs, Tensor) and not outputs.requires_grad:
                advice = f"compute them {BY_GRADIENTS}, and leave requires_grad at True in the layers to train"
                raise CheckFailed(f"the model{self.forward}", "gives outputs without a gradient", advice)
            raise CheckFailed(loss, "has no gradient", f"compute it from the outputs {BY_GRADIENTS}")
        if self._is_first and not value.isfinite():
            self.blamed = self._blame(outputs)
        self._is_first = False

    def _blame(self, outputs: Any) -> CheckFailed:
        if self._unset:
            made, problem = place_of(self._own.model), f"makes {self._unset!r} with NaN or infinite values"
            return CheckFailed(f"model(config){made}", problem, "initialize it with finite numbers")
        if isinstance(outputs, Tensor) and not outputs.isfinite().all():
            problem = "gives outputs with NaN or infinite values on the first batch"
            return CheckFailed(f"the model{self.forward}", problem, f"{NAN} in its forward pass")
        place = place_of(self._own.training_loss or self._own.loss) or self.forward
        return CheckFailed(f"the loss{place}", "is not a finite number on the first batch", f"{NAN} in it")


def _warn_of_broadcast(loss: Callable[..., Tensor], value: Tensor, outputs: Any, targets: Any, *rest: Any) -> None:
    """Warns if the `value` of a loss with outputs (N, 1) and targets (N,) is of all N * N pairs."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and outputs.shape == (*targets.shape, 1)):
        return
    with torch.no_grad(), contextlib.suppress(Exception):  # the loss may need outputs of this shape
        is_exact = bool(value.isfinite()) and torch.equal(loss(outputs, targets, *rest), value)  # it draws nothing
        if is_exact and not torch.isclose(loss(outputs.squeeze(-1), targets, *rest), value):
            shapes = f"outputs of shape {tuple(outputs.shape)}, targets of shape {tuple(targets.shape)}"
            warnings.warn(f"{BROADCASTS} {shapes}: give both one shape, by .squeeze(-1) in the model", stacklevel=2)


def try_setting(
    task: Task, splits: Splits, odd: Mapping[str, int | None], config: Config, experiment: Experiment
) -> CheckFailed | None:
    """Trains and evaluates on about one batch, and saves the state; raises CheckFailed if a trial would fail.

    Returns the cause of a NaN or infinite loss, if known. `odd` maps each part to its first row with NaN or infinity.
    """
    whole = whole_config(config, data_constants=splits.constants)
    try:
        batch_size = task.batch_size_of(whole)
    except ValueError as error:
        raise CheckFailed("parameter 'batch_size':" if "batch_size" in whole else "Task:", str(error)) from error
    parts = {"train": splits.train, "validation": splits.validation}
    batches = {name: batch_of(part, name, batch_size, odd.get(name)) for name, part in parts.items()}
    small, traced = replace(splits, **batches, test=None), TracedTask(task, splits)  # type: ignore[arg-type]
    spec = TrialSpec(config, seed=0, max_epochs=experiment.max_epochs, precision=experiment.precision)
    try:
        with contextlib.closing(Training(traced.task, small, spec)) as training:
            trained = {id(each) for group in training.optimizer.param_groups for each in group["params"]}
            if training.parameters and trained.isdisjoint(map(id, training.parameters)):
                part = f"{FUNCTIONS['optimizer'].name}{place_of(task.optimizer)}"
                advice = "use its argument `parameters`; it must not build another model"
                raise CheckFailed(part, "trains no parameter of the model", advice)
            traced.trace_forward(training.model)
            report = training.run_epoch()
            training.final_metrics()
            _check_stages(task, training)
            _check_state(training)
    except CheckFailed:
        raise
    except (Exception, SystemExit) as error:
        place = "" if place_raised(error) else f" after the forward pass{traced.forward}"
        raise CheckFailed(f"a training step{place}", f"raises {with_place(error)}", advice_on(error)) from error
    for (name, part), key in zip(parts.items(), ("train_loss", "loss"), strict=True):
        # In files and datasets, only the tried examples are searched for NaN and infinity.
        row = odd.get(name) if isinstance(part, Arrays) else nonfinite_row(batches[name])
        if row is not None and not math.isfinite(report[key]):
            return nonfinite_data(task, splits, name, row)
    return traced.blamed


def _check_stages(task: Task, training: Training) -> None:
    """Raises CheckFailed if the stages of a model give other outputs than the whole model, which is tested."""
    if task.stages is None:
        return
    model, outputs = training.model.eval(), training.train_examples.sample
    with torch.no_grad():
        whole = model(outputs)
        for stage in stages_of(model, task, 2):
            outputs = stage(outputs)
    if not all(map(_close, _pytree.tree_leaves(outputs), _pytree.tree_leaves(whole))):
        problem = "run in order, give other outputs than the whole model"
        advice = "each operation of its forward must be in a stage, as a module: nn.Flatten(), nn.ReLU()"
        raise CheckFailed(f"the stages{place_of(task.stages)}", problem, advice)


def _close(one: Any, other: Any) -> bool:
    same = torch.is_tensor(one) and torch.is_tensor(other) and one.shape == other.shape
    return same and torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)


def _check_state(training: Training) -> None:
    """Saves and loads the training's state as in a checkpoint, but with empty tensors: full ones may take GB."""
    state = _pytree.tree_map(lambda each: each.new_empty(0) if torch.is_tensor(each) else each, training.state_dict())
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        load_plain(file)
    except Exception as error:
        advice = "keep tensors, numbers, texts, lists and dicts in the state_dict of model, optimizer and schedule"
        problem = with_place(error).partition(". ")[0]  # torch's text goes on for ten sentences
        raise CheckFailed("a checkpoint", f"cannot be saved and loaded: {problem}", advice) from error


def check_lengths(splits: Splits, space: Space) -> None:
    """Raises CheckFailed if a part of the data is empty; warns if a constant batch_size exceeds the train examples."""
    assert space.task is not None
    advice = {"validation": "give more examples, or Splits(validation=...)", "test": "leave it out, or give some"}
    for name, part in splits.parts.items():
        if len(part) == 0:
            where = f"the {name} part of the data{place_of(space.task.data)}"
            raise CheckFailed(where, "has no examples", advice.get(name, "the data function must return some"))
    size = whole_config(space.declared, data_constants=splits.constants).get("batch_size", space.task.batch_size)
    num, held_out = len(splits.train), len(splits.validation)
    if isinstance(size, int) and size > num:
        text = "batch_size %d is above the %d training examples (%d of %d are for validation): each epoch is one batch"
        logger.warning(text, size, num, held_out, num + held_out)


def nonfinite_row(part: Any) -> int | None:
    """Returns the first row with NaN or infinity in input or target; None if there is none, or `part` is not Arrays."""
    rows = []
    for values in (part.inputs, part.targets) if isinstance(part, Arrays) else ():
        if values.dtype.kind in "fc" and values.size:
            step = max(1, CHUNK_BYTES * len(values) // values.nbytes)
            for start in range(0, len(values), step):
                finite = np.isfinite(values[start : start + step])
                if not finite.all():
                    rows.append(start + int(finite.reshape(len(finite), -1).all(axis=1).argmin()))
                    break
    return min(rows, default=None)


def nonfinite_data(task: Task, splits: Splits, name: str, row: int) -> CheckFailed:
    """Returns the error that names an example with NaN or infinity: by its file, or its number in `data`'s result."""
    part = splits.parts[name]
    is_held_out = isinstance(splits, HeldOut) and name == "validation"
    if isinstance(part, Files):
        example = part.path(row)
    elif isinstance(part, Mapped):
        example = f"item {part.rows[row]} of the {type(part.dataset).__name__}"
    else:
        number = splits.rows[name][row] if isinstance(splits, HeldOut) and name in splits.rows else row
        where = " of train (counted from 0), which is held out for validation" if is_held_out else " (counted from 0)"
        example = f"example {number}{where}"
    problem = f"has NaN or infinite values, the first in {example}"
    return CheckFailed(f"the {name} part of the data{place_of(task.data)}", problem, "replace or drop them")


def batch_of(part: Any, name: str, batch_size: int, odd: int | None) -> Arrays:
    """Returns a part's first examples and row `odd`: a full and a smaller batch, or fewer if examples are large."""
    values = np.size(part.inputs[0]) if isinstance(part, Arrays) else MAX_BATCH_VALUES // 8
    most = max(2, MAX_BATCH_VALUES // max(1, int(values)))
    rest = len(part) % batch_size
    # If an epoch's last batch has one example, a batch of one is tried, because batch norm cannot train on it.
    num = batch_size + rest if batch_size <= most else 1 if rest == 1 else most
    rows = np.arange(min(num, len(part)))
    if isinstance(part, Arrays):
        return part.take(rows if odd is None or odd in rows else np.array([*rows[:-1], odd]))
    try:
        inputs, targets = read_examples(part, rows.tolist())
    except DataError as error:
        raise CheckFailed(f"the {name} part of the data:", f"{error}{place_raised(error)}") from error
    return Arrays(np.stack(inputs), targets)


def check_classes(task: Task, splits: Splits, outputs: Any) -> None:
    """Raises CheckFailed if the model has no output for a target's class number; a GPU's error only says `assert`."""
    num_outputs: int = outputs.shape[1] if getattr(outputs, "ndim", 0) >= 2 else 0
    for name, part in splits.parts.items() if num_outputs else ():
        targets = getattr(part, "targets", None)
        if targets is None or targets.dtype != np.int64 or targets.ndim != 1:
            continue
        classes = targets[targets != getattr(task.loss, "ignore_index", -100)]
        low, high = (int(classes.min()), int(classes.max())) if len(classes) else (0, 0)
        if low < 0 or high >= num_outputs:
            problem = f"go from {low} to {high}, but the model has {num_outputs} outputs"
            more = "loss=nn.CrossEntropyLoss(ignore_index=-1)" if low < 0 else "the model more outputs"
            advice = f"class numbers go from 0 to {num_outputs - 1}: renumber the targets, or give {more}"
            raise CheckFailed(f"the {name} targets{place_of(task.data)}", problem, advice)


def described(value: Any) -> str:
    """Describes a tensor or array by its shape and dtype, and any other value by its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"shape {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"
