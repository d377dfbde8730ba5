"""Checks the fields of each kind of event when its line is read, so that later code can rely on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tuner.spec.experiment import MOST_EPOCHS

Event = dict[str, Any]
MOST_TIME = 1e11  # unix seconds: the year 5138
MOST_ID = 200  # maximum length of a trial's id, in characters
MOST_INTEGER = 2**63
# Ray adds these keys to every report. The journal and the views of Ray's own folders leave them out.
RAY_KEYS = frozenset(
    "trial_id training_iteration time_total_s time_this_iter_s time_since_restore iterations_since_restore timestamp "
    "date pid hostname node_ip done config checkpoint_dir_name should_checkpoint experiment_tag timesteps_total "
    "episodes_total timesteps_since_restore hyperband_info __report_restored__".split()
)
STATES = ("finished", "interrupted", "failed")  # states of a search that has ended


def check_event(event: Event) -> None:
    """Raises ValueError or KeyError if a field of the event is missing or has a wrong value."""
    kind, when, trial = event["event"], event["time"], event.get("trial")
    if not isinstance(kind, str) or not (isinstance(when, (int, float)) and 0 <= when <= MOST_TIME):
        raise ValueError(f"field `event` must be a text, and `time` must be 0..{MOST_TIME:.0f} unix seconds")
    if trial is not None and not is_trial_id(trial):
        raise ValueError("field `trial` is not a valid trial id")
    for name, fits in _FITS.get(kind, ()):
        if not fits(event[name]):
            raise ValueError(f"field `{name}` has a wrong type or value")
    if trial is None and kind in _OF_A_TRIAL:
        raise ValueError("field `trial` is missing")
    for name, fits in _OPTIONAL:
        if name in event and not fits(event[name]):
            raise ValueError(f"field `{name}` has a wrong type or value")


def is_trial_id(value: Any) -> bool:
    """Whether the value can be a trial's id, which is also the name of the trial's folder."""
    fits = isinstance(value, str) and 0 < len(value) <= MOST_ID
    return fits and "/" not in value and "\0" not in value and value not in (".", "..")


def is_inside(path: Any) -> bool:
    """Whether the value is a relative path without `..`; does not check links."""
    return (
        isinstance(path, str)
        and 0 < len(path) < 1000
        and not {"", "..", "."} & set(path.split("/"))
        and "\0" not in path
    )


def _is_integer(value: Any) -> bool:
    return type(value) is int and -MOST_INTEGER < value < MOST_INTEGER


def _is_epoch(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_EPOCHS


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_state(value: Any) -> bool:
    return isinstance(value, str) and value in STATES


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_place(value: Any) -> bool:
    return value is None or _is_integer(value) or (isinstance(value, float) and math.isfinite(value))


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, float) or _is_integer(value)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_checkpoint(value: Any) -> bool:
    return value is None or is_inside(value)


_Fields = tuple[tuple[str, Callable[[Any], bool]], ...]
_FITS: dict[str, _Fields] = {  # kind of event -> its fields and their checks
    "report": (("epoch", _is_epoch), ("metrics", _is_dict)),
    "decision": (
        ("epoch", _is_epoch), ("rung", _is_place), ("bracket", _is_place), ("value", _is_number),
        ("cutoff", _is_number), ("recorded", _is_count), ("action", _is_text), ("reason", _is_text),
    ),
    "trial_started": (("resources", _is_dict), ("node", _is_text)),
    "trial_failed": (("error", _is_text),),
    "trial_ended": (("status", _is_text), ("reason", _is_text)),
    "experiment_finished": (("state", _is_state),),
}  # fmt: skip
_OF_A_TRIAL = frozenset(_FITS) - {"experiment_finished"}
_OPTIONAL: _Fields = (("config", _is_dict), ("checkpoint", _is_checkpoint), ("reason", _is_text))
