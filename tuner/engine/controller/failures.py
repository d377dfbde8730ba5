"""Classifies a failed trial's exception and describes it in one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tuner.errors.users_code import place_in
from tuner.training.devices.accelerator import is_out_of_memory, usual_cause

LESS_MEMORY = "use smaller batches, or fewer trials at once (--max-concurrent-trials)"
GONE = "its worker was killed"


def kind_of(error: Exception) -> tuple[str, str]:
    """Returns the kind of a trial's failure (`oom`, `cuda`, `user` or `worker_lost`) and a one-line text.

    Args:
        error: the exception itself, or wrapped by Ray (RayTaskError), or a RayActorError.
    """
    from ray.exceptions import RayActorError, RayTaskError

    # Use the exception, not the traceback's last line: CUDA's messages have several lines, and the first one matters.
    # An exception of a ddp worker is wrapped twice. A lost ddp worker counts as the trial's lost worker.
    cause, printed = error, ""
    while isinstance(cause, RayTaskError):
        cause, printed = cause.cause, str(cause)
    if isinstance(cause, RayActorError):
        return "worker_lost", how_it_died(cause)
    text = f"{type(cause).__name__}: {first_line(cause)}{place_in(printed)}"
    if is_out_of_memory(cause):
        return "oom", text
    # CUDA's errors are RuntimeErrors; a ValueError that mentions CUDA is from the user's code.
    usual = usual_cause(str(cause)) if isinstance(cause, RuntimeError) else None
    return ("user", text) if usual is None else ("cuda", f"{text}; usually {usual}" if usual else text)


def likeness(error: str) -> str:
    """Returns the same text for similar failures: the exception's type and place, or the text with its numbers as 0."""
    placed = re.match(r"(\w+): .*?(\(/[^()]+, line \d+\))", error)
    return " ".join(placed.groups()) if placed else re.sub(r"\d+", "0", error)


def how_it_died(error: Any) -> str:
    """Returns why a worker died: Ray's exit detail without its guesses, or else the error's first line."""
    text = str(error)
    if "host ran out of memory" in text:  # Ray's memory monitor has ended it
        return f"its worker died: {first_line(error)}; {LESS_MEMORY}"
    if "connection error code 2" in text:  # the process has gone without a word; Ray knows neither signal nor exit code
        return f"{GONE}, or its native code crashed; `dmesg` says if memory ran out: then {LESS_MEMORY}"
    detail = re.search(r"exit detail: *(.+)", text, re.IGNORECASE)
    guesses = r" (?:Some common causes|There are some potential)"
    return f"its worker died: {re.split(guesses, detail[1])[0] if detail else first_line(error)}"


def oom_kills() -> int | None:
    """Returns how many processes this machine's kernel has killed because memory ran out; None if it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) if found else None


def with_cause(text: str, killed: int) -> str:
    """The text about a worker of this machine, with what the kernel says.

    Args:
        killed: how many processes the kernel has killed during the search because memory ran out.
    """
    if not text.startswith(GONE):
        return text
    if killed:
        return f"{GONE}, probably by the kernel, because memory ran out; {LESS_MEMORY}"
    return f"{GONE} by a signal, or its native code crashed (SIGSEGV); memory had not run out"


def first_line(error: Any) -> str:
    """Returns the error's first line that is not blank, or its type's name."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def as_a_worker_or_task_error(error: Exception) -> Exception:
    """Converts an error to one of the two types that Ray's actor manager handles: a lost actor or a failed task."""
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RaySystemError, RayTaskError

    known: Exception = error
    if isinstance(error, OutOfMemoryError):
        known = RayActorError(error_msg=f"the host ran out of memory: {error}")
    elif isinstance(error, RayError) and not isinstance(error, (RayActorError, RayTaskError, RaySystemError)):
        known = RayActorError(error_msg=str(error))
    elif not isinstance(error, (RayActorError, RayTaskError)):
        # For example, the driver cannot unpickle a report, because it lacks the class of a reported object.
        known = RayTaskError("train", f"{type(error).__name__}: {error}", error)
    return known
