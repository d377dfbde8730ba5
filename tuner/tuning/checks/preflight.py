"""Checks a space before its first trial: runs a Task's functions on a batch, in this process, on the CPU.

The check uses the trials' own training loop. What it tries depends on the space alone, never on the clock: one batch
for the smallest values and one for each other alternative (`settings_of`). A check that takes long says which
alternative it tries. Afterwards it restores the random streams of Python, numpy and torch's CPU.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import time
import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from tuner.errors import OUT_OF_MEMORY, RequestError, say
from tuner.errors.users_code import place_of, shown_path
from tuner.spec import domains
from tuner.spec.patience import patience
from tuner.spec.spaces import with_line
from tuner.training.data import DataError, Splits
from tuner.training.task import Task
from tuner.tuning.checks.advice import CheckFailed
from tuner.tuning.checks.data import check_lengths, load_data, nonfinite_data, nonfinite_row, parts_of
from tuner.tuning.checks.sending import check_reporting, check_sendable
from tuner.tuning.checks.settings import settings_of, shown

if TYPE_CHECKING:
    from tuner.tuning.requests import Request

logger = logging.getLogger(__name__)
SKIP = "; --no-preflight skips this check"
MOST_LISTED = 8  # names of alternatives in one line
# Starts of warnings of torch -> the Task's function that causes it: mistakes that give a wrong loss but no error.
WARNINGS = {"Using a target size": "loss", "Implicit dimension choice": "model"}


def check(request: Request) -> list[str]:
    """Checks the space of a request whose data has been read: tries a Task, or reads the text of a train function.

    Returns:
        The alternatives that were tried, such as `optimizer=adam`; none for a train function.

    Raises:
        RequestError: a trial would fail; the text names the user's function, its file and line, and the tried values.
    """
    space = request.loaded_space.space
    try:
        check_sendable(request)
        check_reporting(space.train, request.experiment.metric)
        if space.task is not None and request.splits is not None:
            return _check_task(request, space.task, request.splits)
        return []
    except CheckFailed as failed:
        values = ", ".join(f"{name}={shown(value)}" for name, value in domains.leaves(failed.tried))
        parts = [f"{failed.part} {failed.problem}", failed.advice, f"tried with {values}" if values else ""]
        text = with_line("; ".join(part for part in parts if part), request.loaded_space.path)
        text, place, more = text.partition(f"({shown_path(request.loaded_space.path)}, line ")
        text += place + (more.replace(place, "(line ") if place else more)  # the file's name once
        raise RequestError(f"--space {request.experiment.space}: {text}") from failed


def _check_task(request: Request, task: Task, splits: Splits) -> list[str]:
    """Tries one batch for each alternative of the parameters; returns the names of the alternatives.

    Raises:
        CheckFailed: a trial would fail, or each would report only NaN.
    """
    from tuner.training.streams import kept_streams
    from tuner.tuning.checks.trying import try_setting

    check_lengths(splits, request.loaded_space.space)
    odd = {name: nonfinite_row(part) for name, part in parts_of(splits).items()}
    experiment, doing, diverged, untried = request.experiment, "", dict[str, CheckFailed](), dict[str, str]()
    frozen = ""  # the first such line
    with patience(lambda: doing, SKIP), kept_streams(), _silence() as heard:
        settings = settings_of(request.loaded_space.space, experiment.seed)
        for number, (name, config) in enumerate(settings, 1):
            doing = f"trying the space on one batch ({name}; {number} of {len(settings)})"
            try:
                blamed, note = try_setting(task, splits, odd, config, experiment.max_epochs, experiment.precision)
                frozen = frozen or note
                if blamed:
                    diverged[name] = replace(blamed, tried=config)
            except CheckFailed as failed:
                failed.tried = failed.tried or config
                if not _is_of_this_process(failed.problem, request):
                    raise
                untried[name] = failed.problem
    for start, function in WARNINGS.items():
        texts = (" ".join(str(each.message).split()) for each in heard)
        if text := next((text for text in texts if text.startswith(start)), ""):
            logger.warning("the %s%s: %s", function, place_of(getattr(task, function)), text)
    if frozen:
        say(frozen)
    if untried:
        problem = next(iter(untried.values()))
        say(
            "preflight (one batch before the search): not possible without a GPU or with this process's memory: "
            f"{_listed(untried)} ({problem})"
        )
    if first := next(iter(diverged.values()), None):
        if len(diverged) + len(untried) == len(settings):
            raise first
        then = "such a trial is pruned after its first epoch"
        logger.warning("with %s, %s %s; %s", _listed(diverged), first.part, first.problem, then)
        return [name for name, _ in settings]
    for name, row in odd.items():
        if row is not None:
            found = nonfinite_data(task, splits, name, row)
            logger.warning("%s %s; %s", found.part, found.problem, found.advice)
    return [name for name, _ in settings]


def rehearse(request: Request) -> str:
    """Checks the space for a dry run, without the network: only with data that is on this machine.

    Returns a text: that the check passed, or why it was not run.

    Raises:
        RequestError: a trial would fail.
    """
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
        tried = check(request)
    where = f", on data of this machine; the search asks {hosts[0]} for its data" if hosts else ""
    settings = f", training one batch each with {_listed(tried)}" if tried else ""
    return f"passed in {time.perf_counter() - started:.1f} s{settings}{where}"


def _listed(names: Collection[str]) -> str:
    more = len(names) - MOST_LISTED
    return ", ".join(list(names)[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def _is_of_this_process(problem: str, request: Request) -> bool:
    """Whether a trial may succeed all the same: memory ran out here, or the model needs a GPU and trials get one."""
    gpus = request.resources.gpus if request.resources else request.experiment.gpus_per_trial
    needs_gpu = any(word in problem for word in ("CUDA", "cuda", "'CPU'", "GPU"))
    return any(text in problem for text in (*OUT_OF_MEMORY, "MemoryError")) or bool(gpus and needs_gpu)


class _Dropped(io.StringIO):
    """A stream that keeps nothing: a function may print gigabytes. A user's log handler may use it after the check."""

    def write(self, text: str) -> int:
        return len(text)


@contextlib.contextmanager
def _silence() -> Iterator[list[warnings.WarningMessage]]:
    """Drops what the user's functions print, because trials print it again; yields the list of Python's warnings.

    `os._exit` raises SystemExit meanwhile, because it would end the command without a message.
    """
    process, ends = os.getpid(), os._exit

    def leave(status: int) -> NoReturn:
        if os.getpid() != process:  # a forked process, such as a DataLoader's
            ends(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = leave
    with (
        contextlib.redirect_stdout(_Dropped()),
        contextlib.redirect_stderr(_Dropped()),
        warnings.catch_warnings(record=True) as heard,
    ):
        warnings.simplefilter("always")
        try:
            yield heard
        finally:
            os._exit = ends


@contextlib.contextmanager
def _no_network() -> Iterator[list[str]]:
    """Refuses to look up the addresses of other machines in Python; yields the list of the refused hosts."""
    hosts: list[str] = []
    look_up = socket.getaddrinfo

    def local(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("localhost", "127.0.0.1", "::1", "", None):
            hosts.append(str(host))
            raise OSError(f"a dry run does not connect to {host}")
        return look_up(host, *arguments, **options)

    socket.getaddrinfo = local
    try:
        yield hosts
    finally:
        socket.getaddrinfo = look_up
