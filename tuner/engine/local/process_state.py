"""Sets the environment variables, log levels and warnings filter of a search, and sets them back at its end."""

from __future__ import annotations

import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tuner.spec.command_process import VARIABLE

# Ray Tune reads these while it runs a search, so they are not set for a program's own use of Ray Tune.
VARIABLES = {
    "RAY_AIR_NEW_OUTPUT": "0",  # else Ray uses its new console output, which silently ignores a CLIReporter
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # else Ray prints errors of trials that fail while the search stops
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # else Ray also writes CSV and TensorBoard; a report takes twice as long
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # else one report without the metric ends the whole experiment
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # else Ray, too, prints the errors that tuner prints at the end
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",  # else Ray writes snapshots, slower with each trial; tuner has a journal
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    # Workers inherit this variable. With it, each start would compile torch's modules again and take 2.5 times as long.
    "PYTHONDONTWRITEBYTECODE": None,
    VARIABLE: None,  # a command's trial may start this search, whose trials report to it alone
}
# A search sets these later: `tuner.tuning.assembly` the first, `ray.init` and `Tuner.fit` the others (ray 2.60).
SET_LATER = (
    "TUNE_MAX_PENDING_TRIALS_PG",
    "PYTHONBREAKPOINT",
    "RAY_AUTH_MODE",
    "RAY_USAGE_STATS_ENABLED",
    "TUNE_RESULT_BUFFER_LENGTH",
)
# Lowest levels at which Ray's loggers print: a user of tuner can do nothing about Ray's warnings.
LEVELS = {
    "ray": logging.ERROR,
    "ray.train": logging.ERROR,
    "ray.air": logging.ERROR,
    "ray.tune": logging.CRITICAL,  # it logs trials' errors, which tuner prints at the end
}


@contextmanager
def process_state() -> Iterator[None]:
    """Set variables, loggers and a warnings filter for a search, and import Ray; set all back after the `with` block.

    What an import sets stays: Ray's logger gets its handler, and libraries add warnings filters.
    """
    with ExitStack() as stack:
        for name in (*VARIABLES, *SET_LATER):
            stack.callback(_set_variable, name, os.environ.get(name))
        for name, value in VARIABLES.items():
            _set_variable(name, value)
        stack.callback(setattr, sys, "dont_write_bytecode", sys.dont_write_bytecode)
        stack.callback(_set_variable, "PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED"))
        # A set of texts then has one order in all trials, also those of a resume, and in processes that they start.
        os.environ.setdefault("PYTHONHASHSEED", "0")
        sys.dont_write_bytecode = False  # this process, too, saves the modules that it compiles
        stack.callback(random.setstate, random.getstate())  # Ray draws from the program's stream
        import ray  # noqa: F401  (sets the level of its logger)

        for name, level in LEVELS.items():
            stack.callback(logging.getLogger(name).setLevel, logging.getLogger(name).level)
            logging.getLogger(name).setLevel(level)
        before = [*warnings.filters]
        warnings.filterwarnings("ignore", module=r"ray\..*")
        if (added := warnings.filters[0]) not in before:
            stack.callback(_remove_filter, added)
        yield


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _remove_filter(added: tuple[object, ...]) -> None:
    with suppress(ValueError):  # the program has reset its filters meanwhile
        warnings.filters.remove(added)  # type: ignore[attr-defined]
