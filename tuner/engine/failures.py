"""What kind of failure an exception is, and its one-line text."""

from __future__ import annotations

import re
from typing import Any

from tuner.errors import OUT_OF_MEMORY

# What an error says that leaves its process without a usable CUDA context -> its usual cause; the first match counts.
CUDA = {
    "device-side assert triggered": "a label or an index out of range: labels go from 0 to the model's outputs - 1",
    "illegal memory access": "an index out of range or a tensor of a wrong shape in a custom kernel",
    "CUDNN_STATUS_NOT_INITIALIZED": "no memory left for cuDNN's handle: fewer trials on this GPU, or smaller ones",
    "launch failure": "a kernel that read outside its tensors, or a faulty GPU",
    "CUDNN_STATUS": "a shape that cuDNN does not take, or no memory for its workspace",
    "CUBLAS_STATUS": "an index out of range before this call, or a wrong shape",
    "CUDA error": "an error of an earlier call, reported late: CUDA_LAUNCH_BLOCKING=1 shows which",
}


def kind_of(error: Any) -> tuple[str, str]:
    """(`oom` | `cuda` | `nan` | `user` | `worker_lost`, one line) of what Ray recorded for a failed trial.

    Args:
        error: the exception that Ray pickled (RayTaskError, RayActorError), its text, or None.
    """
    from ray.exceptions import RayActorError, RayTaskError

    if error is None:
        return "user", "unknown"
    # The exception itself: the traceback's last line is, with a message of several lines as CUDA's, not its first.
    # It lies two deep where a trial's own worker raised it, as in ddp, and a worker lost there is the trial's.
    cause = error
    while isinstance(cause, RayTaskError):
        cause = cause.cause
    if isinstance(cause, RayActorError):
        return "worker_lost", f"its worker died: {how_it_died(cause)}"
    text = f"{type(cause).__name__}: {first_line(cause)}"
    kind, usual = recognised(cause)
    return kind, f"{text}; usually {usual}" if usual else text


def recognised(error: Any) -> tuple[str, str]:
    """The kind of a trial's own exception (or its text), and what usually causes it, where that is known."""
    said = str(error)
    if isinstance(error, MemoryError) or "OutOfMemoryError" in type(error).__name__:
        return "oom", ""
    if isinstance(error, Exception) and not isinstance(error, RuntimeError):
        return "user", ""  # torch's are RuntimeErrors; a ValueError that mentions CUDA is the user's
    if any(mark in said for mark in OUT_OF_MEMORY):
        return "oom", ""
    return next((("cuda", usual) for mark, usual in CUDA.items() if mark in said), ("user", ""))


def how_it_died(error: Any) -> str:
    """What the raylet knows of a dead worker's end, without the list of guesses behind it; else Ray's first line."""
    found = re.search(r"exit detail: *(.+)", str(error), re.IGNORECASE)
    return re.split(r" (?:Some common causes|There are some potential)", found[1])[0] if found else first_line(error)


def first_line(error: Any) -> str:
    """The first line that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def as_a_worker_or_task_error(error: Exception) -> Exception:
    """Returns the error as one of the two kinds that Ray's actor manager knows: a lost worker, or a failed task."""
    from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RaySystemError, RayTaskError

    known: Exception = error
    if isinstance(error, OutOfMemoryError):
        known = RayActorError(error_msg=f"the host ran out of memory: {error}")
    elif isinstance(error, RayError) and not isinstance(error, (RayActorError, RayTaskError, RaySystemError)):
        known = RayActorError(error_msg=str(error))
    elif not isinstance(error, (RayActorError, RayTaskError)):
        # A report that this process cannot read, of a class that it has not.
        known = RayTaskError("train", f"{type(error).__name__}: {error}", error)
    return known
