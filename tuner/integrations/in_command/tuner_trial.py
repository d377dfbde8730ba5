"""Reports to the search from a process of a command's trial; needs Python 3.6 and nothing else.

import tuner_trial

tuner_trial.report({"loss": 0.25})

Programs in other languages run `python -m tuner_trial '{"loss": 0.25}'`; if the trial is stopped, its exit code is 3.

The trial's PYTHONPATH has the folder of this file. TUNER_TRIAL names the trial's folder, in which `checkpoint` has what
the trial saved last, `config.json` its parameters, and `metrics.json` the metrics that the search needs: the one that
the scheduler compares, the searched one, and further ones. Without TUNER_TRIAL, all functions do nothing.
"""

import json
import os
import socket
import sys
from typing import Any, Mapping, Optional  # noqa: UP035  (for Python 3.6)

VARIABLE = "TUNER_TRIAL"
SOCKET = "socket"
STOPPED = 3  # exit code
REFUSED = b"!"  # the trial's answer to what is no report
MAX_REPORT_BYTES = 1 << 20  # of a report


def report(metrics: Mapping[str, Any], checkpoint: Any = None, by: str = "tuner_trial") -> None:
    """Report an epoch; returns when the search has decided, and raises SystemExit if it has stopped the trial.

    Of a program with several ranks, only that of rank 0 reports: of `torch.distributed`, or by the variable RANK.
    Trials of a Ray Tuner that the program runs itself do not report here.

    Args:
        metrics: name -> number or text; numpy's and torch's numbers, too. Empty = no report yet, but `by` will report,
            so that ways of lower order are ignored.
        checkpoint: a folder, whose files the search copies; None = the trial's own folder, if that has changed.
        by: what reports, for messages.

    Raises:
        TypeError: a metric is neither a value of JSON nor has `item()`.
        ValueError: the report is larger than MAX_REPORT_BYTES, or did not arrive in time.
    """
    folder = os.environ.get(VARIABLE)
    if not folder or _rank() != 0 or in_trial_of_ray():
        return
    path = checkpoint and os.path.abspath(checkpoint)
    text = json.dumps({"metrics": dict(metrics), "checkpoint": path, "by": by}, default=_number)
    if len(text) >= MAX_REPORT_BYTES:
        raise ValueError(f"the report has {len(text):,} bytes; report less than {MAX_REPORT_BYTES:,}")
    try:
        if _goes_on(folder, text.encode() + b"\n"):
            return
    except (ConnectionError, FileNotFoundError):
        pass  # the trial has ended
    raise SystemExit(STOPPED if __name__ == "__main__" else 0)


def _goes_on(folder: str, message: bytes) -> bool:
    """Whether the trial goes on after a report."""
    place = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.connect(f"/proc/self/fd/{place}/{SOCKET}")  # a socket's path has at most 107 bytes
            trial.sendall(message)
            answer = trial.recv(1)
            if answer == REFUSED:
                raise ValueError("the trial did not get the whole report in time")
            return bool(answer)
    finally:
        os.close(place)


def checkpoint_folder() -> Optional[str]:  # noqa: UP045  (for Python 3.6)
    """Return the folder with what the trial reported last; None if it has reported nothing, or outside of a trial.

    Files that are not yet reported do not count, wherever they are.
    """
    try:
        with open(os.path.join(os.environ.get(VARIABLE) or os.devnull, "newest")) as file:
            return file.read()
    except OSError:
        return None


def in_trial_of_ray() -> bool:
    """Whether this process runs a trial of a Ray Tuner that the program has started."""
    tune = sys.modules.get("ray.tune")
    return bool(tune and sys.modules["ray"].is_initialized() and tune.get_context().get_trial_id())


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK") or 0)


def _number(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a metric is a number or a text, not {value!r}")


if __name__ == "__main__":
    report(json.loads(sys.argv[1]))
