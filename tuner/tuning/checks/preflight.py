"""Checks a space before its first trial: tries a Task in this process (one batch, CPU), or reads a function's text.

What it tries depends only on the space and the seed (`settings_of`). Afterwards it restores the random streams.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tuner.engine.cluster.probe import by_value
from tuner.engine.processes.client import EndedError, apart, share
from tuner.errors import RequestError, say
from tuner.errors.users_code import place_of, shown_path
from tuner.record.texts import formatted
from tuner.spec import domains, parameters
from tuner.spec.command import Command
from tuner.spec.metrics import is_number
from tuner.spec.patience import patience
from tuner.spec.script_text import check_reports, source_of
from tuner.spec.space import Space
from tuner.spec.spaces import message_of, with_line, with_place
from tuner.training.data import Arrays, DataError
from tuner.training.task import METRICS
from tuner.tuning.call import Request
from tuner.tuning.checks.failed import SKIP, CheckFailed, Config
from tuner.tuning.checks.request import load_data, material
from tuner.tuning.searchers.sampling import variants

logger = logging.getLogger(__name__)
# Start of a warning -> the Task's function at fault. It raises no error, but training may go wrong.
WARNINGS = {"Using a target size": "loss", "Implicit dimension choice": "model", "frozen weights": "model"}


def check(request: Request) -> Request:
    """Tries the Task of a request, or reads the text of its train function; RequestError if a trial would fail.

    Returns the `packed` request.
    """
    path = request.loaded_space.path
    try:
        _check_sendable(request)
        request = packed(request)
        if request.splits is not None:
            _check_task(request)
        else:
            _check_reporting(request.loaded_space.space.train)
        return request
    except CheckFailed as failed:
        values = ", ".join(f"{name}={shown(value)}" for name, value in domains.leaves(failed.tried))
        parts = [f"{failed.part} {failed.problem}", failed.advice, f"tried with {values}" if values else ""]
        text = with_line("; ".join(filter(None, parts)), path)
        text, place, more = text.partition(f"({shown_path(path)}, line ")
        text += place + (more.replace(place, "(line ") if place else more)  # names the file only once
        raise RequestError(f"--space {request.experiment.space}: {text}") from failed


def packed(request: Request) -> Request:
    """Returns the request with what its trials share, packed: what runs here later changes nothing of it.

    Arrays of the data are then those of the package: this process holds no second copy.
    """
    shared, splits = share(material(request)), request.splits
    if splits is not None and all(type(part) is Arrays for part in splits.parts.values()):
        _, splits = shared.here().unpacked()
    return replace(request, shared=shared, splits=splits)


def _check_sendable(request: Request) -> None:
    """Raises CheckFailed if a function of the space, or a dataset that is not Arrays, cannot be sent to a worker."""
    space, parts = request.loaded_space.space, request.splits.parts if request.splits else {}
    by_value(request.loaded_space)
    sent: dict[str, Any] = {"train": space.train} if space.task is None else dict(vars(space.task))
    for each in METRICS:
        sent |= {f"{each}[{name!r}]": metric for name, metric in sent.pop(each, {}).items()}
    own = {name: part for name, part in parts.items() if type(part) is not Arrays}
    sent |= {f"the {name} data": getattr(part, "dataset", part) for name, part in own.items()}
    listed = {n: domains.values_of(each) for n, each in domains.leaves(space.declared) if domains.is_choice(each)}
    sent |= {f"parameter {n!r}": each for n, each in listed.items() if not all(map(domains.is_constant, each))}
    for name, value in sent.items():
        if problem := _pickling_error(value):
            problem = f"{_first_unsendable(value)}cannot be sent to a worker process ({problem})"
            advice = "create such objects inside the function or __getitem__ that uses them"
            raise CheckFailed(f"{name}{place_of(value)}", problem, advice)


def _pickling_error(value: Any) -> str:
    from ray import cloudpickle

    try:
        cloudpickle.dumps(value, protocol=5, buffer_callback=lambda buffer: None)
    except Exception as error:  # an object's own __reduce__ may raise anything
        return message_of(error) or type(error).__name__
    return ""


def _first_unsendable(value: Any) -> str:
    """Returns `uses 'lock', of type lock, which ` for the first variable or attribute that cannot be pickled, or ''."""
    try:
        used = inspect.getclosurevars(inspect.unwrap(value))
        variables = {**used.globals, **used.nonlocals}
    except (TypeError, ValueError):
        variables = dict(getattr(value, "__dict__", {}))
    bad = ((name, type(each).__name__) for name, each in variables.items() if _pickling_error(each))
    return next((f"uses {name!r}, of type {kind}, which " for name, kind in bad), "")


def _check_reporting(train: Any) -> None:
    """Raises RequestError if a command's program is not found, or a function's file calls `report` without a dict."""
    if isinstance(train, Command):
        return train.check()
    while hasattr(train, "func"):  # functools.partial
        train = train.func
    file = inspect.getsourcefile(train) if inspect.isfunction(train) else None
    if file and Path(file).is_file():
        check_reports(source_of(Path(file)), file)


def _check_task(request: Request) -> None:
    """Tries one batch per config of `settings_of`; raises CheckFailed if a trial would fail or all would diverge."""
    from tuner.training.task import kept_streams
    from tuner.tuning.checks.trying import (
        BROADCASTS,
        check_lengths,
        nonfinite_data,
        nonfinite_row,
        silence,
        try_settings,
    )

    experiment, space, splits = request.experiment, request.loaded_space.space, request.splits
    assert space.task is not None and splits is not None and request.shared is not None
    check_lengths(splits, space)
    odd = {name: nonfinite_row(part) for name, part in splits.parts.items()}
    with patience("drawing the settings to try", SKIP), kept_streams(), silence():
        settings = settings_of(space, experiment.seed)
    gpus = request.resources.gpus if request.resources else experiment.gpus_per_trial
    tried = partial(try_settings, settings=settings, odd=odd, experiment=experiment, gpus=gpus)
    try:
        diverged, untried, texts = apart(request.shared, tried)
    except EndedError as error:
        raise CheckFailed("a training step", f"ends its process: {error}") from error
    for start, function in {**WARNINGS, BROADCASTS: "training_loss" if space.task.training_loss else "loss"}.items():
        if text := next((text for text in texts if text.startswith(start)), ""):
            logger.warning("the %s%s: %s", function, place_of(getattr(space.task, function)), text)
    if untried:
        why = "not possible without a GPU or with this process's memory"
        say(f"preflight (one batch before the search): {why}: {_listed(untried)} ({next(iter(untried.values()))})")
    if first := next(iter(diverged.values()), None):
        if len(diverged) + len(untried) == len(settings):
            raise first
        then = "such a trial is pruned after its first epoch"
        logger.warning("with %s, %s %s; %s", _listed(diverged), first.part, first.problem, then)
    else:
        for name, row in odd.items():
            if row is not None:
                found = nonfinite_data(space.task, splits, name, row)
                logger.warning("%s %s; %s", found.part, found.problem, found.advice)


def settings_of(space: Space, seed: int) -> list[tuple[str, Config]]:
    """Returns the configs to try, each after a text that says what it tries, such as `optimizer=adam`.

    The first config has each parameter's first value or smallest number (a normal distribution's mean). Each other
    config changes one parameter: to another value or dictionary of a choice, or to the largest number.
    """
    settings = []
    first, *_ = configs = _tried(space.declared)
    smallest = {name: repr(value) for name, value in domains.leaves(first)}
    for number, config in enumerate(configs):
        changed = [f"{n}={shown(each)}" for n, each in domains.leaves(config) if smallest.get(n) != repr(each)]
        name = ", ".join(changed) or "an empty dictionary" if number else "the smallest values"
        try:
            settings.append((name, variants(config, seed, number)[0]))
        except Exception as error:  # from a function of tune.sample_from
            why = f"raises {with_place(error)}"
            raise CheckFailed("a tune.sample_from of the params", why, tried=config) from error
    return settings


def _tried(params: Mapping[str, Any]) -> list[Config]:
    """Returns one config with the first alternative of each parameter, then one for each other alternative."""
    values = {name: _alternatives(value) for name, value in params.items()}
    first = {name: each[0] for name, each in values.items()}
    return [first, *({**first, name: value} for name in values for value in values[name][1:])]


def _alternatives(value: Any) -> list[Any]:
    if branches := parameters.branches(value):
        return [each for branch in branches for each in _alternatives(branch)]
    if parameters.is_nested(value):
        return list(_tried(value))
    if domains.is_constant(value):
        return [value]
    kind = domains.kind(value)
    if kind in ("choice", "grid_search"):
        values = domains.values_of(value)
        is_numeric = all(map(is_number, values))
        return sorted({min(values), max(values)}) if is_numeric else values
    if kind == "sample_from":
        return [value]  # `variants` calls its function
    if kind == "normal":
        return [domains.within(value, domains.sampler_of(value).mean)]
    return sorted({domains.Range(value).value_at(end) for end in (0.0, 1.0)})


def shown(value: Any) -> str:
    """Formats a value; a text that is not an identifier gets quotes, since a text such as '0.1' looks like a number."""
    return repr(value) if isinstance(value, str) and not value.isidentifier() else formatted(value)


def rehearse(request: Request) -> str:
    """Runs `check` for a dry run, with data that is on this machine; returns that it passed, or why it did not run."""
    from tuner.training.sources import UnsuitableData

    started = time.perf_counter()
    with _no_network() as hosts:
        try:
            request = load_data(request)
        except RequestError as error:
            if hosts:
                return f"not run: the data comes from the network ({hosts[0]}), which a dry run does not use"
            cause = error.__cause__
            missing = isinstance(cause, DataError) and not isinstance(cause, UnsuitableData)
            if not request.experiment.data_dir and (missing or "--data-dir DIR" in str(error)):
                return f"not run: {error}"
            raise
        where = f", on data of this machine; the search asks {hosts[0]} for its data first" if hosts else ""
        check(request)
    return f"passed in {time.perf_counter() - started:.1f} s{where}"


def _listed(names: Collection[str]) -> str:
    return ", ".join(list(names)[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


@contextlib.contextmanager
def _no_network() -> Iterator[list[str]]:
    """Makes Python's look-ups of other machines' addresses fail; yields the list of the hosts that were looked up."""
    hosts: list[str] = []
    look_up = socket.getaddrinfo

    def local(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("localhost", "127.0.0.1", "::1", "", None):
            hosts.append(str(host))
            raise OSError(f"a dry run does not connect to {host}")
        return look_up(host, *arguments, **options)

    with mock.patch.object(socket, "getaddrinfo", local):
        yield hosts
