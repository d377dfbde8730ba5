"""Checks a space before its first trial: one batch goes through each of its functions, in this process, on the CPU.

The check uses the trials' own training loop. It tries the smallest values of all parameters first, then changes one
parameter at a time, and stops after `BUDGET_S`. Every random stream is restored.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.errors import OUT_OF_MEMORY, RequestError, nearest
from tuner.spec import domains, parameters
from tuner.spec.experiment import nested
from tuner.spec.space import Space
from tuner.spec.spaces import place_of, place_raised, with_place
from tuner.training.data import Arrays, DataError, Part, Splits, read_examples
from tuner.training.task import Task

if TYPE_CHECKING:
    from tuner.drive.session import Request
    from tuner.training.loop import Training

logger = logging.getLogger(__name__)
BUDGET_S = 1.5  # after this time no further setting is tried
# Input values of the batch that is tried: 10 MNIST images. With 85 CIFAR images, MobileNet at 112 pixels takes 30 s.
MOST_VALUES = 2**13
Config = dict[str, Any]


@dataclass
class Failed(Exception):
    """A part of the task fails; `advice` says what is expected and what to do."""

    part: str
    problem: str
    advice: str = ""


def check(request: Request) -> None:
    """Checks the task or the function of a request whose data has been read.

    Raises:
        RequestError: a trial would fail; the text names the user's function, file and line, and the tried values.
    """
    space, named = request.loaded_space.space, f"--space {request.experiment.space}: "
    tried: Config = {}
    try:
        check_parts(request)
        if space.task is not None and request.splits is not None:
            from tuner.training.streams import kept_streams

            with kept_streams(), silence() as heard:
                for tried in settings(space, request.experiment.seed):
                    try_setting(request, space.task, request.splits, tried)
            warn_of_shapes(heard, space.task)
    except Failed as failed:
        if forgiven(failed.problem, request):
            return
        values = ", ".join(f"{name}={shown(value)}" for name, value in domains.leaves(tried))
        parts = [f"{failed.part} {failed.problem}", failed.advice, f"tried with {values}" if values else ""]
        raise RequestError(named + "; ".join(part for part in parts if part)) from failed


def forgiven(problem: str, request: Request) -> bool:
    """Whether a failure says nothing about trials: memory ran out here, or the model needs a GPU, which trials have."""
    gpus = request.resources.gpus if request.resources else request.experiment.gpus_per_trial
    needs_gpu = any(word in problem for word in ("CUDA", "cuda", "'CPU'", "GPU"))
    return any(text in problem for text in OUT_OF_MEMORY) or "MemoryError" in problem or bool(gpus and needs_gpu)


def shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


@contextlib.contextmanager
def silence() -> Iterator[list[warnings.WarningMessage]]:
    """Drops what the user's functions print; their trials print it again. Gives the list of their warnings."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            yield heard


def warn_of_shapes(heard: list[warnings.WarningMessage], task: Task) -> None:
    """Logs torch's warning that a loss broadcasts outputs and targets, which gives a wrong loss and no error."""
    for each in heard:
        if "Using a target size" in str(each.message):
            text = str(each.message).partition(". ")[0]
            logger.warning("the loss%s: %s: give targets the shape of the outputs", place_of(task.loss), text)
            return


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
        problem = one_line(error)
    from ray.util import inspect_serializability

    _, failures = inspect_serializability(value, name=name, print_file=io.StringIO())
    found = sorted((path_of(failure), type(failure.obj).__name__) for failure in failures)
    captured = [f"{'.'.join(path)!r}, a {kind}" for path, kind in found if path]
    uses = f"uses {captured[0]}, which cannot be sent" if captured else "cannot be sent"
    part = f"{name}{place_of(value)}"
    raise Failed(part, f"{uses} to a worker process ({problem})", "create such objects inside the function")


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


def settings(space: Space, seed: int) -> Iterator[Config]:
    """Yields configs while there is time: the smallest values, then each parameter's largest or other values."""
    from tuner.drive.sampling import seeded

    started = time.perf_counter()
    ends = {name: ends_of(domain) for name, domain in domains.leaves(space.encoded)}
    base = {name: values[0] for name, values in ends.items()}
    flats = [base, *({**base, name: value} for name, values in ends.items() for value in values[1:])]
    for number, flat in enumerate(flats):
        if number and time.perf_counter() - started > BUDGET_S:
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


def try_setting(request: Request, task: Task, splits: Splits, config: Config) -> None:
    """Trains and evaluates a setting on one batch, and saves and loads its state; raises a Failed for what fails."""
    from tuner.training.loop import Training, checked_batch_size

    experiment = request.experiment
    whole = {**splits.constants, **config}
    try:
        batch_size = checked_batch_size(whole.get("batch_size", task.batch_size))
    except ValueError as error:
        raise Failed("Task or params:", str(error)) from error
    small = replace(splits, train=batch_of(splits.train, "train", batch_size))
    assert splits.validation is not None
    small = replace(small, validation=batch_of(splits.validation, "validation", batch_size), test=None)
    outputs: list[Any] = []
    watched = watched_task(task, whole)
    try:
        with contextlib.closing(
            Training(watched, config, small, seed=0, max_epochs=experiment.max_epochs, precision=experiment.precision)
        ) as training:
            watch_model(training, task, len(splits.train), outputs)
            training.run_epoch()
            check_state(training)
    except Failed:
        raise
    except Exception as error:
        advice = advice_on(error, whole)
        raise Failed("a training step", f"raises {with_place(error)}", advice) from error
    check_classes(task, splits, outputs[-1] if outputs else None)


