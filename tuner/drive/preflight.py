"""Checks a space before its first trial: one batch goes through each of its functions, in this process, on the CPU.

The check uses the trials' own training loop. It tries the smallest values of all parameters first, then changes one
parameter at a time, and stops after `BUDGET_S`. A line says what it left out. Every random stream is restored.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import math
import os
import re
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tuner.drive.advice import NEGATIVE, advice_on, arguments_of, batch_of_one, counted, described
from tuner.drive.patience import patience
from tuner.errors import OUT_OF_MEMORY, RequestError, say
from tuner.spec import domains, parameters
from tuner.spec.experiment import nested
from tuner.spec.space import Space
from tuner.spec.spaces import line_written, place_of, place_raised, said, with_line, with_place
from tuner.training.data import Arrays, DataError, Part, Splits, read_examples
from tuner.training.task import Task

if TYPE_CHECKING:
    from tuner.drive.session import Request
    from tuner.training.loop import Training

logger = logging.getLogger(__name__)
BUDGET_S = 1.5  # after this time no further setting is tried
# Input values of the batch that is tried: 10 MNIST images. With 85 CIFAR images, MobileNet at 112 pixels takes 30 s.
MOST_VALUES = 2**13
# A model with more weights is tried with one setting, and its checkpoint without the tensors: 300 million weights take
# 1.2 GB, and as much again for gradients, momentum and each copy.
LARGE_MODEL = 20_000_000
LARGEST_SCAN = 2**28  # bytes of a part's inputs that are searched for NaN, at 1 GB/s
SKIP = "; --no-preflight skips this check"
Config = dict[str, Any]


@dataclass
class Failed(Exception):
    """A part of the task fails; `advice` says what is expected and what to do."""

    part: str
    problem: str
    advice: str = ""


class Late(Exception):
    """The time is up; what is left of a setting that is not the first is not tried."""


@dataclass
class Tries:
    """The settings that were tried, and what was left out to save time."""

    began: float = field(default_factory=time.perf_counter)
    tried: Config = field(default_factory=dict)  # the last one
    num: int = 0
    losses: list[float] = field(default_factory=list)  # of the first batch of each setting, before any update
    broken: bool = False  # whether any batch had a loss that is not finite
    left_out: list[str] = field(default_factory=list)
    forward: str = ""  # where the user's code defines the forward pass

    @property
    def late(self) -> bool:
        """Whether the time is up; a first setting is tried in any case."""
        return self.num > 1 and time.perf_counter() - self.began > 2 * BUDGET_S


def check(request: Request) -> None:
    """Checks the task or the function of a request whose data has been read.

    Raises:
        RequestError: a trial would fail; the text names the user's function, file and line, and the tried values.
    """
    space, tries = request.loaded_space.space, Tries()
    try:
        check_parts(request)
        if space.task is not None and request.splits is not None:
            check_task(request, space.task, request.splits, tries)
    except Failed as failed:
        if forgiven(failed.problem, request):
            return
        values = ", ".join(f"{name}={shown(value)}" for name, value in domains.leaves(tries.tried))
        parts = [f"{failed.part} {failed.problem}", failed.advice, f"tried with {values}" if values else ""]
        text = with_line("; ".join(part for part in parts if part), request.loaded_space.path)
        raise RequestError(f"--space {request.experiment.space}: {text}") from failed


def check_task(request: Request, task: Task, splits: Splits, tries: Tries) -> None:
    """Tries settings on one batch while there is time; raises a Failed for what fails."""
    from tuner.training.streams import kept_streams

    check_lengths(splits, request.loaded_space.space)
    quiet = silence()
    with patience("trying the space on one batch", SKIP), kept_streams(), quiet as heard, contextlib.suppress(Late):
        for config in settings(request.loaded_space.space, request.experiment.seed, tries):
            tries.tried = config
            tries.num += 1
            try_setting(request, task, splits, tries)
    check_losses(tries, splits, task)
    tries.tried = {}
    warn_of(heard, task)
    if tries.left_out:
        settled, left_out = "s" if tries.num > 1 else "", ", ".join(dict.fromkeys(tries.left_out))
        seconds = time.perf_counter() - tries.began
        tried = f"tried {tries.num} setting{settled} in {seconds:.1f} s"
        say(f"preflight passed: {tried}; not tried, to save time: {left_out}")


def forgiven(problem: str, request: Request) -> bool:
    """Whether a failure says nothing about trials: memory ran out here, or the model needs a GPU, which trials have."""
    gpus = request.resources.gpus if request.resources else request.experiment.gpus_per_trial
    asked = re.search(r"tried to allocate (\d+) bytes", problem)
    if asked and int(asked[1]) > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") and not gpus:
        return bool(request.experiment.address)  # no trial of this machine has that memory
    needs_gpu = any(word in problem for word in ("CUDA", "cuda", "'CPU'", "GPU"))
    return any(text in problem for text in OUT_OF_MEMORY) or "MemoryError" in problem or bool(gpus and needs_gpu)


def shown(value: Any) -> str:
    return (
        str(float(f"{value:.5g}"))
        if isinstance(value, float)
        else repr(value)
        if isinstance(value, str)
        else str(value)
    )


@contextlib.contextmanager
def silence() -> Iterator[list[warnings.WarningMessage]]:
    """Drops what the user's functions print; their trials print it again. Gives the list of their warnings.

    `os._exit` raises SystemExit here; it would end the command without a word.
    """
    process, ends = os.getpid(), os._exit

    def leave(status: int) -> NoReturn:
        if os.getpid() != process:  # a loader process that has been forked
            ends(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = leave
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                yield heard
            finally:
                os._exit = ends


WARNINGS = {  # a part of torch's warning -> the part of the task, and what to do
    "Using a target size": ("loss", "give targets the shape of the outputs; else the loss compares every pair of them"),
    "Implicit dimension choice": (
        "model",
        "give softmax its dim=1, the dimension of the classes; cross-entropy wants scores without softmax",
    ),
}


def warn_of(heard: list[warnings.WarningMessage], task: Task) -> None:
    """Logs torch's warnings of mistakes that give a wrong loss and no error, once each."""
    for part, (name, advice) in WARNINGS.items():
        for each in heard:
            if part in str(each.message):
                text = str(each.message).partition(". ")[0]
                logger.warning("the %s%s: %s: %s", name, place_of(getattr(task, name)), text, advice)
                break


