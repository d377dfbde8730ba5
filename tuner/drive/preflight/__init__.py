"""Checks a space before its first trial: runs a Task's functions on a batch, in this process, on the CPU.

The check uses the trials' own training loop. It tries the smallest values of all parameters first, then changes one
parameter at a time, and begins no further setting after `BUDGET_S`. With a large model, it does only what fits in that
time, but always the forward pass, the loss and the metrics. It prints what it left out. Afterwards it restores the
random streams of Python, numpy and torch's CPU.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from tuner.drive.preflight import settings
from tuner.drive.preflight.examples import check_lengths
from tuner.drive.preflight.guards import no_network, silence, warn_of
from tuner.drive.preflight.limits import Failed, Late, Tries
from tuner.drive.preflight.reporting import check_text
from tuner.drive.preflight.sending import check_parts
from tuner.drive.preflight.settings import shown
from tuner.drive.preflight.trying import check_losses, try_setting
from tuner.errors import OUT_OF_MEMORY, RequestError, say
from tuner.errors.users_code import shown_path
from tuner.spec import domains
from tuner.spec.patience import patience
from tuner.spec.spaces import with_line
from tuner.training.data import DataError, Splits
from tuner.training.task import Task

if TYPE_CHECKING:
    from tuner.drive.session import Request

SKIP = "; --no-preflight skips this check"


def check(request: Request) -> None:
    """Checks the space of a request whose data has been read: tries a Task, or reads the text of a train function.

    Raises:
        RequestError: a trial would fail; the text names the user's function, its file and line, and the tried values.
    """
    space, tries = request.loaded_space.space, Tries()
    try:
        check_parts(request)
        check_text(space.train, request.experiment.metric)
        if space.task is not None and request.splits is not None:
            check_task(request, space.task, request.splits, tries)
    except Failed as failed:
        if forgiven(failed.problem, request):
            return
        values = ", ".join(f"{name}={shown(value)}" for name, value in domains.leaves(tries.tried))
        parts = [f"{failed.part} {failed.problem}", failed.advice, f"tried with {values}" if values else ""]
        text = with_line("; ".join(part for part in parts if part), request.loaded_space.path)
        text, place, more = text.partition(f"({shown_path(request.loaded_space.path)}, line ")
        text += place + (more.replace(place, "(line ") if place else more)  # the file's name once
        raise RequestError(f"--space {request.experiment.space}: {text}") from failed


def check_task(request: Request, task: Task, splits: Splits, tries: Tries) -> None:
    """Tries settings of the parameters on one batch until BUDGET_S is over; raises Failed if one would fail."""
    from tuner.training.streams import kept_streams

    check_lengths(splits, request.loaded_space.space)
    with patience("trying the space on one batch", SKIP), kept_streams(), silence() as heard:
        for config in settings.settings(request.loaded_space.space, request.experiment.seed, tries):
            tries.tried = config
            tries.num += 1
            try:
                try_setting(request, task, splits, tries)
            except Late:
                tries.left_out += tries.remaining
                break
    check_losses(tries, splits, task)
    tries.tried = {}
    warn_of(heard, task)
    if tries.frozen:
        say(tries.frozen)
    if tries.left_out:
        settled, left_out = "s" if tries.num > 1 else "", ", ".join(dict.fromkeys(tries.left_out))
        tried = f"tried {tries.num} setting{settled} in {tries.spent_s:.1f} s"
        say(f"preflight passed: {tried}; not tried, to save time: {left_out}")


def rehearse(request: Request) -> str:
    """Checks the space for a dry run, without the network: only with data that is on this machine.

    Returns a text: that the check passed, or why it was not run.

    Raises:
        RequestError: a trial would fail.
    """
    from tuner.drive.session import load_data
    from tuner.training.sources import UnsuitableData

    started = time.perf_counter()
    with no_network() as hosts:
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
        check(request)
    where = f", on data of this machine; the search asks {hosts[0]} for its data" if hosts else ""
    return f"passed in {time.perf_counter() - started:.1f} s{where}"


def forgiven(problem: str, request: Request) -> bool:
    """Whether to ignore a failure: memory ran out in this process, or the model needs a GPU and the trials get one."""
    gpus = request.resources.gpus if request.resources else request.experiment.gpus_per_trial
    asked = re.search(r"tried to allocate (\d+) bytes", problem)
    if asked and int(asked[1]) > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") and not gpus:
        return bool(request.experiment.address)  # only a cluster's machine may have that much memory
    needs_gpu = any(word in problem for word in ("CUDA", "cuda", "'CPU'", "GPU"))
    return any(text in problem for text in OUT_OF_MEMORY) or "MemoryError" in problem or bool(gpus and needs_gpu)