def batch_of(part: Part, name: str, batch_size: int) -> Arrays:
    """The first batch of a part, as arrays, and its last one if that is smaller."""
    if len(part) == 0:
        advice = "give more examples, or Splits(validation=...)" if name == "validation" else "give some"
        raise Failed(f"the {name} part of the data", "has no examples", advice)
    one = part if isinstance(part, Arrays) else None
    values = np.size(one.inputs[0]) if one else MOST_VALUES // 8
    most = max(2, MOST_VALUES // max(1, int(values)))
    rest = len(part) % batch_size
    # A last batch of one example is tried, because batch norm cannot train on one.
    num = batch_size + rest if batch_size <= most else 1 if rest == 1 else most
    rows = np.arange(min(num, len(part)))
    if one:
        return one.take(rows)
    assert not isinstance(part, Arrays)
    try:
        inputs, targets = read_examples(part, rows.tolist())
    except DataError as error:
        raise Failed(f"the {name} part of the data:", f"{error}{place_raised(error)}") from error
    return Arrays(np.stack(inputs), targets)


def watched_task(task: Task, config: Config) -> Task:
    """The task with functions that raise a Failed with their name, and that check what they return."""
    import torch
    from torch import nn

    def watched(name: str, function: Any, fits: Callable[[Any], bool], wanted: str) -> Any:
        if function is None:
            return None

        def call(*arguments: Any) -> Any:
            try:
                value = function(*arguments)
            except Failed:
                raise
            except Exception as error:
                tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
                got = f"it gets {' and '.join(map(described, tensors))}" if tensors else ""
                advice = "; ".join(filter(None, [got, advice_on(error, config)]))
                place = "" if place_raised(error) else place_of(function) or place_of(task.data)
                raise Failed(name, f"raises {with_place(error)}{place}", advice) from error
            if not fits(value):
                raise Failed(f"{name}{place_of(function)}", f"returns {described(value)}", f"return {wanted}")
            return value

        return call

    def tensor(value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def mean(value: Any) -> bool:
        return tensor(value) and value.ndim == 0

    def optimizer(value: Any) -> bool:
        return hasattr(value, "param_groups") and hasattr(value, "state_dict")

    mean_of_batch = "its mean over the batch, a tensor without dimensions"
    metrics = {
        name: watched(f"metrics[{name!r}]", metric, number, "its mean over the batch, a tensor or a number")
        for name, metric in task.metrics.items()
    }
    loss = task.loss or nn.functional.cross_entropy
    return replace(
        task,
        model=watched("model(config)", task.model, lambda value: isinstance(value, nn.Module), "a torch.nn.Module"),
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


def watch_model(training: Training, task: Task, num: int, outputs: list[Any]) -> None:
    """Makes the forward pass raise a Failed with its name and inputs; `outputs` then holds its last outputs."""
    forward = training.model.forward

    def call(*inputs: Any, **options: Any) -> Any:
        try:
            outputs[:] = [forward(*inputs, **options)]
            return outputs[0]
        except Exception as error:
            place = place_raised(error) or place_of(task.model)
            advice = f"it gets inputs of {described(inputs[0])}"
            if more := advice_on(error, training.config, num):
                advice += f"; {more}"
            raise Failed("the model", f"raises {type(error).__name__}: {one_line(error)}{place}", advice) from error

    training.model.forward = call


def check_state(training: Training) -> None:
    """Saves and loads the training's state as a checkpoint does."""
    import torch

    file = io.BytesIO()
    try:
        torch.save(training.state_dict(), file)
        file.seek(0)
        training.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
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
                f"the {name} targets",
                f"go from {low} to {high}, but the model has {count} outputs",
                f"class numbers go from 0 to {count - 1}: renumber the targets, or give the model more outputs",
            )


def described(value: Any) -> str:
    """A tensor as its shape and type, any other value as its type."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return "None" if value is None else f"a {type(value).__name__}"
    return f"shape {tuple(shape)} {str(value.dtype).removeprefix('torch.')}"


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def advice_on(error: Exception, config: Mapping[str, Any], num: int = 0) -> str:
    """What to do about an error that users often make; empty for others.

    Args:
        num: the number of training examples.
    """
    text = str(error)
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return f"config has {', '.join(config)}{nearest(error.args[0], config)}"
    if "out of bounds" in text and "Target" in text:
        return "class numbers go from 0 to the number of outputs - 1: renumber them, or give the model more outputs"
    if "Long" in text and "expected" in text:
        return "class numbers must be int64: return targets.astype('int64')"
    if "Byte" in text or "unsigned char" in text:
        return "inputs are bytes: convert them in Task(prepare=lambda inputs: inputs.float() / 255)"
    if "must have the same dtype" in text or "should be the same" in text or "Double" in text:
        return "inputs and weights differ in type: return inputs.astype('float32'), or convert them in prepare"
    if "shapes cannot be multiplied" in text:
        return "the layer expects another number of features: change it, or flatten or reshape the inputs"
    if "Expected more than 1 value per channel" in text:
        return f"the last batch of an epoch has 1 of the {num} training examples: change batch_size, or leave one out"
    return ""