class NoNetwork(OSError):
    """A dry run does not use the network."""


@contextlib.contextmanager
def no_network() -> Iterator[list[str]]:
    """Refuses connections to other machines; gives the list of the hosts that were asked for."""
    hosts: list[str] = []
    local = ("localhost", "127.0.0.1", "::1", "", None)
    look_up, connect = socket.getaddrinfo, socket.socket.connect

    def refused(host: Any) -> None:
        if host not in local:
            hosts.append(str(host))
            raise NoNetwork(f"a dry run does not connect to {host}")

    def looking_up(host: Any, *arguments: Any, **options: Any) -> Any:
        refused(host.decode() if isinstance(host, bytes) else host)
        return look_up(host, *arguments, **options)

    def connecting(self: socket.socket, address: Any) -> Any:
        refused(address[0] if isinstance(address, tuple) else "")
        return connect(self, address)

    socket.getaddrinfo, socket.socket.connect = looking_up, connecting  # type: ignore[assignment,method-assign]
    try:
        yield hosts
    finally:
        socket.getaddrinfo, socket.socket.connect = look_up, connect  # type: ignore[method-assign]


def rehearse(request: Request) -> str:
    """Checks the space for a dry run, with data that is on this machine; returns what became of it.

    Raises:
        RequestError: a trial would fail.
    """
    from tuner.drive.session import load_data

    started = time.perf_counter()
    with no_network() as hosts:
        try:
            request = load_data(request)
        except RequestError as error:
            if hosts:
                return f"not run: the data comes from the network ({hosts[0]}), which a dry run does not use"
            cause = error.__cause__
            if not request.experiment.data_dir and (isinstance(cause, DataError) or "--data-dir DIR" in str(error)):
                return f"not run: {error}"
            raise
        check(request)
    where = f", on data of this machine; the search asks {hosts[0]} for its data" if hosts else ""
    return f"passed in {time.perf_counter() - started:.1f} s{where}"


