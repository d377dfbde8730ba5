"""What kind of failure an exception is, and its one-line text."""

from __future__ import annotations

from typing import Any


def kind_of(error: Any) -> tuple[str, str]:
    """(`oom` | `cuda` | `nan` | `user` | `worker_lost`, one line) of what Ray recorded for a failed trial.

    Args:
        error: the exception that Ray pickled (RayTaskError, RayActorError), its text, or None.
    """
    from ray.exceptions import RayActorError, RayTaskError

    if isinstance(error, RayActorError):
        return "worker_lost", f"its worker died: {first_line(error)}"
    cause = error.as_instanceof_cause() if isinstance(error, RayTaskError) else error
    text = f"{type(getattr(cause, 'cause', cause)).__name__}: {first_line(cause)}" if cause is not None else "unknown"
    lines = str(error).strip().splitlines()
    if isinstance(error, RayTaskError) and lines:
        text = lines[-1].strip()  # the traceback's last line is the trial's own exception with its message
    if "OutOfMemoryError" in text or "out of memory" in text:
        return "oom", text
    if "CUDA error" in text or "CUDNN_STATUS" in text:
        return "cuda", text
    return "user", text


def first_line(error: Any) -> str:
    """The first line that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
