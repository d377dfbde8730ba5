"""Checks a space before its first trial: runs a Task's functions on a batch, in this process, on the CPU.

The check uses the trials' own training loop. What it tries depends on the space alone, never on the clock: one batch
for the smallest values and one for each other alternative (`settings_of`). A check that takes long says which
alternative it tries. Afterwards it restores the random streams of Python, numpy and torch's CPU.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.errors import OUT_OF_MEMORY, RequestError, say
from tuner.errors.users_code import shown_path
from tuner.spec import domains
from tuner.spec.patience import patience
from tuner.spec.spaces import with_line
from tuner.training.data import Arrays, DataError, Splits
from tuner.training.task import Task
from tuner.tuning.checks.examples import check_lengths, odd_row, parts_of
from tuner.tuning.checks.failed import Failed
from tuner.tuning.checks.guards import no_network, silence, warn_of
from tuner.tuning.checks.reporting import check_text
from tuner.tuning.checks.sending import check_parts
from tuner.tuning.checks.settings import settings_of, shown

if TYPE_CHECKING:
    from tuner.tuning.requests import Request

logger = logging.getLogger(__name__)
SKIP = "; --no-preflight skips this check"


def check(request: Request) -> list[str]:
    """Checks the space of a request whose data has been read: tries a Task, or reads the text of a train function.

    Returns:
        The alternatives that were tried, such as `optimizer=adam`; none for a train function.

    Raises:
        RequestError: a trial would fail; the text names the user's function, its file and line, and the tried values.
    """
    space = request.loaded_space.space
    try:
        check_parts(request)
        check_text(space.train, request.experiment.metric)
        if space.task is not None and request.splits is not None:
            return check_task(request, space.task, request.splits)
        return []
    except Failed as failed:
        values = ", ".join(f"{name}={shown(value)}" for name, value in domains.leaves(failed.tried))
        parts = [f"{failed.part} {failed.problem}", failed.advice, f"tried with {values}" if values else ""]
        text = with_line("; ".join(part for part in parts if part), request.loaded_space.path)
        text, place, more = text.partition(f"({shown_path(request.loaded_space.path)}, line ")
        text += place + (more.replace(place, "(line ") if place else more)  # the file's name once
        raise RequestError(f"--space {request.experiment.space}: {text}") from failed


def check_task(request: Request, task: Task, splits: Splits) -> list[str]:
    """Tries one batch for each alternative of the parameters; returns the names of the alternatives.

    Raises:
        Failed: a trial would fail, or each would report only NaN.
    """
    from tuner.training.streams import kept_streams
    from tuner.tuning.checks.trying import odd_data, odd_example, try_setting

    check_lengths(splits, request.loaded_space.space)
    odd = {name: odd_row(part) for name, part in parts_of(splits) if isinstance(part, Arrays)}
    experiment, doing, diverged, forgone = request.experiment, "", dict[str, Failed](), dict[str, Failed]()
    frozen = ""  # the first such line
    with patience(lambda: doing, SKIP), kept_streams(), silence() as heard:
        settings = settings_of(request.loaded_space.space, experiment.seed)
        for number, (name, config) in enumerate(settings, 1):
            doing = f"trying the space on one batch ({name}; {number} of {len(settings)})"
            try:
                blamed, note = try_setting(task, splits, odd, config, experiment.max_epochs, experiment.precision)
                frozen = frozen or note
                if blamed:
                    diverged[name] = replace(blamed, tried=config)
            except Failed as failed:
                failed.tried = failed.tried or config
                if not forgiven(failed.problem, request):
                    raise
                forgone[name] = failed
    warn_of(heard, task)
    if frozen:
        say(frozen)
    if forgone:
        problem = next(iter(forgone.values())).problem
        say(
            f"preflight (one batch before the search): not possible without a GPU or with this process's memory: "
            f"{listed(forgone)} ({problem})"
        )
    first = next(iter(diverged.values()), None)
    if first and len(diverged) + len(forgone) == len(settings):
        raise first
    if first:
        then = "such a trial is pruned after its first epoch"
        logger.warning("with %s, %s %s; %s", listed(diverged), first.part, first.problem, then)
    for name in () if first else odd:
        if example := odd_example(splits, name, odd):
            found = odd_data(task, name, example)
            logger.warning("%s %s; %s", found.part, found.problem, found.advice)
    return [name for name, _ in settings]


MOST_LISTED = 8


def listed(names: Collection[str]) -> str:
    """Lists at most MOST_LISTED names."""
    more = len(names) - MOST_LISTED
    return ", ".join(list(names)[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


def rehearse(request: Request) -> str:
    """Checks the space for a dry run, without the network: only with data that is on this machine.

    Returns a text: that the check passed, or why it was not run.

    Raises:
        RequestError: a trial would fail.
    """
    from tuner.training.sources import UnsuitableData
    from tuner.tuning.checks.data import load_data

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
        tried = check(request)
    where = f", on data of this machine; the search asks {hosts[0]} for its data" if hosts else ""
    settings = f", training one batch each with {listed(tried)}" if tried else ""
    return f"passed in {time.perf_counter() - started:.1f} s{settings}{where}"


def forgiven(problem: str, request: Request) -> bool:
    """Whether to ignore a failure: memory ran out in this process, or the model needs a GPU and the trials get one."""
    gpus = request.resources.gpus if request.resources else request.experiment.gpus_per_trial
    asked = re.search(r"tried to allocate (\d+) bytes", problem)
    if asked and int(asked[1]) > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") and not gpus:
        return bool(request.experiment.address)  # only a cluster's machine may have that much memory
    needs_gpu = any(word in problem for word in ("CUDA", "cuda", "'CPU'", "GPU"))
    return any(text in problem for text in OUT_OF_MEMORY) or "MemoryError" in problem or bool(gpus and needs_gpu)