def check_parts(request: Request) -> None:
    """Checks that the functions, and datasets that trials read, can be sent to a worker."""
    from ray import cloudpickle

    from tuner.engine import probe

    space = request.loaded_space.space
    probe.by_value(request.loaded_space)
    functions: dict[str, Any] = {"train": space.train} if space.task is None else dict(vars(space.task))
    metrics = functions.pop("metrics", {})
    if space.task is not None:
        from torch import nn

        if isinstance(space.task.model, nn.Module):
            line = line_written(request.loaded_space.path, "model", "Task")
            part = f"Task(model=...){line and f' ({request.loaded_space.path}, {line})'}"
            raise Failed(part, "is a module, not a function", "write model=lambda config: Net(...)")
    functions |= {f"metrics[{name!r}]": metric for name, metric in metrics.items()}
    for name, function in functions.items():
        sendable(name, function, cloudpickle)
    for name in ("train", "validation", "test") if request.splits else ():
        part = getattr(request.splits, name)
        if part is not None and not isinstance(part, Arrays):
            sendable(f"the {name} data", getattr(part, "dataset", None) or part, cloudpickle)


def sendable(name: str, value: Any, cloudpickle: Any) -> None:
    """Raises a Failed that names the captured variable if a value cannot be sent to a worker."""
    try:
        cloudpickle.CloudPickler(Nowhere(), protocol=5, buffer_callback=lambda buffer: None).dump(value)
        return
    except Exception as error:  # an object's own __reduce__ may raise anything
        problem = said(error)
    from ray.util import inspect_serializability

    _, failures = inspect_serializability(value, name=name, print_file=io.StringIO())
    found = sorted((path_of(failure), type(failure.obj).__name__) for failure in failures)
    captured, uses = [each for each in found if each[0]], "cannot be sent"
    if captured:
        (variable, *_), kind = captured[0]
        known = variables_of(value)
        kind = type(known[variable]).__name__ if variable in known else kind
        uses = f"uses {variable!r}, {FILES.get(kind, f'a {kind}')}, which cannot be sent"
    part = f"{name}{place_of(value)}"
    where = "its __getitem__" if name.startswith("the ") else f"the function that takes ({arguments_of(name)})"
    raise Failed(part, f"{uses} to a worker process ({problem})", f"create such objects inside {where}")


FILES = dict.fromkeys(("TextIOWrapper", "BufferedReader", "BufferedWriter", "FileIO"), "an open file")


def variables_of(function: Any) -> Mapping[str, Any]:
    """The variables of outer functions and of the module that a function uses, with their values."""
    try:
        variables = inspect.getclosurevars(inspect.unwrap(function))
    except (TypeError, ValueError):
        return {}
    return {**variables.globals, **variables.nonlocals}


def path_of(failure: Any) -> tuple[str, ...]:
    """The variable of a function and the attributes that lead to an object that cannot be sent."""
    path = getattr(failure, "path", None) or ("", failure.name)  # Ray 2.59 knows only the last variable
    return tuple(map(str, path[1:]))


class Nowhere(io.RawIOBase):
    """A file that forgets what is written: only whether it can be written matters."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(memoryview(data).cast("B"))


def settings(space: Space, seed: int, tries: Tries) -> Iterator[Config]:
    """Yields configs while there is time: the smallest values, then each parameter's largest or other values."""
    from tuner.drive.sampling import seeded

    ends = {name: ends_of(domain) for name, domain in domains.leaves(space.encoded)}
    base = {name: values[0] for name, values in ends.items()}
    others = [(name, value) for name, values in ends.items() for value in values[1:]]
    for number, flat in enumerate([base, *({**base, name: value} for name, value in others)]):
        if number and (time.perf_counter() - tries.began > BUDGET_S or tries.left_out):
            tries.left_out += [f"{name}={shown(value)}" for name, value in others[number - 1 :]]
            return
        with seeded(seed, number):
            config = resolved(space, flat)
        yield config


