"""Classifies a failed trial's exception, describes it in one line, and decides whether the trial is retried."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tuner.core.events import Event, TrialFailed
from tuner.errors.gate import clean, text_of
from tuner.errors.users_code import TRIAL_PREFIX, outside_trial, place_in
from tuner.spec.command import QUOTED
from tuner.training.devices.accelerator import is_out_of_memory, usual_cause

# A trial's own folder, a folder of Python's `tempfile`, an object's address, a number.
NUMBERS = re.compile(rf"\b(?:{TRIAL_PREFIX}\w+|tmp[a-z0-9_]{{8}}\b|0x[0-9a-fA-F]+|\d+)|\d+")
LESS_MEMORY = "use smaller batches, or fewer trials at once (--max-concurrent-trials)"
KILLED = "the trial's process was ended by SIGKILL"
NO_MEMORY = re.compile(r"ran out of memory|because memory ran out")  # in the text of a worker that memory has cost


class Failure(NamedTuple):
    """A trial's failure: kind, one-line text, whether the trial is retried, and from which epoch (0 = the start)."""

    kind: str
    error: str
    will_retry: bool
    from_epoch: int = 0


class Retries:
    """Decides by the kind of a failure whether its trial is retried; counts retries by trial and kind in all sessions.

    * worker_lost (a killed process, a lost node, a host out of memory) is retried at most `max_failures` times, as the
      trial itself may kill its worker.
    * cuda is retried once, in a new process: another trial on the GPU may be the cause.
    * oom and user are never retried: the same setting and seed usually fail at the same place. A hang counts as user:
      each retry would cost its whole timeout.

    Args:
        history: the events of earlier sessions; their retries count too.
        here: whether all workers run on this machine, whose kernel then says if memory ran out.
    """

    def __init__(self, max_failures: int, history: Iterable[Event] = (), here: bool = False) -> None:
        self._killed_before = oom_kills() if here else None
        self._most = {"worker_lost": max_failures, "cuda": 1}
        failed = [event for event in history if isinstance(event, TrialFailed)]
        self._used = Counter((event.trial, event.kind) for event in failed if event.will_retry)

    def judge(self, trial_id: str, error: Exception, from_epoch: int) -> Failure:
        """Classifies an error, and uses up a retry if one is left; `from_epoch` is the last checkpoint's, 0 = none."""
        killed = None if self._killed_before is None else (oom_kills() or 0) - self._killed_before
        kind, text = kind_of(error, killed)
        used, most = self._used[trial_id, kind], self._most.get(kind, 0)
        will_retry = used < most
        if will_retry:
            self._used[trial_id, kind] += 1
        elif used:
            text = f"{text} (tried again {'once' if used == 1 else f'{used} times'} before)"
        return Failure(kind, text, will_retry, from_epoch if will_retry else 0)


def kind_of(error: Exception, killed: int | None = None) -> tuple[str, str]:
    """Returns the kind of a trial's failure (`oom`, `cuda`, `user` or `worker_lost`) and a one-line text.

    `killed` is how many processes this machine's kernel killed for lack of memory in this session; None if unknown.
    """
    from ray.exceptions import RayActorError, RayTaskError

    # An exception of a ddp worker is wrapped twice. A lost ddp worker counts as the trial's lost worker.
    cause, printed = error, ""
    while isinstance(cause, RayTaskError):
        cause, printed = cause.cause, str(cause)
    if isinstance(cause, RayActorError):
        return "worker_lost", how_it_died(cause, killed)
    text, place = f"{type(cause).__name__}: {outside_trial(first_line(cause))}", place_in(printed)
    text += "" if place in text else place
    if is_out_of_memory(cause):
        return "oom", text
    # CUDA's errors are RuntimeErrors; a ValueError that mentions CUDA is from the user's code.
    usual = usual_cause(text_of(cause)) if isinstance(cause, RuntimeError) else None
    return ("user", text) if usual is None else ("cuda", f"{text}; usually {usual}" if usual else text)


def likeness(error: str) -> str:
    """Returns the same text for similar failures: the exception's type and place, or the text with its numbers as 0.

    Numbers are also the names of trials' own and other temporary folders, and addresses of objects.
    """
    error = error.partition(QUOTED)[0]  # what a command has printed differs
    placed = re.match(r"(\w+): .*?(\(/[^()]+, line \d+\))", error)
    return " ".join(placed.groups()) if placed else NUMBERS.sub("0", outside_trial(error))


def how_it_died(error: Any, killed: int | None) -> str:
    """Returns why a worker died: lack of memory, a signal, Ray's exit detail without its guesses, or its first line."""
    text = str(error)
    if "host ran out of memory" in text:  # Ray's memory monitor has ended it
        return f"its worker died: {first_line(error)}; {LESS_MEMORY}"
    if text == KILLED or "connection error code 2" in text:  # it ended without a message; Ray knows no exit code
        native = "" if text == KILLED else ", or its native code crashed"
        if killed is None:
            return f"its worker was killed{native}; `dmesg` says if memory ran out: then {LESS_MEMORY}"
        if killed:
            return f"its worker was killed, probably by the kernel, because memory ran out; {LESS_MEMORY}"
        return f"its worker was killed by a signal{native and f'{native} (SIGSEGV)'}; memory had not run out"
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


def first_line(error: Any) -> str:
    """Returns the error's first line that is not blank, or its type's name."""
    return next((line.strip() for line in text_of(error).splitlines() if line.strip()), type(error).__name__)


def as_a_worker_or_task_error(error: Exception) -> Exception:
    """Converts an error to one of the two types that Ray's actor manager handles: a lost actor or a failed task."""
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RaySystemError, RayTaskError

    known: Exception = error
    if isinstance(error, RayError) and not isinstance(error, (RayActorError, RayTaskError, RaySystemError)):
        memory = "the host ran out of memory: " if isinstance(error, OutOfMemoryError) else ""
        known = RayActorError(error_msg=f"{memory}{error}")
    elif not isinstance(error, (RayActorError, RayTaskError)):
        # For example, the driver cannot unpickle a report, because it lacks the class of a reported object.
        known = RayTaskError("train", f"{type(error).__name__}: {error}", error)
    if isinstance(known, RayTaskError) and (text := clean(outside_trial(str(known)))) != str(known):
        known = RayTaskError("train", text, known.cause)  # Ray writes the text to error.txt
    return known