def ends_of(domain: Any) -> list[Any]:
    """The smallest and the largest value of a domain, or all values of a choice that are no numbers."""
    kind = domains.kind(domain)
    if kind in ("choice", "grid_search"):
        values = domains.values_of(domain)
        numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
        return sorted({min(values), max(values)}) if numbers else values
    if kind == "sample_from":
        return [domain]
    if kind == "normal":
        return [domain.sample()]
    return [domains.from_unit(domain, 0.0), domains.from_unit(domain, 1.0)]


def resolved(space: Space, flat: Mapping[str, Any]) -> Config:
    """The config of flattened values; computes those of `tune.sample_from`."""
    from ray.tune.search.variant_generator import generate_variants

    config = parameters.decode(space.declared, nested(flat))
    try:
        drawn: Config = next(spec["config"] for _, spec in generate_variants({"config": config}))
    except Exception as error:  # of a function in tune.sample_from
        raise Failed("a tune.sample_from of the params", f"raises {with_place(error)}") from error
    return drawn


def try_setting(request: Request, task: Task, splits: Splits, tries: Tries) -> None:
    """Trains and evaluates a setting on one batch, and saves and loads its state; raises a Failed for what fails."""
    from tuner.training.loop import Training, checked_batch_size

    experiment, config = request.experiment, tries.tried
    whole = {**splits.constants, **config}
    try:
        batch_size = checked_batch_size(whole.get("batch_size", task.batch_size))
    except ValueError as error:
        raise Failed("parameter 'batch_size':" if "batch_size" in whole else "Task:", str(error)) from error
    small = replace(splits, train=batch_of(splits.train, "train", batch_size))
    assert splits.validation is not None
    small = replace(small, validation=batch_of(splits.validation, "validation", batch_size), test=None)
    outputs: list[Any] = []
    watched = watched_task(task, whole, tries)
    try:
        with contextlib.closing(
            Training(watched, config, small, seed=0, max_epochs=experiment.max_epochs, precision=experiment.precision)
        ) as training:
            check_parameters(training, task)
            watch_model(training, task, batch_of_one(splits, batch_size), outputs, tries)
            training.run_epoch()
            check_state(training, tries)
    except (Failed, Late):
        raise
    except (Exception, SystemExit) as error:
        raise failed_step(error, task, whole, tries.forward) from error
    check_classes(task, splits, outputs[-1] if outputs else None)


def failed_step(error: BaseException, task: Task, config: Config, forward: str) -> Failed:
    """What to say about an error of a training step that no function of the task raised, such as its backward pass."""
    text, advice = said(error), advice_on(error, config)
    if "does not require grad" in text:
        name, function = ("training_loss", task.training_loss) if task.training_loss else ("the loss", task.loss)
        return Failed(f"{name}{place_of(function) or place_of(task.model)}", "has no gradient", advice)
    if "modified by an inplace operation" in text:
        problem = "or the loss changes a value in place that the backward pass needs"
        return Failed(f"the forward pass{forward or place_of(task.model)}", problem, advice)
    if "LROnPlateau" in text:
        return Failed(f"the schedule{place_of(task.schedule)}", f"raises {with_place(error)}", advice)
    return Failed("a training step", f"raises {with_place(error)}", advice)


def check_parameters(training: Training, task: Task) -> None:
    """Checks that the optimizer trains at least one parameter of the model."""
    own = {id(parameter) for parameter in training.model.parameters()}
    given = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    if own and not any(id(parameter) in own for parameter in given):
        advice = "pass on the parameters that the function gets; it must not build another model"
        place = place_of(task.optimizer)
        raise Failed(f"optimizer(parameters, config){place}", "trains no parameter of the model", advice)


def check_lengths(splits: Splits, space: Space) -> None:
    """Checks that no part is empty, and warns if each epoch is a single batch."""
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    assert space.task is not None
    advice = {"validation": "give more examples, or Splits(validation=...)", "test": "leave it out, or give some"}
    for name, part in parts.items():
        if part is not None and len(part) == 0:
            raise Failed(
                f"the {name} part of the data{place_of(space.task.data)}",
                "has no examples",
                advice.get(name, "the data function must return some"),
            )
    size = splits.constants.get("batch_size", space.declared.get("batch_size", space.task.batch_size))
    if isinstance(size, int) and size > len(splits.train):
        logger.warning("batch_size %d is above the %s: each epoch is one batch", size, counted(splits))


def check_losses(tries: Tries, splits: Splits, task: Task) -> None:
    """Checks that at least one tried setting has a finite loss before its first update, with NaN in the data or not."""
    row, place = odd_example(splits.train), place_of(task.training_loss or task.loss)
    if not (tries.losses and tries.broken) or (row is None and any(map(math.isfinite, tries.losses))):
        return
    advice = "look for log(0), a division by 0 or a square root of 0 in the model and the loss"
    if row is not None:
        problem = f"have NaN or infinite values, the first in example {row} (counted from 0) of the {counted(splits)}"
        raise Failed(f"the train data{place_of(task.data)}", problem, "replace or drop them: np.isfinite finds them")
    raise Failed(f"the loss{place or place_of(task.model)}", "is not a finite number on the first batch", advice)


def odd_example(part: Part) -> int | None:
    """The first example of arrays with a value that is NaN or infinite; None if there is none, or they are large."""
    for values in (part.inputs, part.targets) if isinstance(part, Arrays) else ():
        if values.dtype.kind == "f" and values.nbytes <= LARGEST_SCAN:
            odd = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if odd.any():
                return int(odd.argmax())
    return None


def batch_of(part: Part, name: str, batch_size: int) -> Arrays:
    """The first batch of a part, as arrays, and its last one if that is smaller."""
    one = part if isinstance(part, Arrays) else None
    values = np.size(one.inputs[0]) if one else MOST_VALUES // 8
    most = max(2, MOST_VALUES // max(1, int(values)))
    rest = len(part) % batch_size
    # A last batch of one example is tried, because batch norm cannot train on one.
    num = batch_size + rest if batch_size <= most else 1 if rest == 1 else most
    rows = np.arange(min(num, len(part)))
    if one:
        odd = odd_example(one)  # it must come into the batch
        return one.take(rows if odd is None or odd in rows else np.array([*rows[:-1], odd]))
    assert not isinstance(part, Arrays)
    try:
        inputs, targets = read_examples(part, rows.tolist())
    except DataError as error:
        raise Failed(f"the {name} part of the data:", f"{error}{place_raised(error)}") from error
    return Arrays(np.stack(inputs), targets)


def watched_task(task: Task, config: Config, tries: Tries) -> Task:
    """The task with functions that raise a Failed with their name, and that check what they return."""
    import torch
    from torch import nn

    def watched(name: str, function: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
        if function is None:
            return None

        def call(*arguments: Any) -> Any:
            if tries.late:
                raise Late
            try:
                value = function(*arguments)
            except Failed:
                raise
            except (Exception, SystemExit) as error:
                place = "" if place_raised(error) else place_of(function)
                given = got(arguments, with_places=not (place or place_raised(error)))
                advice = "; ".join(filter(None, [given, advice_on(error, config, name)]))
                raise Failed(name, f"raises {with_place(error)}{place}", advice) from error
            if "loss" in name and fits(value):
                tries.losses += [float(value)] if len(tries.losses) < tries.num else []
                tries.broken = tries.broken or not math.isfinite(float(value))
            if not fits(value):
                made = f"an object: {value.__name__}(...)" if isinstance(value, type) else wanted
                raise Failed(f"{name}{place_of(function)}", f"returns {described(value)}", f"return {made}")
            return value

        return call

    def got(arguments: tuple[Any, ...], with_places: bool) -> str:
        """What a function got, and where it comes from if the function is not the user's own."""
        if not any(isinstance(each, torch.Tensor) for each in arguments):
            return ""
        if len(arguments) == 1:
            return f"it gets {described(arguments[0])}"
        places = (place_of(task.model), place_of(task.data)) if with_places else ("", "")
        outputs, targets = (f"{described(each)}{place}" for each, place in zip(arguments[:2], places, strict=True))
        return f"it gets outputs: {outputs}, and targets: {targets}"

    def tensor(value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def mean(value: Any) -> bool:
        return tensor(value) and value.ndim == 0

    def optimizer(value: Any) -> bool:
        return hasattr(value, "param_groups") and hasattr(value, "state_dict")

    mean_of_batch = "its mean over the batch, a tensor without dimensions (no .item())"
    metrics = {
        name: watched(f"metrics[{name!r}]", metric, number, "its mean over the batch, a tensor or a number")
        for name, metric in task.metrics.items()
    }
    loss = task.loss or nn.functional.cross_entropy
    return replace(
        task,
        model=watched(
            "model(config)",
            task.model,
            lambda value: isinstance(value, nn.Module),
            "a torch.nn.Module, such as Net(...)",
        ),
        optimizer=watched("optimizer(parameters, config)", task.optimizer, optimizer, "a torch.optim.Optimizer"),
        loss=watched("the loss", loss, mean, mean_of_batch),
        training_loss=watched("training_loss", task.training_loss, mean, mean_of_batch),
        metrics=metrics,
        schedule=watched(
            "schedule(optimizer, config, max_epochs)",
            task.schedule,
            lambda value: hasattr(value, "step") and hasattr(value, "state_dict"),
            "a learning-rate scheduler of torch.optim.lr_scheduler",
        ),
        prepare=watched("prepare", task.prepare, tensor, "the prepared inputs, a tensor"),
        augment=watched("augment", task.augment, tensor, "the augmented inputs, a tensor"),
        compile=False,
        stages=None,
    )


def number(value: Any) -> bool:
    """Whether a metric's value can be reported."""
    try:
        float(value)
        return True
    except (TypeError, ValueError, RuntimeError):
        return False


def watch_model(training: Training, task: Task, of_one: str, outputs: list[Any], tries: Tries) -> None:
    """Makes the forward pass raise a Failed with its name and inputs; `outputs` then holds its last outputs."""
    forward = training.model.forward
    tries.forward = place_of(forward)

    def call(*inputs: Any, **options: Any) -> Any:
        if tries.late:
            raise Late
        try:
            outputs[:] = [forward(*inputs, **options)]
            return outputs[0]
        except (Exception, SystemExit) as error:
            place = place_raised(error) or place_of(task.model)
            advice = f"it gets inputs of {described(inputs[0])}"
            if more := advice_on(error, training.config, last_batch=of_one):
                advice += f"; {more}"
            raise Failed("the model", f"raises {type(error).__name__}: {said(error)}{place}", advice) from error

    training.model.forward = call


def check_state(training: Training, tries: Tries) -> None:
    """Saves and loads the training's state as a checkpoint does; without its tensors if the model is large."""
    import torch
    from torch.utils import _pytree

    file = io.BytesIO()
    large = sum(each.numel() for each in training.model.parameters()) > LARGE_MODEL
    if large:
        tries.left_out.append("loading a checkpoint")
    try:
        state = training.state_dict()
        if large:
            state = _pytree.tree_map(lambda each: each.new_empty(0) if isinstance(each, torch.Tensor) else each, state)
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True, map_location="cpu")
        if not large:
            training.load_state_dict(state)
    except Exception as error:
        advice = "keep tensors, numbers, texts, lists and dicts in the state_dict of model, optimizer and schedule"
        raise Failed("a checkpoint", f"cannot be saved and loaded: {with_place(error)[:300]}", advice) from error


def check_classes(task: Task, splits: Splits, outputs: Any) -> None:
    """Checks that class numbers lie below the number of the model's outputs; on a GPU, CUDA would only say `assert`."""
    import torch

    from tuner.training.sources import predicts_classes

    if not (predicts_classes(task) and isinstance(outputs, torch.Tensor) and outputs.ndim >= 2):
        return
    for name in ("train", "validation", "test"):
        part = getattr(splits, name)
        targets = getattr(part, "targets", None)
        if targets is None or targets.dtype != np.int64 or targets.ndim != 1:
            continue
        counted = targets[targets != getattr(task.loss, "ignore_index", -100)]
        low, high = (int(counted.min()), int(counted.max())) if len(counted) else (0, 0)
        if low < 0 or high >= outputs.shape[1]:
            count = outputs.shape[1]
            raise Failed(
                f"the {name} targets{place_of(task.data)}",
                f"go from {low} to {high}, but the model has {count} outputs",
                NEGATIVE
                if low < 0
                else f"class numbers go from 0 to {count - 1}: renumber the targets, or give the model more outputs",
            )
